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

// TestUrgentBacklogFirst: missed urgent mail is always announced, bulk mail only as far as there is room. Mail that was
// announced before the outage is not.
func TestUrgentBacklogFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, memory.Open(t), inproctest.New(t, "sg"), testConfig())
		begin, now := time.Now(), time.Now()
		for i := range 40 {
			lane := models.Bulk
			if i%4 == 3 {
				lane = models.Urgent
			}
			now = now.Add(time.Millisecond) // so that no two are due at the same time
			f.put(t, lane, now.Add(f.cfg.Recheck))
		}
		announced := models.AgendaEntry{
			Due:    now.Add(f.cfg.Recheck),
			Kind:   models.LookAtBatch,
			ID:     models.NewBatchID(now),
			User:   models.NewUserID(),
			Chunks: 1,
			Lane:   models.Bulk,
			Round:  3,
		}
		require.NoError(t, f.store.Schedule(t.Context(), announced))
		for _, s := range f.shards {
			s.held.Store(true)
		}
		c := f.newBacklog(begin, false)
		c.begun = now.Add(time.Second)
		require.NoError(t, f.republish(t.Context(), c, 5))
		require.Equal(t, map[models.Lane]int{models.Urgent: 10, models.Bulk: 5}, f.announced(t))
		require.NoError(t, f.republish(t.Context(), c, 0))
		require.Equal(t, map[models.Lane]int{models.Urgent: 10, models.Bulk: 5}, f.announced(t))
		require.NotEmpty(t, c.left[1])
		require.NoError(t, f.republish(t.Context(), c, 1000))
		require.Equal(t, map[models.Lane]int{models.Urgent: 10, models.Bulk: 30}, f.announced(t))
		require.Empty(t, c.left[0])
		require.Empty(t, c.left[1])
	})
}
