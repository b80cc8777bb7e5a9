package models

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"
)

// Background is how many processors work that can wait may keep busy: all but one.
var Background = max(1, runtime.GOMAXPROCS(0)-1)

var background = make(chan struct{}, Background)

// InBackground runs f, which computes for milliseconds and waits for nothing, on
// behalf of work that can wait. Such work never keeps all processors busy, so
// that work which a user waits for is not queued behind it.
func InBackground(f func()) {
	background <- struct{}{}
	defer func() { <-background }()
	f()
}

type backgroundKey struct{}

// WithBackground marks all that is done under the context as work that can
// wait, so that in a store work which a user waits for is not queued behind it.
func WithBackground(ctx context.Context) context.Context {
	return context.WithValue(ctx, backgroundKey{}, true)
}

// IsBackground reports whether what is done under the context can wait.
func IsBackground(ctx context.Context) bool { return ctx.Value(backgroundKey{}) != nil }

// urgentAt is when urgent mail was on its way last, in nanoseconds since 1970; 0:
// never.
var urgentAt atomic.Int64

// urgentLately is for how long after it urgent mail is taken to come again.
const urgentLately = time.Second

// OnItsWay tells that mail of a lane is on its way in this process.
func OnItsWay(l Lane) {
	if l == Urgent {
		urgentAt.Store(time.Now().UnixNano())
	}
}

// UrgentLately reports whether urgent mail was on its way within the last second.
func UrgentLately() bool {
	since := time.Now().UnixNano() - urgentAt.Load()
	return since >= 0 && since < int64(urgentLately) // less than 0: the clock was set back
}

// mostRest is the longest rest, for work that took long because it waited itself.
const mostRest = 500 * time.Millisecond

// Rest pauses work that can wait, after a piece of it that took so long, while
// urgent mail comes: that finds processors and the store at rest three times out
// of four. Without urgent mail it returns at once.
func Rest(ctx context.Context, took time.Duration) {
	if !UrgentLately() {
		return
	}
	Pause(ctx, min(3*took, mostRest))
}

// Pause waits for so long, or until ctx ends.
func Pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
