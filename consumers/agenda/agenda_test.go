package agenda

import (
	"context"
	"iter"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store/memory"
)

// countingStore counts the agenda's reads and writes.
type countingStore struct {
	models.Store
	agendas, writes, batches atomic.Int64
	reading, mostReading     atomic.Int64 // reads of batches that run at once
}

func (s *countingStore) Agenda(
	ctx context.Context,
	shard int,
	from, to time.Time,
) iter.Seq2[models.AgendaEntry, error] {
	s.agendas.Add(1)
	return s.Store.Agenda(ctx, shard, from, to)
}

func (s *countingStore) Schedule(ctx context.Context, entries ...models.AgendaEntry) error {
	s.writes.Add(1)
	return s.Store.Schedule(ctx, entries...)
}

func (s *countingStore) SetAgendaMark(ctx context.Context, shard int, at time.Time) error {
	s.writes.Add(1)
	return s.Store.SetAgendaMark(ctx, shard, at)
}

func (s *countingStore) Batch(ctx context.Context, id models.ID) (models.Batch, error) {
	s.batches.Add(1)
	n := s.reading.Add(1)
	defer s.reading.Add(-1)
	for most := s.mostReading.Load(); n > most && !s.mostReading.CompareAndSwap(most, n); most = s.mostReading.Load() {
	}
	return s.Store.Batch(ctx, id)
}

// newCountingFixture returns a fixture that holds all shards of a counting store.
func newCountingFixture(t *testing.T) (*fixture, *countingStore) {
	t.Helper()
	s := &countingStore{Store: memory.Open(t)}
	f := newFixture(t, s, inproctest.New(t, "sg"), testConfig())
	f.acquireShards(t.Context())
	require.Equal(t, s.Shards(), f.held())
	return f, s
}

func (f *fixture) workShards(t *testing.T) {
	t.Helper()
	for _, s := range f.shards {
		require.NoError(t, f.workShard(t.Context(), s))
	}
}

// TestDueEntriesAreReconciledOnce: a thousand entries that are due at the same time are
// reconciled a few at once, and each is reconciled and announced once.
func TestDueEntriesAreReconciledOnce(t *testing.T) {
	t.Parallel()
	const n = 1000
	f, s := newCountingFixture(t)
	due := time.Now().Add(-time.Second)
	for range n {
		f.put(t, models.Bulk, due)
	}
	for range 3 {
		f.workShards(t)
	}
	require.EqualValues(t, n, s.batches.Load())
	require.LessOrEqual(t, s.mostReading.Load(), int64(reconcileAtOnce))
	require.Equal(t, map[models.Lane]int{models.Bulk: n}, nonZero(f.announced(t)))
}

// nonZero removes the zeros from counts.
func nonZero(counts map[models.Lane]int) map[models.Lane]int {
	for lane, n := range counts {
		if n == 0 {
			delete(counts, lane)
		}
	}
	return counts
}

// TestIdleAgendaIsCheap: while nothing is due, work on a shard costs one read and no write.
func TestIdleAgendaIsCheap(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, s := newCountingFixture(t)
		shards := int64(len(f.shards))
		f.workShards(t) // reads again what slow writers may have written
		s.agendas.Store(0)
		s.writes.Store(0)
		f.inbox.sweeps.Store(0)
		const rounds = 20
		for range rounds {
			time.Sleep(f.cfg.AgendaPoll)
			f.workShards(t)
		}
		require.LessOrEqual(t, s.agendas.Load(), rounds*shards+2*shards, "one each, and a few for late writes")
		require.LessOrEqual(t, f.inbox.sweeps.Load(), shards)
		require.LessOrEqual(t, s.writes.Load(), shards, "the marks, every few seconds")
		require.Zero(t, s.batches.Load())
	})
}

// entries is a store with nothing but an agenda.
type entries struct {
	models.Store
	all     []models.AgendaEntry
	batches atomic.Int64
}

func (s *entries) Shards() int { return 1 }

func (s *entries) Agenda(context.Context, int, time.Time, time.Time) iter.Seq2[models.AgendaEntry, error] {
	return func(yield func(models.AgendaEntry, error) bool) {
		for i := range s.all {
			if !yield(s.all[i], nil) {
				return
			}
		}
	}
}

func (s *entries) Batch(context.Context, models.ID) (models.Batch, error) {
	s.batches.Add(1)
	return models.Batch{}, models.ErrNotFound
}

func (s *entries) Schedule(context.Context, ...models.AgendaEntry) error { return nil }

// TestReconcileWaitsForUrgentBacklog: while missed urgent mail is being announced, the
// agenda reconciles nothing, because that would delay the announcements.
func TestReconcileWaitsForUrgentBacklog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &entries{}
		for range 10 {
			s.all = append(
				s.all,
				models.AgendaEntry{Due: time.Now(), Kind: models.LookAtBatch, ID: models.NewBatchID(time.Now()), Chunks: 1},
			)
		}
		f := newFixture(t, s, nil, testConfig())
		f.shards[0].held.Store(true)
		reconcile := func(ctx context.Context) <-chan error {
			done := make(chan error, 1)
			go func() { done <- f.reconcileDue(ctx, f.shards[0], time.Time{}, time.Now().Add(time.Second)) }()
			synctest.Wait()
			return done
		}

		open := f.urgentFirst.shut()
		done := reconcile(t.Context())
		require.Zero(t, s.batches.Load())
		open()
		require.NoError(t, <-done)
		require.EqualValues(t, 10, s.batches.Load())
		open() // a second call does nothing

		defer f.urgentFirst.shut()()
		ctx, cancel := context.WithCancel(t.Context())
		f.shards[0].handled.forget(time.Now().Add(time.Hour))
		done = reconcile(ctx)
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
		require.EqualValues(t, 10, s.batches.Load(), "no more were reconciled")
	})
}

// TestLags: the agenda is behind from the moment at which a worker takes over a shard that
// was read long ago, until it has read it. The inbox is behind until no post is
// unprocessed.
func TestLags(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, cfg := memory.Open(t), testConfig()
		cfg.InboxAge = time.Nanosecond // sweep each time
		f := newFixture(t, store, inproctest.New(t, "sg"), cfg)
		now := time.Now()
		for _, s := range f.shards {
			require.NoError(t, store.SetAgendaMark(t.Context(), s.n, now.Add(-time.Hour)))
			require.NoError(t, f.acquireShard(t.Context(), s))
		}
		inbox, agenda := f.Lags(now)
		require.Zero(t, inbox)
		require.InDelta(t, time.Hour, agenda, float64(time.Second))
		f.inbox.oldest = now.Add(-10 * time.Minute)
		f.workShards(t)
		inbox, agenda = f.Lags(time.Now())
		require.InDelta(t, 10*time.Minute, inbox, float64(5*time.Second))
		require.Less(t, agenda, 5*time.Second)
		f.inbox.oldest = time.Time{}
		f.workShards(t)
		inbox, _ = f.Lags(time.Now())
		require.Zero(t, inbox)
	})
}
