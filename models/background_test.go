package models

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

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
		require.Zero(t, rest(ctx, time.Second), "nobody is in a hurry")

		UrgentMail()
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
