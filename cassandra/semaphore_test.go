package cassandra

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
)

// Only a few statements with low priority may run beside others, and they must not delay
// the others.
func TestLowPriorityIsLimited(t *testing.T) {
	t.Parallel()
	r := &runner{timeout: time.Minute, limit: &semaphore{}}
	ctx := priority.WithLow(t.Context())
	for _, beside := range []bool{true, false} {
		most, over := lowAlone, make(chan struct{})
		var all, others sync.WaitGroup
		if beside {
			most = lowBeside
			begun := make(chan struct{})
			others.Go(func() {
				if err := r.try(t.Context(), plain, func() error { close(begun); <-over; return nil }); err != nil {
					t.Error(err)
				}
			})
			<-begun
		}
		var under, sent atomic.Int64
		var full sync.WaitGroup
		full.Add(most)
		on := make(chan struct{})
		for range 10 * lowAlone {
			all.Go(func() {
				err := r.try(ctx, plain, func() error {
					defer under.Add(-1)
					if n := under.Add(1); n > int64(most) {
						t.Errorf("%d at once, with others: %v", n, beside)
					}
					if sent.Add(1) <= int64(most) {
						full.Done()
					}
					<-on
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		full.Wait()
		require.NoError(t, r.try(t.Context(), plain, func() error {
			return nil
		}), "a statement with normal priority waits for none of them")
		late, cancel := context.WithCancel(ctx)
		cancel()
		require.ErrorIs(t, r.try(late, deciding, func() error { t.Error("sent"); return nil }), models.ErrUnavailable)
		close(on)
		all.Wait()
		close(over)
		others.Wait()
		require.EqualValues(t, 10*lowAlone, sent.Load())
		require.Zero(t, r.limit.low)
		require.Zero(t, r.limit.others)
		require.Empty(t, r.limit.waiting)
	}
}

// When no other statement runs any more, more statements with low priority must run.
func TestLowPriorityUsesIdleCapacity(t *testing.T) {
	t.Parallel()
	s := &semaphore{}
	end, err := s.acquire(t.Context())
	require.NoError(t, err)
	ctx := priority.WithLow(t.Context())
	ends := make(chan func(), lowAlone+1)
	for range lowAlone + 1 {
		go func() {
			end, err := s.acquire(ctx)
			if err != nil {
				t.Error(err)
			}
			ends <- end
		}()
	}
	var under []func()
	for range lowBeside {
		under = append(under, <-ends)
	}
	require.Empty(t, ends)
	end()
	for range lowAlone - lowBeside {
		under = append(under, <-ends)
	}
	require.Empty(t, ends)
	for _, end := range under {
		end()
	}
	(<-ends)()
	require.Zero(t, s.low)
}
