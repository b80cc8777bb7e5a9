package models

import (
	"context"
	"runtime"
)

// Background is how many processors work that can wait may keep busy: all but one.
var Background = max(1, runtime.GOMAXPROCS(0)-1)

var background = make(chan struct{}, Background)

// InBackground runs f, which computes for milliseconds and waits for nothing, on
// behalf of work that can wait. Such work never keeps all processors busy, so
// that what somebody waits for does not stand in line behind it.
func InBackground(f func()) {
	background <- struct{}{}
	defer func() { <-background }()
	f()
}

type backgroundKey struct{}

// WithBackground marks all that is done under the context as work that can
// wait, so that in a store what somebody waits for does not stand in line behind
// it.
func WithBackground(ctx context.Context) context.Context {
	return context.WithValue(ctx, backgroundKey{}, true)
}

// IsBackground reports whether what is done under the context can wait.
func IsBackground(ctx context.Context) bool { return ctx.Value(backgroundKey{}) != nil }
