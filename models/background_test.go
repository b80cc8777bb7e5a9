package models

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

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
