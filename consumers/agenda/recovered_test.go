package agenda

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store/memory"
)

// TestRecoveryFindsWhatWaits: after a recovery the agenda looks early at mail that was accepted before it. It reads
// none that was accepted since, and none that has ended.
func TestRecoveryFindsWhatWaits(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		shared bool
		after  time.Duration // from the recovery until the mail was accepted
		ended  bool
		reads  int
	}{
		"before":                       {after: -time.Millisecond, reads: 1},
		"before, other processes":      {after: -time.Millisecond, shared: true, reads: 1},
		"before, has ended":            {after: -time.Millisecond, ended: true},
		"after":                        {after: time.Millisecond},
		"after, by a clock ahead":      {after: time.Minute, shared: true, reads: 1},
		"after, by a clock far ahead":  {after: time.Minute + time.Millisecond, shared: true},
		"long before, other processes": {after: -30 * time.Second, shared: true, reads: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg, store := testConfig(), &readings{Store: memory.Open(t)}
				cfg.Recheck, cfg.Sole = time.Minute, !c.shared
				f := newFixture(t, store, inproctest.New(t, "sg"), cfg)
				for _, s := range f.shards {
					s.held.Store(true)
				}
				time.Sleep(time.Hour)
				f.Providers.All()[0].Health.Probe(1)
				accepted := f.Providers.RecoveryNoticed().Add(c.after)
				var user string
				id := f.putBatch(t, accepted.Add(cfg.Recheck), func(b *models.Batch) {
					user, b.ID = b.User, models.NewBatchID(accepted)
				})
				over := models.ChunkSummary{User: user, Chunk: id, Summary: models.Summary{Accepted: 1, Success: 1}}
				if c.ended {
					f.Counted([]models.ChunkSummary{over})
				}
				for lane := range lanes {
					worked, err := f.requeueRecovered(t.Context(), lane)
					require.NoError(t, err)
					require.True(t, worked)
				}
				require.Equal(t, c.reads, store.n)
				if !c.ended {
					return
				}
				for _, s := range f.shards {
					require.NoError(t, f.reconcileDue(t.Context(), s, accepted, accepted.Add(2*cfg.Recheck)))
				}
				require.Zero(t, store.n, "the early look forgot that the mail has ended")
				require.Empty(t, f.ended.batches, "nothing asks for it again")
			})
		})
	}
}
