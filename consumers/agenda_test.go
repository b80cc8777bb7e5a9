package consumers

import (
	"context"
	"iter"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/agenda"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
)

// costly is a store that counts what the agenda asks of it.
type costly struct {
	models.Store
	agendas, pending, writes, looks atomic.Int64
	atOnce, most                    atomic.Int64 // looks
}

func (s *costly) Agenda(ctx context.Context, shard int, from, to time.Time) iter.Seq2[models.AgendaEntry, error] {
	s.agendas.Add(1)
	return s.Store.Agenda(ctx, shard, from, to)
}

func (s *costly) Pending(ctx context.Context, shard int, from, to time.Time) iter.Seq2[models.Inbox, error] {
	s.pending.Add(1)
	return s.Store.Pending(ctx, shard, from, to)
}

func (s *costly) Schedule(ctx context.Context, entries ...models.AgendaEntry) error {
	s.writes.Add(1)
	return s.Store.Schedule(ctx, entries...)
}

func (s *costly) SetAgendaMark(ctx context.Context, shard int, at time.Time) error {
	s.writes.Add(1)
	return s.Store.SetAgendaMark(ctx, shard, at)
}

func (s *costly) Batch(ctx context.Context, id models.ID) (models.Batch, error) {
	s.looks.Add(1)
	n := s.atOnce.Add(1)
	defer s.atOnce.Add(-1)
	for most := s.most.Load(); n > most && !s.most.CompareAndSwap(most, n); most = s.most.Load() {
	}
	return s.Store.Batch(ctx, id)
}

// agendaOf is an engine that works its shards when it is told to.
func agendaOf(t *testing.T) (*rig, *Engine, *costly) {
	t.Helper()
	s := &costly{}
	r := emptyRig(t, func(store models.Store) models.Store {
		s.Store = store
		return s
	}, "sg")
	cfg := fast()
	cfg.Sole, cfg.Recheck, cfg.InboxAge = true, time.Hour, time.Hour
	e, err := New(
		r.store,
		r.broker,
		[]provider.Spec{
			{Adapter: newScripted("sg", always(models.Accepted)), Provider: models.Provider{Name: "sg", Concurrency: 1}},
		},
		cfg,
	)
	require.NoError(t, err)
	t.Cleanup(e.dispatch.Stop)
	e.agenda.AcquireShards(t.Context())
	require.Equal(t, r.store.Shards(), e.heldShards())
	return r, e, s
}

func (e *Engine) workShards(t *testing.T) {
	t.Helper()
	for _, s := range e.agenda.Shards {
		require.NoError(t, e.agenda.WorkShard(t.Context(), s))
	}
}

// A thousand entries that are due in the same instant are looked at a few at a
// time, each once, and announced once.
func TestThousandDueAreNoBurst(t *testing.T) {
	t.Parallel()
	const n = 1000
	r, e, s := agendaOf(t)
	due := time.Now().Add(-time.Second)
	for range n {
		b := models.Batch{
			ID:         models.NewBatchID(due),
			User:       r.user,
			Content:    models.Content{From: models.Address{Email: "a@b.c"}, Subject: "s", Text: "t"},
			Lane:       models.Bulk,
			Recipients: 1,
			Chunks:     1,
			Deadline:   due.Add(time.Hour),
		}
		require.NoError(
			t,
			r.store.Schedule(
				t.Context(),
				models.AgendaEntry{Due: due, Kind: models.LookAtBatch, ID: b.ID, User: b.User, Chunks: 1},
			),
		)
		require.NoError(
			t,
			r.store.PutBatch(t.Context(), b, models.Chunk{ID: b.ID, Recipients: []models.Recipient{{Email: "u@x.test"}}}),
		)
	}
	for range 3 {
		e.workShards(t)
	}
	require.EqualValues(t, n, s.looks.Load(), "each once")
	require.LessOrEqual(t, s.most.Load(), int64(agenda.AgendaAtOnce))
	depths, err := r.broker.Depths(t.Context())
	require.NoError(t, err)
	ready := 0
	for _, d := range depths {
		ready += d.Ready
	}
	require.Equal(t, n, ready)
}

// While nothing is due, a look at the agenda costs one read of a shard, and writes
// nothing.
func TestIdleAgendaIsCheap(t *testing.T) {
	t.Parallel()
	_, e, s := agendaOf(t)
	shards := int64(len(e.agenda.Shards))
	e.workShards(t) // reads again what slow writers may have written
	s.agendas.Store(0)
	s.pending.Store(0)
	s.writes.Store(0)
	const looks = 20
	for range looks {
		e.workShards(t)
	}
	require.LessOrEqual(t, s.agendas.Load(), looks*shards+2*shards, "one each; what is read again now and then aside")
	require.LessOrEqual(t, s.pending.Load(), shards)
	require.LessOrEqual(t, s.writes.Load(), shards, "how far it is, every few seconds")
	require.Zero(t, s.looks.Load())
}
