// Package priority lets work that can wait give way to work that a user waits for: on
// the processors, in the stores, and while urgent mail passes.
package priority

import (
	"cmp"
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Scheduler is the process's view of low-priority work and urgent mail. Its methods may
// be called by many goroutines at once.
type Scheduler struct {
	cpu      chan struct{} // holds a token for each piece of low-priority work that computes
	turns    Turns
	begun    atomic.Int64 // pieces of work of users
	urgentAt atomic.Int64 // when urgent mail passed last, in nanoseconds since 1970; 0: never
}

// New returns a scheduler that leaves one processor to other work.
func New() *Scheduler { return &Scheduler{cpu: make(chan struct{}, Parallelism())} }

// Parallelism returns how many processors low-priority work may keep busy: all but one, and at least one.
func Parallelism() int { return max(1, runtime.GOMAXPROCS(0)-1) }

// Compute runs f, which computes for milliseconds and waits for nothing, as low-priority
// work. It waits until a processor may be used for it.
func (s *Scheduler) Compute(f func()) {
	s.cpu <- struct{}{}
	defer func() { <-s.cpu }()
	f()
}

// Work is a piece of low-priority work of a user, which computes now and then.
type Work struct {
	scheduler *Scheduler
	user      string
	number    int64
}

// Work returns new work of a user. Older work of the user computes before it.
func (s *Scheduler) Work(user string) *Work { return &Work{s, user, s.begun.Add(1)} }

// Enter waits until the work may compute. One piece of each user runs at a time, so that a user who asks for much delays
// no other. The oldest goes first, so that it is done before the next one needs memory. While urgent mail passes, the
// user's next piece waits as in Backoff. The caller must call leave, and wait for nothing meanwhile. Enter returns the
// error of ctx if that ends.
func (w *Work) Enter(ctx context.Context) (leave func(), err error) {
	s := w.scheduler
	end, err := s.turns.Take(ctx, w.user, w.number)
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

// Turns gives each user one turn at a time. Its zero value is ready to use, by many goroutines at once.
type Turns struct {
	mu    sync.Mutex
	users map[string]*[]waiting // those who wait for the turn, the next one first; no entry: the turn is free
}

// waiting is work that waits for its turn.
type waiting struct {
	number int64
	turn   chan struct{} // closed when it has the turn
}

// Take waits for the turn of a user. The lowest number is next, and of equal ones the first. The caller must call end
// once. The error is that of ctx.
func (t *Turns) Take(ctx context.Context, user string, number int64) (end func(), err error) {
	end = func() { t.end(user) }
	own := waiting{number, make(chan struct{})}
	if !t.queue(user, own) {
		return end, nil
	}
	select {
	case <-own.turn:
		return end, nil
	case <-ctx.Done():
		t.leave(user, own)
		return nil, ctx.Err()
	}
}

// queue queues work, or returns false if it has the turn already.
func (t *Turns) queue(user string, own waiting) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	others := t.users[user]
	if others == nil {
		if t.users == nil {
			t.users = map[string]*[]waiting{}
		}
		t.users[user] = new([]waiting)
		return false
	}
	later := func(q waiting, n int64) int { return cmp.Compare(q.number, n) }
	at, _ := slices.BinarySearchFunc(*others, own.number+1, later)
	*others = slices.Insert(*others, at, own)
	return true
}

// leave removes work that waits no longer. If it has just got the turn, the next one gets it.
func (t *Turns) leave(user string, own waiting) {
	t.mu.Lock()
	others := t.users[user]
	at := slices.Index(*others, own)
	if at >= 0 {
		*others = slices.Delete(*others, at, at+1)
	}
	t.mu.Unlock()
	if at < 0 {
		t.end(user)
	}
}

// end gives the turn of a user to the next one.
func (t *Turns) end(user string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	others := t.users[user]
	if len(*others) == 0 {
		delete(t.users, user)
		return
	}
	close((*others)[0].turn)
	*others = slices.Delete(*others, 0, 1)
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

// Backoff pauses low-priority work after a piece of it that took so long, while urgent mail passes: three times as long
// as that took, and half a second at most. Without urgent mail it returns at once. It ends with ctx.
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

// WithLow marks all that is done under the context as low-priority work, so that a store serves other requests first.
func WithLow(ctx context.Context) context.Context { return context.WithValue(ctx, lowKey{}, true) }

// IsLow reports whether what is done under the context is low-priority work.
func IsLow(ctx context.Context) bool { return ctx.Value(lowKey{}) != nil }
