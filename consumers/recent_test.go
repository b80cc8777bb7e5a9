package consumers

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/dispatch"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
)

// reads is a store that counts the reads of batches and chunks.
type reads struct {
	models.Store
	n atomic.Int64
}

func (r *reads) Batch(ctx context.Context, id models.ID) (models.Batch, error) {
	r.n.Add(1)
	return r.Store.Batch(ctx, id)
}

func (r *reads) Recipients(ctx context.Context, id models.ID) ([]models.Recipient, error) {
	r.n.Add(1)
	return r.Store.Recipients(ctx, id)
}

func (r *reads) Record(ctx context.Context, id models.ID) ([]models.Entry, []models.Fact, error) {
	r.n.Add(1)
	return r.Store.Record(ctx, id)
}

// accepted stores a batch that this process has just accepted.
func (r *rig) accepted(n int) *models.Batch {
	b := r.batch(n, false, nil)
	to, err := r.store.Recipients(r.t.Context(), b.ID)
	require.NoError(r.t, err)
	r.engine.Accepted(b, models.Chunk{ID: b.ID, Recipients: to})
	return b
}

// TestAcceptedBatchIsNotRead: a batch that this process has just accepted is sent without a read
// of the store.
func TestAcceptedBatchIsNotRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		counted := &reads{}
		before := make(chan int64, 1)
		p := newScripted("sg", func(_ context.Context, c *models.Call) []models.Part {
			before <- counted.n.Load()
			return part(models.Accepted, c)
		})
		cfg := fast()
		cfg.Recheck, cfg.Renewal = time.Minute, time.Minute // only the dispatcher reads
		r := newRig(t, cfg, func(s models.Store) models.Store { counted.Store = s; return counted }, p)
		b := r.accepted(2)
		counted.n.Store(0)
		require.NoError(t, r.broker.Publish(t.Context(), models.Message{Kind: models.BatchMessage, ID: b.ID, Lane: b.Lane}))
		require.Zero(t, <-before)
		r.done(b)

		unknown := r.batch(2, true, nil)
		require.NotZero(t, <-before, "this one is not known")
		require.Equal(t, 1, p.copiesOf(b.ID.Log(1)))
		require.Eventually(t, func() bool { return p.copiesOf(unknown.ID.Log(2)) == 1 }, patience, 5*time.Millisecond)
	})
}

// TestAcceptedBatchWaitsForSlot: of a batch that this process has just accepted, and that waits for a slot in the queue
// of its provider, only the recipients are read, after the wait. Another message about it reads it.
func TestAcceptedBatchWaitsForSlot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		counted, answer := &reads{}, make(chan struct{})
		p := newScripted("sg", func(_ context.Context, c *models.Call) []models.Part {
			<-answer
			return part(models.Accepted, c)
		})
		cfg := fast()
		cfg.Recheck, cfg.Renewal = time.Minute, time.Minute // only the dispatcher reads
		r := emptyRig(t, func(s models.Store) models.Store { counted.Store = s; return counted }, "sg")
		spec := specOf(p, "sg", time.Minute)
		spec.Concurrency = 1
		cfg.Sole = true
		var err error
		r.engine, err = New(r.store, r.broker, []provider.Spec{spec}, cfg)
		require.NoError(t, err)
		first, second, third := r.accepted(1), r.accepted(2), r.accepted(1)
		counted.n.Store(0)
		handled := make(chan models.Disposition, 2)
		message := func(b *models.Batch) models.Message {
			return models.Message{Kind: models.BatchMessage, ID: b.ID, Lane: b.Lane}
		}
		go func() { handled <- r.engine.dispatch.HandleBatch(t.Context(), message(first)) }()
		synctest.Wait()
		for range 2 {
			counted.n.Store(0)
			require.Equal(t, models.Done(), r.engine.dispatch.HandleBatch(t.Context(), message(third)), "it joins the queue")
		}
		require.NotZero(t, counted.n.Load(), "the second message may be about a change")
		counted.n.Store(0)
		require.Equal(t, models.Done(), r.engine.dispatch.HandleBatch(t.Context(), message(second)))
		queued := message(second)
		queued.Kind, queued.Provider = models.ProviderMessage, "sg"
		go func() { handled <- r.engine.dispatch.HandleProvider(t.Context(), queued) }()
		synctest.Wait()
		close(answer)
		for range 2 {
			require.Equal(t, models.Done(), <-handled)
		}
		require.EqualValues(t, 1, counted.n.Load())
		require.Equal(t, 1, p.copiesOf(second.ID.Log(2)))
		for range 2 {
			counted.n.Store(0)
			require.Equal(t, models.Done(), r.engine.dispatch.HandleProvider(t.Context(), queued))
			require.NotZero(t, counted.n.Load(), "its ledger is not empty any more")
		}
		require.Equal(t, 1, p.copiesOf(second.ID.Log(2)))
	})
}

