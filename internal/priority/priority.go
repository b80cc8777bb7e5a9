// Package priority lets work that can wait give way to work that a user waits for: on
// the processors, in the stores, and while urgent mail passes.
package priority

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Scheduler is the process's view of low-priority work and urgent mail. Its methods may
// be called by many goroutines at once.
type Scheduler struct {
	cpu      chan struct{} // holds a token for each piece of low-priority work that computes
	turns    turns
	urgentAt atomic.Int64 // when urgent mail passed last, in nanoseconds since 1970; 0: never
}

// New returns a scheduler that leaves one processor to other work.
func New() *Scheduler { return &Scheduler{cpu: make(chan struct{}, Parallelism())} }

// Parallelism returns how many processors low-priority work may keep busy: all but one,
// and at least one.
func Parallelism() int { return max(1, runtime.GOMAXPROCS(0)-1) }

// Compute runs f, which computes for milliseconds and waits for nothing, as low-priority
// work. It waits until a processor may be used for it.
func (s *Scheduler) Compute(f func()) {
	s.cpu <- struct{}{}
	defer func() { <-s.cpu }()
	f()
}

// Enter waits until work of a user may compute, as low-priority work. One piece of each user runs at a time, so that a
// user who asks for much delays no other. While urgent mail passes, the user's next piece waits as in Backoff. The
// caller must call leave, and wait for nothing meanwhile. Enter returns the error of ctx if that ends.
func (s *Scheduler) Enter(ctx context.Context, user string) (leave func(), err error) {
	end, err := s.turns.take(ctx, user)
	if err != nil {
		return nil, err
	}
	select {
	case s.cpu <- struct{}{}:
		begun := time.Now()
		return func() {
			<-s.cpu
			if pause := s.rest(time.Since(begun)); pause > 0 {
				time.AfterFunc(pause, end)
				return
			}
			end()
		}, nil
	case <-ctx.Done():
		end()
		return nil, ctx.Err()
	}
}

// turns gives each user one turn at a time.
type turns struct {
	mu    sync.Mutex
	users map[string]*turn
}

// turn is a user's turn. taken holds a token while it is in use.
type turn struct {
	taken   chan struct{}
	holders int // those who have the turn or wait for it
}

func (t *turns) take(ctx context.Context, user string) (end func(), err error) {
	t.mu.Lock()
	u := t.users[user]
	if u == nil {
		u = &turn{taken: make(chan struct{}, 1)}
		if t.users == nil {
			t.users = map[string]*turn{}
		}
		t.users[user] = u
	}
	u.holders++
	t.mu.Unlock()
	select {
	case u.taken <- struct{}{}:
		return func() { <-u.taken; t.drop(user, u) }, nil
	case <-ctx.Done():
		t.drop(user, u)
		return nil, ctx.Err()
	}
}

// drop removes a user's turn when the last one who wants it has left.
func (t *turns) drop(user string, u *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if u.holders--; u.holders == 0 {
		delete(t.users, user)
	}
}

// urgentLately is for how long after urgent mail passed more of it is expected.
const urgentLately = time.Second

// NoteUrgent notes that urgent mail passes through this process.
func (s *Scheduler) NoteUrgent() { s.urgentAt.Store(time.Now().UnixNano()) }

// UrgentLately reports whether urgent mail passed within the last second.
func (s *Scheduler) UrgentLately() bool {
	since := time.Now().UnixNano() - s.urgentAt.Load()
	return since >= 0 && since < int64(urgentLately) // less than 0: the clock was set back
}

// maxBackoff is the longest backoff, for work that took long because it waited itself.
const maxBackoff = 500 * time.Millisecond

// Backoff pauses low-priority work after a piece of it that took so long, while urgent
// mail passes: three times as long as that took, and half a second at most. Without
// urgent mail it returns at once. It ends with ctx.
func (s *Scheduler) Backoff(ctx context.Context, took time.Duration) {
	pause := s.rest(took)
	if pause == 0 {
		return
	}
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// rest returns how long low-priority work pauses after a piece of it.
func (s *Scheduler) rest(took time.Duration) time.Duration {
	if !s.UrgentLately() {
		return 0
	}
	return min(3*took, maxBackoff)
}

type lowKey struct{}

// WithLow marks all that is done under the context as low-priority work, so that a store
// serves other requests first.
func WithLow(ctx context.Context) context.Context { return context.WithValue(ctx, lowKey{}, true) }

// IsLow reports whether what is done under the context is low-priority work.
func IsLow(ctx context.Context) bool { return ctx.Value(lowKey{}) != nil }
