package agenda

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store/memory"
)

// timedStore notes when batches are read.
type timedStore struct {
	models.Store
	read map[models.ID]time.Time
}

func (s *timedStore) Batch(ctx context.Context, id models.ID) (models.Batch, error) {
	if _, ok := s.read[id]; !ok {
		s.read[id] = time.Now()
	}
	return s.Store.Batch(ctx, id)
}

// TestEntryIsReconciledWhenDue: an entry that is due between two polls is reconciled then, and not at the next poll.
func TestEntryIsReconciledWhenDue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &timedStore{Store: memory.Open(t), read: map[models.ID]time.Time{}}
		cfg := testConfig()
		cfg.AgendaPoll = 10 * time.Second
		f := newFixture(t, s, inproctest.New(t, "sg"), cfg)
		stop := f.run(t)
		synctest.Wait()
		due := map[models.ID]time.Time{}
		for _, after := range []time.Duration{12 * time.Second, 13 * time.Second, 25 * time.Second} {
			at := time.Now().Add(after)
			due[f.put(t, models.Bulk, at)] = at
		}
		time.Sleep(30 * time.Second)
		stop()
		require.Len(t, s.read, len(due))
		for id, at := range due {
			require.InDelta(t, 0, s.read[id].Sub(at), float64(cfg.AgendaPoll/pollParts), "due at %s, read at %s", at, s.read[id])
		}
	})
}

// TestBatchIsFoundWhileItIsStored: if the time of a batch comes while it is being stored, the agenda looks for it each
// second, and not only after a recheck.
func TestBatchIsFoundWhileItIsStored(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, memory.Open(t), inproctest.New(t, "sg"), testConfig())
		created := time.Now()
		id := models.NewBatchID(created)
		time.Sleep(4200 * time.Millisecond)
		entry := models.AgendaEntry{Due: time.Now(), Kind: models.LookAtBatch, ID: id, User: "u", Chunks: 1}
		for range 2 { // two workers
			require.NoError(t, f.reconcile(t.Context(), entry))
		}
		var due []time.Duration
		for e, err := range f.store.Agenda(t.Context(), id.Shard(f.store.Shards()), time.Now(), created.Add(24*time.Hour)) {
			require.NoError(t, err)
			due = append(due, e.Due.Sub(created))
		}
		require.Equal(t, []time.Duration{5 * time.Second}, due)
	})
}
