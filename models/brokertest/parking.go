package brokertest

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

func waitParked(t *testing.T, b models.Broker, n int) []models.Parked {
	t.Helper()
	var got []models.Parked
	require.Eventually(t, func() bool {
		var err error
		got, err = b.Parked(context.Background(), 100)
		return err == nil && len(got) == n
	}, patience, 50*time.Millisecond, "%d parked", n)
	return got
}

func parking(t *testing.T, open Open) {
	b := open(t, "sg")
	ctx := context.Background()
	var box inbox
	var parkIt atomic.Bool
	parkIt.Store(true)
	subscribe(t, b, bulk(), 1, func(_ context.Context, m models.Message) models.Disposition {
		if parkIt.Load() {
			return models.Park("cannot be read")
		}
		return box.handler(ctx, m)
	})
	m1, m2 := batch(models.Bulk), batch(models.Bulk)
	publish(t, b, m1, m2)
	for _, p := range waitParked(t, b, 2) {
		require.Equal(t, "cannot be read", p.Why)
		require.Equal(t, p.Message.Key(), p.Key)
		require.WithinDuration(t, time.Now(), p.At, time.Minute)
		require.Nil(t, p.Raw)
	}
	require.NoError(t, b.Purge(ctx), "which leaves the parking lot alone")
	waitParked(t, b, 2)
	one, err := b.Parked(ctx, 1)
	require.NoError(t, err)
	require.Len(t, one, 1)
	require.ErrorIs(t, b.Discard(ctx, "no such id"), models.ErrNotFound)
	require.ErrorIs(t, b.Unpark(ctx, "no such id"), models.ErrNotFound)
	parkIt.Store(false)
	for _, p := range waitParked(t, b, 2) {
		if p.Message.ID == m1.ID {
			require.NoError(t, b.Discard(ctx, p.ID))
		} else {
			require.NoError(t, b.Unpark(ctx, p.ID))
		}
	}
	same(t, m2, box.wait(t, 1)[0])
	waitParked(t, b, 0)
}

// longReasons: what a handler says or dies of may be of any length and no text at
// all; the message is parked with its beginning, and everything else goes on.
func longReasons(t *testing.T, open Open) {
	b := open(t, "sg")
	began := time.Now()
	long := strings.Repeat("ä", 200_000) + "\xff"
	said, died, after := batch(models.Bulk), batch(models.Bulk), batch(models.Bulk)
	var box inbox
	subscribe(t, b, bulk(), 2, func(ctx context.Context, m models.Message) models.Disposition {
		switch m.ID {
		case said.ID:
			return models.Park("said " + long)
		case died.ID:
			panic("died " + long)
		}
		return box.handler(ctx, m)
	})
	publish(t, b, said, died)
	for _, p := range waitParked(t, b, 2) {
		require.True(t, utf8.ValidString(p.Why))
		require.LessOrEqual(t, len(p.Why), models.MaxParkedWhy)
		what := map[models.ID]string{said.ID: "said ää", died.ID: "died ää"}[p.Message.ID]
		require.NotEmpty(t, what)
		require.Contains(t, p.Why, what)
		require.WithinRange(t, p.At, began.Truncate(time.Second), time.Now(), "when it was parked, by whichever way")
	}
	publish(t, b, after)
	same(t, after, box.wait(t, 1)[0])
}