// conflicts is a store that counts the appends that conflict.
type conflicts struct {
	models.Store
	n atomic.Int64
}

func (s *conflicts) Append(ctx context.Context, chunk models.ID, entry models.Entry) error {
	err := s.Store.Append(ctx, chunk, entry)
	if lost := new(models.ConflictError); errors.As(err, &lost) {
		s.n.Add(1)
	}
	return err
}

// TestAcceptedBatchOfQuickerWorker: a batch is not sent twice if another worker was quicker with it
// than the process that has just accepted it.
func TestAcceptedBatchOfQuickerWorker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, lost := newScripted("sg", always(models.Accepted)), &conflicts{}
		r := emptyRig(t, func(s models.Store) models.Store { lost.Store = s; return lost }, "sg")
		cfg := fast()
		cfg.Sole = true // so that each has all slots
		one := func() *Engine {
			e, err := New(
				r.store,
				r.broker,
				[]provider.Spec{{Adapter: p, Provider: models.Provider{Name: "sg", Weight: 1, Concurrency: 1, ChunkLimit: 1000,
					Timeout: time.Second, Events: models.EventsNone}}},
				cfg,
			)
			require.NoError(t, err)
			return e
		}
		other := one()
		r.engine = one()
		b := r.accepted(1)
		m := models.Message{Kind: models.BatchMessage, ID: b.ID, Lane: b.Lane}
		require.Equal(t, models.Done(), other.dispatch.HandleBatch(t.Context(), m))
		require.NoError(t, other.Flush(t.Context()))
		sent := stored(t, r, b)
		require.EqualValues(t, 1, sent.Success, "%+v", sent)

		require.Equal(t, models.Done(), r.engine.dispatch.HandleBatch(t.Context(), m))
		require.EqualValues(t, 1, lost.n.Load(), "its ledger was expected to be empty")
		require.Equal(t, 1, p.copiesOf(b.ID.Log(1)), "not sent again")
		require.NoError(t, r.engine.Flush(t.Context()))
		require.Equal(t, sent, stored(t, r, b))
	})
}

