package agenda

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store/memory"
)

// TestScheduledBatchIsDueInTime: a batch that is scheduled is reconciled once after it was stored, and then exactly
// at its time.
func TestScheduledBatchIsDueInTime(t *testing.T) {
	t.Parallel()
	f := newFixture(t, memory.Open(t), inproctest.New(t, "sg"), testConfig())
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

// TestMovedBatchIsDueInTime: an entry of the time that a batch had before leads to one at its new time, whichever is
// earlier, and announces nothing.
func TestMovedBatchIsDueInTime(t *testing.T) {
	t.Parallel()
	f := newFixture(t, memory.Open(t), inproctest.New(t, "sg"), testConfig())
	f.acquireShards(t.Context())
	now := time.Now().UTC().Truncate(time.Millisecond)
	day := 24 * time.Hour
	for _, days := range []int{100, 300} {
		old, at := now.Add(200*day), now.Add(time.Duration(days)*day+123*time.Millisecond)
		id := f.putBatch(t, now, func(b *models.Batch) { b.DeliverAt, b.ExpiresAt = old, old.Add(time.Hour) })
		done, err := f.Follower.Append(t.Context(), &models.Command{
			Kind:     models.RescheduleBatch,
			Batch:    id,
			Schedule: &models.Schedule{DeliverAt: at, ExpiresAt: at.Add(time.Hour)},
		}, nil)
		require.NoError(t, err)
		require.True(t, done)
		require.NoError(t, f.reconcile(t.Context(), models.AgendaEntry{
			Due:    old,
			Kind:   models.LookAtBatch,
			ID:     id,
			User:   "u",
			Chunks: 1,
			Round:  1,
		}))
		due := map[time.Time]int{}
		for e, err := range f.store.Agenda(t.Context(), id.Shard(f.store.Shards()), now.Add(day), now.Add(400*day)) {
			require.NoError(t, err)
			if e.ID == id {
				due[e.Due.UTC()]++
			}
		}
		require.Equal(t, map[time.Time]int{at: 1}, due)
		require.Zero(t, f.announced(t)[models.Bulk])
	}
}

// TestBatchIsDueAtEachOfItsTimes: a batch whose recipients have different times is one entry of the agenda, which is
// due at the next of them. A reconcile announces the chunks whose time has come, and no other.
func TestBatchIsDueAtEachOfItsTimes(t *testing.T) {
	t.Parallel()
	f := newFixture(t, memory.Open(t), inproctest.New(t, "sg"), testConfig())
	f.acquireShards(t.Context())
	now := time.Now().UTC().Truncate(time.Millisecond)
	for _, c := range []struct {
		minutes   []int // until the times of the batch, and of three chunks with times of their own
		announced int   // chunks
		next      int   // minutes until the agenda is due again; 0: at the recheck of what was announced
	}{
		{[]int{600, 900, 800, 900}, 0, 600},
		{[]int{900, 800, 600, 600}, 0, 600},
		{[]int{600, -1, 800, 900}, 1, 0},
		{[]int{-5, 30, 20, -1}, 2, 20},
		{[]int{20, 30, -5, 40}, 1, 20},
		{[]int{-1, -1, -2, -3}, 4, 0},
	} {
		at := func(n int) time.Time { return now.Add(time.Duration(n)*time.Minute + 123*time.Millisecond) }
		id := f.putBatch(t, now, func(b *models.Batch) {
			b.DeliverAt, b.ExpiresAt = at(c.minutes[0]), now.AddDate(0, 0, 9)
			for n := 1; n < len(c.minutes); n++ {
				own := models.Schedule{DeliverAt: at(c.minutes[n]), ExpiresAt: b.ExpiresAt}
				b.Own = append(b.Own, models.OwnTimes{Schedule: own, From: n})
				rs := []models.Recipient{{Email: "u@x.test"}}
				require.NoError(t, f.store.PutChunk(t.Context(), models.Chunk{ID: b.ID.Chunk(n), Recipients: rs}))
			}
			b.Chunks, b.Recipients, b.Sizes = 4, 4, []int{1, 1, 1, 1}
		})
		before := f.announced(t)[models.Bulk]
		entry := models.AgendaEntry{Due: now, Kind: models.LookAtBatch, ID: id, Chunks: 4, Round: 1}
		require.NoError(t, f.reconcile(t.Context(), entry))
		require.Equal(t, c.announced, f.announced(t)[models.Bulk]-before, "%v", c)
		var due []time.Time
		shard := id.Shard(f.store.Shards())
		for e, err := range f.store.Agenda(t.Context(), shard, now.Add(time.Second), now.AddDate(0, 0, 9)) {
			require.NoError(t, err)
			if e.ID == id {
				due = append(due, e.Due.UTC())
			}
		}
		require.Len(t, due, 1, "%v", c)
		if c.next > 0 {
			require.Equal(t, at(c.next), due[0], "%v", c)
		} else {
			require.True(t, due[0].Before(at(150)), "%v", c)
		}
	}
}

// TestStoppedRecipientsExpire: a batch that is stopped is not looked into before its mail expires, by the times of each
// recipient.
func TestStoppedRecipientsExpire(t *testing.T) {
	t.Parallel()
	f := newFixture(t, memory.Open(t), inproctest.New(t, "sg"), testConfig())
	f.acquireShards(t.Context())
	now := time.Now()
	id := f.putBatch(t, now, func(b *models.Batch) {
		rs := []models.Recipient{{Email: "u@x.test"}}
		require.NoError(t, f.store.PutChunk(t.Context(), models.Chunk{ID: b.ID.Chunk(1), Recipients: rs}))
		b.Chunks, b.Recipients, b.Sizes = 2, 2, []int{1, 1}
		b.Own = []models.OwnTimes{{Schedule: models.Schedule{ExpiresAt: now.Add(-time.Second)}, From: 1}}
		for n := range 2 {
			sum := models.Resolve(1, nil, nil).Summary()
			require.NoError(t, f.store.PutSummaries(t.Context(),
				models.ChunkSummary{User: b.User, Chunk: b.ID.Chunk(n), Summary: sum}))
		}
	})
	b, err := f.store.Batch(t.Context(), id)
	require.NoError(t, err)
	done, err := f.Follower.Append(t.Context(), &models.Command{Kind: models.StopBatch, Batch: id}, nil)
	require.NoError(t, err)
	require.True(t, done)
	require.NoError(t, f.reconcile(t.Context(), models.AgendaEntry{
		Due:    now,
		Kind:   models.LookAtBatch,
		ID:     id,
		User:   b.User,
		Chunks: 2,
		Round:  1,
	}))
	for n, want := range []int{0, 1} {
		entries, _, err := f.store.Record(t.Context(), id.Chunk(n))
		require.NoError(t, err)
		require.Len(t, entries, want)
	}
}
