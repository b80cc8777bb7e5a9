package priority

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestComputeLeavesAProcessor checks that one processor at least is left, and that a panic
// gives its place back.
func TestComputeLeavesAProcessor(t *testing.T) {
	s := New()
	var at, seen atomic.Int64
	var all sync.WaitGroup
	for range 200 {
		all.Go(func() {
			defer func() { _ = recover() }()
			s.Compute(func() {
				now := at.Add(1)
				defer at.Add(-1)
				for {
					before := seen.Load()
					if now <= before || seen.CompareAndSwap(before, now) {
						break
					}
				}
				runtime.Gosched()
				panic("of f")
			})
		})
	}
	all.Wait()
	require.LessOrEqual(t, seen.Load(), int64(Parallelism()))
	require.Empty(t, s.cpu)
}

// TestEnter checks that a user who asks for much waits for itself, and that no turn is lost.
func TestEnter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &Scheduler{cpu: make(chan struct{}, 2)}
		leave, err := s.Work("greedy").Enter(t.Context())
		require.NoError(t, err)
		waiting, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		for range 3 {
			go func() {
				_, err := s.Work("greedy").Enter(waiting)
				ended <- err
			}()
		}
		synctest.Wait()
		other, err := s.Work("other").Enter(t.Context())
		require.NoError(t, err, "another user does not wait for them")
		cancel()
		for range 3 {
			require.ErrorIs(t, <-ended, context.Canceled)
		}
		third, cancelThird := context.WithTimeout(t.Context(), time.Second)
		defer cancelThird()
		_, err = s.Work("third").Enter(third)
		require.ErrorIs(t, err, context.DeadlineExceeded, "both processors are taken")
		leave()
		other()
		again, err := s.Work("greedy").Enter(t.Context())
		require.NoError(t, err)
		again()
		require.Empty(t, s.cpu)
		require.Empty(t, s.turns.users)
	})
}

// TestEnterWhileUrgentMailPasses checks that the next piece of the same user waits then, and that of no other.
func TestEnterWhileUrgentMailPasses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &Scheduler{cpu: make(chan struct{}, 1)}
		compute := func(user string) (waited time.Duration) {
			began := time.Now()
			leave, err := s.Work(user).Enter(t.Context())
			require.NoError(t, err)
			waited = time.Since(began)
			time.Sleep(10 * time.Millisecond)
			leave()
			return waited
		}
		require.Zero(t, compute("greedy"))
		require.Zero(t, compute("greedy"), "no urgent mail passes")
		s.NoteUrgent()
		require.Zero(t, compute("greedy"))
		require.Zero(t, compute("other"))
		require.Equal(t, 20*time.Millisecond, compute("greedy"), "30 ms after its last piece; the other took 10 of them")
		time.Sleep(maxBackoff)
		s.turns.mu.Lock()
		defer s.turns.mu.Unlock()
		require.Empty(t, s.turns.users)
	})
}

func TestWithLow(t *testing.T) {
	t.Parallel()
	require.False(t, IsLow(t.Context()))
	ctx, cancel := context.WithCancel(WithLow(t.Context()))
	defer cancel()
	require.True(t, IsLow(context.WithoutCancel(ctx)), "what is done on its behalf can wait, too")
}

// TestBackoffWhileUrgentMailPasses checks that low-priority work pauses then, and only then.
func TestBackoffWhileUrgentMailPasses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, ctx := New(), t.Context()
		rest := func(ctx context.Context, took time.Duration) time.Duration {
			began := time.Now()
			s.Backoff(ctx, took)
			return time.Since(began)
		}
		require.False(t, s.UrgentLately())
		require.Zero(t, rest(ctx, time.Second), "no urgent mail passes")

		require.False(t, s.UrgentLately())
		s.NoteUrgent()
		require.True(t, s.UrgentLately())
		require.Equal(t, 30*time.Millisecond, rest(ctx, 10*time.Millisecond))
		require.Equal(t, maxBackoff, rest(ctx, time.Minute))
		over, cancel := context.WithCancel(ctx)
		cancel()
		require.Zero(t, rest(over, time.Minute))

		time.Sleep(urgentLately)
		require.False(t, s.UrgentLately())
		require.Zero(t, rest(ctx, time.Second))

		s.urgentAt.Store(time.Now().Add(time.Hour).UnixNano())
		require.False(t, s.UrgentLately(), "the clock was set back")
	})
}

// TestTheOldestWorkGoesFirst checks the order of a user's work, however long each has waited, and that work whose
// client has left gives way.
func TestTheOldestWorkGoesFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &Scheduler{cpu: make(chan struct{}, 2)}
		running, gone, second, third := s.Work("greedy"), s.Work("greedy"), s.Work("greedy"), s.Work("greedy")
		leave, err := running.Enter(t.Context())
		require.NoError(t, err)
		var order []string
		var all sync.WaitGroup
		enter := func(ctx context.Context, name string, w *Work) {
			all.Go(func() {
				if leave, err := w.Enter(ctx); err == nil {
					order = append(order, name)
					leave()
				}
			})
			synctest.Wait()
		}
		client, disconnect := context.WithCancel(t.Context())
		enter(t.Context(), "third", third)
		enter(client, "gone", gone)
		enter(t.Context(), "second", second)
		other, err := s.Work("other").Enter(t.Context())
		require.NoError(t, err, "another user waits for none of them")
		other()
		disconnect()
		synctest.Wait()
		leave()
		all.Wait()
		require.Equal(t, []string{"second", "third"}, order)
		require.Empty(t, s.turns.users)
		require.Empty(t, s.cpu)
	})
}

// TestALateTurnIsPassedOn checks that the turn of work whose client leaves at that moment is not lost.
func TestALateTurnIsPassedOn(t *testing.T) {
	t.Parallel()
	var s Turns
	end, err := s.Take(t.Context(), "greedy", 0)
	require.NoError(t, err)
	late, next := waiting{1, make(chan struct{})}, waiting{1, make(chan struct{})}
	require.True(t, s.queue("greedy", late))
	require.True(t, s.queue("greedy", next))
	end()
	s.leave("greedy", late)
	<-next.turn
	s.end("greedy")
	require.Empty(t, s.users)
}
