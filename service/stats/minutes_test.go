package stats

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store/memory"
)

// TestLastHour: the last hour has 60 minutes, each with the states of the mail that was accepted in it.
func TestLastHour(t *testing.T) {
	t.Parallel()
	store := memory.Open(t)
	s := New(Deps{Store: store})
	now := time.Date(2026, 11, 28, 10, 30, 20, 0, time.UTC)
	put := func(user string, ago time.Duration, sum models.Summary) {
		sum.Version = 1
		id := models.NewBatchID(now.Add(-ago))
		require.NoError(t, store.PutSummaries(t.Context(), models.ChunkSummary{User: user, Chunk: id, Summary: sum}))
		for _, l := range models.Levels {
			err := store.RollUp(t.Context(), models.SpanOf(user, l, id.Time()))
			require.NoError(t, err)
		}
	}
	put("ann", 0, models.Summary{Accepted: 3, Queued: 2, Sent: 1})
	put("ann", 30*time.Second, models.Summary{Accepted: 5, Success: 4, Failed: 1})
	put("ann", 80*time.Second, models.Summary{Accepted: 1, Cancelled: 1}) // 10:29, too
	put("ann", 59*time.Minute, models.Summary{Accepted: 7, Success: 7})   // 09:31, the first
	put("ann", 60*time.Minute, models.Summary{Accepted: 9, Success: 9})   // 09:30, before it
	put("bob", 0, models.Summary{Accepted: 2, Failed: 2})
	from, ann, err := s.lastHour(t.Context(), []string{"ann"}, now)
	require.NoError(t, err)
	require.Equal(t, time.Date(2026, 11, 28, 9, 31, 0, 0, time.UTC), from)
	require.Len(t, ann, 60)
	for i, got := range ann {
		want := map[int]client.Counts{
			0:  {Accepted: 7, Delivered: 7},
			58: {Accepted: 6, Delivered: 4, Failed: 1, Cancelled: 1},
			59: {Accepted: 3, Queued: 2, Sent: 1},
		}[i]
		require.Equal(t, want, client.Counts{
			Accepted: got.Accepted, Queued: got.Queued, Sent: got.Sent, Delivered: got.Delivered, Failed: got.Failed,
			Cancelled: got.Cancelled,
		}, "minute %d", i)
	}
	_, all, err := s.lastHour(t.Context(), []string{"ann", "bob"}, now)
	require.NoError(t, err)
	require.EqualValues(t, 5, all[59].Accepted)
	require.EqualValues(t, 2, all[59].Failed)
}
