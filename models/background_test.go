package models

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

// TestInBackground: one processor at least is left, and a panic gives its place back.
func TestInBackground(t *testing.T) {
	var at, seen atomic.Int64
	var all sync.WaitGroup
	for range 200 {
		all.Go(func() {
			defer func() { _ = recover() }()
			InBackground(func() {
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
	require.LessOrEqual(t, seen.Load(), int64(Background))
	require.Empty(t, background)
}

func TestWithBackground(t *testing.T) {
	t.Parallel()
	require.False(t, IsBackground(t.Context()))
	ctx, cancel := context.WithCancel(WithBackground(t.Context()))
	defer cancel()
	require.True(t, IsBackground(context.WithoutCancel(ctx)), "what is done on its behalf can wait, too")
}

// TestRest: work that can wait rests while urgent mail comes, and not else.
func TestRest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		rest := func(ctx context.Context, took time.Duration) time.Duration {
			began := time.Now()
			Rest(ctx, took)
			return time.Since(began)
		}
		time.Sleep(48 * time.Hour) // no other test's clock gets here: what follows is told to the whole program
		require.False(t, UrgentLately())
		require.Zero(t, rest(ctx, time.Second), "no urgent mail passes")

		OnItsWay(Bulk)
		require.False(t, UrgentLately())
		OnItsWay(Urgent)
		require.True(t, UrgentLately())
		require.Equal(t, 30*time.Millisecond, rest(ctx, 10*time.Millisecond))
		require.Equal(t, mostRest, rest(ctx, time.Minute))
		over, cancel := context.WithCancel(ctx)
		cancel()
		require.Zero(t, rest(over, time.Minute))

		time.Sleep(urgentLately)
		require.False(t, UrgentLately())
		require.Zero(t, rest(ctx, time.Second))

		urgentAt.Store(time.Now().Add(time.Hour).UnixNano())
		require.False(t, UrgentLately(), "the clock was set back")
	})
}
