package events

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store/memory"
)

// crowded is a broker in which very many posts wait for a worker.
type crowded struct{}

func (crowded) Depths(context.Context) ([]models.Depth, error) {
	return []models.Depth{{Queue: models.Queue{Kind: models.EventMessage}, Ready: 1_000_000}}, nil
}

// TestSweepWhilePostsWait: a sweep reports the oldest unprocessed post even while it
// announces none, because very many posts wait in the queue.
func TestSweepWhilePostsWait(t *testing.T) {
	t.Parallel()
	store := memory.Open(t)
	s := NewSweeper(testConfig(), store, crowded{}, nil, newProviders(t, jsonAdapter{}))
	now := time.Now()
	for _, ago := range []time.Duration{10 * time.Minute, time.Minute} {
		in := models.Inbox{ID: models.NewInboxID(now.Add(-ago)), Provider: "sg", Posts: []models.Post{{Body: []byte("[]")}}}
		require.NoError(t, store.PutInbox(t.Context(), in))
	}
	from := make([]time.Time, store.Shards())
	sweep := func() (age time.Duration) {
		for shard := range from {
			next, oldest, err := s.Sweep(t.Context(), shard, from[shard], now)
			require.NoError(t, err)
			from[shard] = next
			if !oldest.IsZero() {
				age = max(age, now.Sub(oldest))
			}
		}
		return age
	}
	processed := func(ago time.Duration) {
		for shard := range from {
			for in, err := range store.Pending(t.Context(), shard, time.Time{}, now.Add(-ago)) {
				require.NoError(t, err)
				require.NoError(t, store.InboxDone(t.Context(), in.ID))
			}
		}
	}
	require.InDelta(t, 10*time.Minute, sweep(), float64(time.Second))
	processed(5 * time.Minute)
	require.InDelta(t, time.Minute, sweep(), float64(time.Second))
	processed(0)
	require.Zero(t, sweep())
}
