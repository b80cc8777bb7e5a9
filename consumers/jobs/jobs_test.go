package jobs

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// leases keeps leases in memory.
type leases struct {
	mu     sync.Mutex
	holder map[string]string
	until  map[string]time.Time
	fails  error
}

func (l *leases) Lease(_ context.Context, name, holder string, ttl time.Duration) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fails != nil {
		return false, l.fails
	}
	if now := time.Now(); l.holder[name] != holder && now.Before(l.until[name]) {
		return false, nil
	}
	l.holder[name], l.until[name] = holder, time.Now().Add(ttl)
	return true, nil
}

func newLeases() *leases { return &leases{holder: map[string]string{}, until: map[string]time.Time{}} }

// TestOneWorkerAtATime: one worker does all rounds until it stops or is killed, and then another one does.
func TestOneWorkerAtATime(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ killed, keep bool }{"stopped": {}, "killed": {killed: true},
		"keeps": {keep: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := newLeases()
				var rounds, idle [2]atomic.Int64 // of workers a and b
				start := func(n int) (stop func()) {
					ctx, cancel := context.WithCancel(t.Context())
					done := make(chan struct{})
					r := &Runner{Store: store, Worker: string(rune('a' + n)), Log: slog.New(slog.DiscardHandler)}
					go func() {
						defer close(done)
						r.Run(ctx, &Job{Lease: "job", TTL: 10 * time.Second, Every: time.Second, Keep: c.keep,
							Round: func(context.Context, time.Time) error { rounds[n].Add(1); return nil },
							Idle:  func() { idle[n].Add(1) },
						})
					}()
					return func() { cancel(); <-done }
				}
				stopA := start(0)
				time.Sleep(1500 * time.Millisecond)
				stopB := start(1)
				time.Sleep(2750 * time.Millisecond)
				synctest.Wait()
				require.EqualValues(t, 4, rounds[0].Load())
				require.Zero(t, rounds[1].Load())
				require.EqualValues(t, 2, idle[1].Load())
				if c.killed {
					store.mu.Lock()
					store.fails = errors.New("killed")
					store.mu.Unlock()
				}
				stopA()
				store.mu.Lock()
				store.fails = nil
				store.mu.Unlock()
				time.Sleep(2 * time.Second)
				synctest.Wait()
				require.Equal(t, c.killed || c.keep, rounds[1].Load() == 0)
				time.Sleep(10 * time.Second)
				synctest.Wait()
				require.NotZero(t, rounds[1].Load())
				require.EqualValues(t, 4, rounds[0].Load())
				stopB()
			})
		})
	}
}

// TestRoundsGoOn: a round that is not due takes no lease, and one that fails is logged and followed by another.
func TestRoundsGoOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		store := newLeases()
		r := &Runner{Store: store, Worker: "a", Log: slog.New(slog.NewTextHandler(&log, nil))}
		ctx, cancel := context.WithTimeout(t.Context(), 4500*time.Millisecond)
		defer cancel()
		asked, rounds := 0, 0
		r.Run(ctx, &Job{Lease: "job", TTL: time.Minute, Every: time.Second, Doing: "count sheep",
			Due: func(context.Context, time.Time) (bool, error) {
				asked++
				require.Equal(t, asked == 3 || asked == 4, store.holder["job"] == "a")
				if asked == 2 {
					return true, nil
				}
				return asked > 3, nil
			},
			Round: func(context.Context, time.Time) error {
				rounds++
				return map[bool]error{true: errors.New("broken")}[rounds == 1]
			},
		})
		require.Equal(t, 2, rounds)
		require.Contains(t, log.String(), "cannot count sheep; will retry")
		require.Contains(t, log.String(), "broken")
		require.True(t, time.Now().After(store.until["job"]) || time.Now().Equal(store.until["job"]), "it was given back")
	})
}
