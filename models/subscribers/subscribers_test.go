package subscribers_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/subscribers"
)

// TestWakesSince: a subscriber gets the users that are woken since it began, until its context ends.
func TestWakesSince(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := subscribers.New(t.Context())
		var got []string
		ctx, end := context.WithCancel(t.Context())
		go g.ServeWakes(ctx, 5, func(users []string) { got = append(got, users...) })
		synctest.Wait()
		g.Wake(4, []string{"early"})
		g.Wake(5, []string{"ann", "bob"})
		synctest.Wait()
		end()
		synctest.Wait()
		g.Wake(6, []string{"late"})
		synctest.Wait()
		require.Equal(t, []string{"ann", "bob"}, got)
	})
}

// TestClose: Close ends subscriptions and returns when they have left, and none begins after it.
func TestClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := subscribers.New(t.Context())
		ctx, leave, err := g.Join(t.Context())
		require.NoError(t, err)
		closed := false
		go func() { closed = g.Close() }()
		<-ctx.Done()
		synctest.Wait()
		require.False(t, closed, "the subscription has not left")
		leave()
		synctest.Wait()
		require.True(t, closed)
		require.False(t, g.Close(), "it was closed before")
		_, _, err = g.Join(t.Context())
		require.ErrorIs(t, err, models.ErrClosed)
		require.ErrorIs(t, g.Open(), models.ErrClosed)
	})
}
