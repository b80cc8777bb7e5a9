package consumers

import (
	"context"
	"iter"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/cluster"
	"github.com/safedelivr/safedelivr/models"
)

func (e *Engine) heldShards() (n int) {
	for _, s := range e.agenda.Shards {
		if s.Held.Load() {
			n++
		}
	}
	return n
}

// Each worker holds its part of the agenda, and what a worker held that is gone
// is held by the others.
func TestShardsAreShared(t *testing.T) {
	t.Parallel()
	r := emptyRig(t, nil)
	all := r.store.Shards()
	first := r.worker(fast())
	require.Eventually(t, func() bool { return first.heldShards() == all }, patience, time.Millisecond)

	second := r.worker(fast())
	stop := r.stop
	require.Eventually(
		t,
		func() bool { return first.heldShards() == (all+1)/2 && second.heldShards() == all/2 },
		patience,
		time.Millisecond,
	)
	for i := range first.agenda.Shards {
		require.NotEqual(
			t,
			first.agenda.Shards[i].Held.Load(),
			second.agenda.Shards[i].Held.Load(),
			"shard %d is held by one of them",
			i,
		)
	}

	stop()
	require.Eventually(t, func() bool { return first.heldShards() == all }, patience, time.Millisecond)
}

// A worker that makes up for what could not be announced keeps its shards until
// that is done: who comes knows nothing of it.
func TestShardsStayWhileCatchingUp(t *testing.T) {
	t.Parallel()
	r := emptyRig(t, nil)
	e, err := New(r.store, r.broker, nil, Config{Heartbeat: time.Hour})
	require.NoError(t, err)
	e.agenda.AcquireShards(t.Context())
	all := r.store.Shards()
	require.Equal(t, all, e.heldShards())
	require.NoError(t, e.cluster.Join(t.Context()))
	other := Config{Heartbeat: time.Hour}.withDefaults()
	require.NoError(t, cluster.New(r.store, other.cluster()).Join(t.Context())) // one came
	require.NoError(t, e.cluster.Join(t.Context()))
	e.dispatch.Outage.MarkUnannounced(time.Now())
	e.agenda.ReleaseSurplus(t.Context())
	require.Equal(t, all, e.heldShards())
	e.dispatch.Outage.CaughtUp(time.Now())
	e.agenda.ReleaseSurplus(t.Context())
	require.Equal(t, all/2, e.heldShards())
}

// leases is a store that counts how often the agenda's leases are taken and
// renewed, and whose batches cannot be read before the test says so.
type leases struct {
	models.Store
	asked   atomic.Int64
	reading chan struct{} // closed when a batch is being read
	once    sync.Once
	free    chan struct{}
}

func (s *leases) Lease(ctx context.Context, name, holder string, ttl time.Duration) (bool, error) {
	held, err := s.Store.Lease(ctx, name, holder, ttl)
	if held && err == nil && strings.HasPrefix(name, "agenda.") {
		s.asked.Add(1)
	}
	return held, err
}

func (s *leases) Batch(ctx context.Context, id models.ID) (models.Batch, error) {
	s.once.Do(func() { close(s.reading) })
	select {
	case <-s.free:
	case <-ctx.Done():
	}
	return s.Store.Batch(ctx, id)
}

// The work on one shard may take longer than a lease: a million entries may be
// due. Its worker keeps it, and all the others that it holds.
func TestLongWorkKeepsItsShards(t *testing.T) {
	t.Parallel()
	s := &leases{reading: make(chan struct{}), free: make(chan struct{})}
	p := newScripted("sg", always(models.Accepted))
	r := emptyRig(t, func(store models.Store) models.Store { s.Store = store; return s }, "sg")
	cfg := fast()
	cfg.Lease = 100 * time.Millisecond
	b := r.stored(models.Bulk, time.Now())
	r.engine = r.worker(cfg, p)
	<-s.reading
	began, all := s.asked.Load(), int64(len(r.engine.agenda.Shards))
	require.Eventually(t, func() bool { return s.asked.Load() >= began+10*all }, patience, time.Millisecond)
	close(s.free)
	r.done(b)
}

// entries is a store with nothing but an agenda.
type entries struct {
	models.Store
	all    []models.AgendaEntry
	looked atomic.Int64
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
	s.looked.Add(1)
	return models.Batch{}, models.ErrNotFound
}

func (s *entries) Schedule(context.Context, ...models.AgendaEntry) error { return nil }

// While urgent mail that was missed is being announced, the agenda looks at
// nothing: its looks would only make that slower.
func TestLooksWaitForUrgentMail(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &entries{}
		for range 10 {
			s.all = append(
				s.all,
				models.AgendaEntry{Due: time.Now(), Kind: models.LookAtBatch, ID: models.NewBatchID(time.Now()), Chunks: 1},
			)
		}
		e, err := New(s, nil, nil, fast())
		require.NoError(t, err)
		e.agenda.Shards[0].Held.Store(true)
		look := func(ctx context.Context) <-chan error {
			done := make(chan error, 1)
			go func() { done <- e.agenda.ReconcileDue(ctx, e.agenda.Shards[0], time.Time{}, time.Now()) }()
			synctest.Wait()
			return done
		}

		open := e.agenda.UrgentFirst.Shut()
		done := look(t.Context())
		require.Zero(t, s.looked.Load())
		open()
		require.NoError(t, <-done)
		require.EqualValues(t, 10, s.looked.Load())
		open() // once more does nothing

		defer e.agenda.UrgentFirst.Shut()()
		ctx, cancel := context.WithCancel(t.Context())
		e.agenda.Shards[0].Handled.Forget(time.Now().Add(time.Hour))
		done = look(ctx)
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
		require.EqualValues(t, 10, s.looked.Load(), "nothing more")
	})
}
