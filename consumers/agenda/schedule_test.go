package agenda

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/sqlite/sqlitetest"
)

// TestScheduledBatchIsDueInTime: a batch that is scheduled is reconciled once after it was stored, and then exactly
// at its time.
func TestScheduledBatchIsDueInTime(t *testing.T) {
	t.Parallel()
	f := newFixture(t, sqlitetest.Open(t), inproctest.New(t, "sg"), testConfig())
	f.acquireShards(t.Context())
	now := time.Now().UTC().Truncate(time.Millisecond)
	at := now.AddDate(0, 0, 200).Add(123 * time.Millisecond)
	id := f.putBatch(t, now, func(b *models.Batch) { b.DeliverAt, b.ExpiresAt = at, at.Add(time.Hour) })
	entries := func(from, to time.Time) (out []models.AgendaEntry) {
		for e, err := range f.store.Agenda(t.Context(), id.Shard(f.store.Shards()), from, to) {
			require.NoError(t, err)
			out = append(out, e)
		}
		return out
	}
	first := entries(now.Add(-time.Hour), now.Add(time.Hour))
	require.Len(t, first, 1)
	require.NoError(t, f.reconcile(t.Context(), first[0]))
	require.Zero(t, f.announced(t)[models.Bulk])
	next := entries(now.Add(time.Millisecond), at.AddDate(0, 0, 30))
	require.Len(t, next, 1)
	require.Equal(t, at, next[0].Due.UTC())
	require.NoError(t, f.reconcile(t.Context(), next[0]), "an early reconcile changes nothing")
	require.Equal(t, at, entries(now.Add(time.Millisecond), at.AddDate(0, 0, 30))[0].Due.UTC())
	require.Zero(t, f.announced(t)[models.Bulk])
}
