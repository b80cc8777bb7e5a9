package provider

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMemory: calls wait for memory until others give it back. A message that is larger than the part of a provider
// takes all of it. A part is never less than what the largest message takes.
func TestMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(400_000_000, 4)
		require.EqualValues(t, 100_000_000, m.part)
		require.EqualValues(t, largestAttachments, newMemory(0, 2).part)
		first, err := m.Take(t.Context(), 25_000_000)
		require.NoError(t, err)
		second, err := m.Take(t.Context(), 5_000_000)
		require.NoError(t, err)
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = m.Take(soon, 10_000_000)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		second()
		go func() { time.Sleep(time.Minute); first() }()
		third, err := m.Take(t.Context(), 1<<40)
		require.NoError(t, err)
		third()
		require.True(t, m.free.TryAcquire(m.part), "all was given back")
	})
}