// TestEventBeforeOutcome: the summary of a batch that this process has accepted and sent is stored without a read. If an
// event or another entry came before the outcome of the call, in this process or in another one, the summary ends up
// with both, although each had as many entries and facts.
func TestEventBeforeOutcome(t *testing.T) {
	t.Parallel()
	event := func(t *testing.T, s models.Store, id models.ID) {
		fact := models.Fact{Key: models.EventsKey(models.NewInboxID(time.Now())), Events: []models.Event{
			{ID: "e", Recipient: 1, Attempt: 1, Kind: models.Delivered, Provider: "sg", At: time.Now().UTC()}}}
		require.NoError(t, s.PutFacts(t.Context(), models.ChunkFact{Chunk: id, Fact: fact}))
	}
	cancel := func(t *testing.T, s models.Store, id models.ID) {
		require.NoError(t, s.Append(t.Context(), id, models.Entry{Number: 2, Token: models.NewToken(), Kind: models.Cancel,
			At: time.Now().UTC(), Recipients: models.SetOf(1)}))
	}
	for name, c := range map[string]struct {
		write  func(t *testing.T, s models.Store, id models.ID)
		shared bool // another process writes it
		last   bool // and counts it again before this one stores what it sent
		stops  bool // and stops during the call
		late   bool // the call takes longer than what was read may be used
		reads  int64
	}{
		"only the outcome":         {},
		"event":                    {write: event, reads: 1},
		"event in another process": {write: event, shared: true},
		"event in another process, which is last": {write: event, shared: true, last: true},
		"cancel":                    {write: cancel, reads: 1},
		"cancel in another process": {write: cancel, shared: true},
		"cancel in another process, which is last": {write: cancel, shared: true, last: true},
		"event in another process, which stops":    {write: event, shared: true, stops: true},
		"a late outcome":                           {late: true, reads: 1},
		"event in another process, a late outcome": {write: event, shared: true, late: true, reads: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				counted := &reads{}
				r := emptyRig(t, func(s models.Store) models.Store { counted.Store = s; return counted }, "sg")
				var other *Engine
				stopped := make(chan struct{})
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				p := newScripted("sg", func(_ context.Context, call *models.Call) []models.Part {
					if c.write != nil {
						c.write(t, r.store, call.Batch)
						other.rollup.Mark(r.user, call.Batch)
						if c.stops {
							over, stop := context.WithCancel(t.Context())
							stop()
							go func() { other.rollup.Run(over); close(stopped) }()
							synctest.Wait()
						} else {
							require.NoError(t, other.Flush(t.Context()))
						}
					}
					if c.late {
						time.Sleep(2 * dispatch.LateOutcome)
						stop() // so that the handler reads the chunk no more
					}
					counted.n.Store(0)
					return part(models.Accepted, call)
				})
				cfg := fast()
				cfg.Sole = true // so that each has all slots
				one := func() *Engine {
					e, err := New(r.store, r.broker, []provider.Spec{specOf(p, "sg", time.Second)}, cfg)
					require.NoError(t, err)
					return e
				}
				r.engine = one()
				if other = r.engine; c.shared {
					other = one()
				}
				b := r.accepted(1)
				m := models.Message{Kind: models.BatchMessage, ID: b.ID, Lane: b.Lane}
				require.Equal(t, !c.late, r.engine.dispatch.HandleBatch(ctx, m) == models.Done())
				if c.last {
					require.NoError(t, other.Flush(t.Context()))
				}
				counted.n.Store(0)
				require.NoError(t, r.engine.Flush(t.Context()))
				require.Equal(t, c.reads, counted.n.Load())
				if c.stops {
					<-stopped
				} else {
					require.NoError(t, other.Flush(t.Context()))
				}
				want, got := r.view(b).SummaryOf(b.ID, b.Groups), stored(t, r, b)
				require.Equal(t, want, got)
				require.Zero(t, r.engine.rollup.Pending()+other.rollup.Pending(), "nothing is counted for ever")
			})
		})
	}
}

// TestSummaryOfEmptyLedger: the summary of a batch without entries is stored without a read, and
// never replaces a newer one.
func TestSummaryOfEmptyLedger(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		counted := &reads{}
		r := emptyRig(t, func(s models.Store) models.Store { counted.Store = s; return counted }, "sg")
		e, err := New(
			r.store,
			r.broker,
			[]provider.Spec{{Adapter: newScripted("sg", nil), Provider: models.Provider{Name: "sg", Weight: 1}}},
			fast(),
		)
		require.NoError(t, err)
		b := r.batch(3, false, nil)
		untouched, err := e.chunks.Load(t.Context(), b.ID)
		require.NoError(t, err)
		counted.n.Store(0)
		e.rollup.MarkChunk(untouched)
		require.NoError(t, e.Flush(t.Context()))
		require.Zero(t, counted.n.Load())
		first := stored(t, r, b)
		require.Equal(t, models.Summary{Batches: 1, Accepted: 3, Queued: 3, Untried: 3}, first)

		entry := models.Entry{
			Number:     1,
			Token:      models.NewToken(),
			Kind:       models.Ending,
			At:         time.Now().UTC(),
			Recipients: models.SetOf(2),
			Reason:     models.Expired,
		}
		require.NoError(t, r.store.Append(t.Context(), b.ID, entry))
		e.rollup.MarkChunk(untouched) // read before the entry
		e.rollup.Mark(b.User, b.ID)
		e.rollup.MarkChunk(untouched)
		require.NoError(t, e.Flush(t.Context()))
		ended := stored(t, r, b)
		require.EqualValues(t, 1, ended.Failed)
		e.rollup.MarkChunk(untouched)
		require.NoError(t, e.Flush(t.Context()))
		require.Equal(t, ended, stored(t, r, b), "the newer one stays")
	})
}
