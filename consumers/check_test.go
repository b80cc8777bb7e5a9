package consumers

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/events"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/consumers/rollup"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/store/memory"
)

// TestCheckRepairs: a check finds wrong sums of a chunk and of a day, and repairs them.
func TestCheckRepairs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sg, mg := newScripted("sg", always(models.Unavailable)), newScripted("mg", always(models.Accepted))
		r := newRig(t, fast(), nil, sg, mg)
		ctx := t.Context()
		r.known()
		var batches []*models.Batch
		for n := range 5 {
			batches = append(batches, r.batch(10+n, true, nil))
		}
		r.batch(7, false, func(b *models.Batch, _ []models.Recipient) { b.Providers = []string{"sg"} })
		for _, b := range batches {
			r.done(b)
		}
		run := func(repair bool) (telemetry.Recount, []rollup.Difference) {
			var list []rollup.Difference
			out, err := r.engine.Check(
				ctx,
				rollup.CheckOptions{
					Repair: repair,
					Settle: 200 * time.Millisecond,
					Found:  func(d rollup.Difference) { list = append(list, d) },
				},
			)
			require.NoError(t, err)
			return out, list
		}
		var out telemetry.Recount
		require.Eventually(t, func() bool { out, _ = run(false); return out.Differences == 0 }, patience, 50*time.Millisecond)
		require.Equal(t, 6, out.Batches)
		require.EqualValues(t, 10+11+12+13+14+7, out.Recipients)
		require.Equal(t, 1, out.Days)

		// misstate stores a summary as if what was delivered had failed, and its sums.
		misstate := func(b *models.Batch, sum models.Summary) {
			sum.Success, sum.Failed = 0, sum.Success
			memory.Forget(t, r.store, r.user, b.ID)
			require.NoError(t, r.store.PutSummaries(ctx, models.ChunkSummary{User: r.user, Chunk: b.ID, Summary: sum}))
			memory.Forget(t, r.store, r.user, b.ID, models.Levels[:]...)
			for _, level := range models.Levels {
				err := r.store.RollUp(ctx, models.SpanOf(r.user, level, b.Created()))
				require.NoError(t, err)
			}
		}

		// A wrong summary with the version of the right one. The worker stops first, because it
		// would repair the sums of a day when it renews those of any of its batches.
		r.stop()
		out, _ = run(false)
		require.Zero(t, out.Differences)
		sum := r.view(batches[1]).SummaryOf(batches[1].ID, nil)
		misstate(batches[1], sum)
		out, list := run(false)
		require.NotZero(t, out.Differences)
		require.Equal(t, "chunk", list[0].What)
		require.Equal(t, batches[1].ID.String(), list[0].ID)
		require.Equal(t, sum.Success, list[0].Counted.Success)
		require.Contains(t, list[0].String(), "failed 11")
		out, _ = run(true)
		require.NotZero(t, out.Repaired)
		out, list = run(false)
		require.Empty(t, list)
		require.Zero(t, out.Differences)
		require.EqualValues(t, 1, stored(t, r, batches[1]).Repairs)

		// A wrong sum of a day with the version of the right one.
		truth := stored(t, r, batches[2])
		misstate(batches[2], truth)
		memory.Forget(t, r.store, r.user, batches[2].ID)
		require.NoError(t, r.store.PutSummaries(ctx, models.ChunkSummary{User: r.user, Chunk: batches[2].ID, Summary: truth}))
		_, list = run(false)
		require.Len(t, list, 1)
		require.Equal(t, "day", list[0].What)
		out, _ = run(true)
		require.Equal(t, 1, out.Repaired)
		out, _ = run(false)
		require.Zero(t, out.Differences)
	})
}

// TestCheckWhileMailFlows: while mail flows, sums lag behind what they are made of. A check
// reports no difference then.
func TestCheckWhileMailFlows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, fast(), nil, newScripted("sg", always(models.Accepted)))
		r.known()
		flows, over := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(over)
			for {
				select {
				case <-flows:
					return
				case <-time.After(2 * time.Millisecond):
					r.batch(1, true, nil)
				}
			}
		}()
		out, err := r.engine.Check(
			t.Context(),
			rollup.CheckOptions{Settle: 300 * time.Millisecond, Found: func(d rollup.Difference) { t.Error(d) }},
		)
		close(flows)
		<-over
		require.NoError(t, err)
		require.Zero(t, out.Differences)
	})
}

// scorched is a store in which the summary of a chunk cannot be read until one with a
// higher version replaces it, as in a store in which the newest write wins.
type scorched struct {
	models.Store
	chunk   models.ID
	version int64
	holds   bool // no version is high enough
}

func (s *scorched) Summaries(
	ctx context.Context,
	user string,
	batch models.ID,
	from int,
) iter.Seq2[models.ChunkSummary, error] {
	if s.chunk == batch {
		return func(yield func(models.ChunkSummary, error) bool) { yield(models.ChunkSummary{}, models.ErrDamaged) }
	}
	return s.Store.Summaries(ctx, user, batch, from)
}

func (s *scorched) PutSummaries(ctx context.Context, sums ...models.ChunkSummary) error {
	for i := range sums {
		if sums[i].Chunk == s.chunk && sums[i].Summary.FullVersion() > s.version && !s.holds {
			s.chunk = models.ID{}
		}
	}
	return s.Store.PutSummaries(ctx, sums...)
}

// TestRepairOfUnreadableSummary: a summary that cannot be read is replaced by one with a
// higher version. It counts as repaired only if it can be read then.
func TestRepairOfUnreadableSummary(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &scorched{}
		r := newRig(t, fast(), func(store models.Store) models.Store {
			s.Store = store
			return s
		}, newScripted("sg", always(models.Accepted)))
		r.known()
		b := r.batch(4, true, nil)
		r.done(b)
		require.Eventually(t, func() bool { return r.idle() && r.engine.Pending() == 0 }, patience, 5*time.Millisecond)
		r.stop()
		version := func(s models.Summary) int64 { return s.FullVersion() }
		check := func() (telemetry.Recount, int) {
			found := 0
			out, err := r.engine.Check(
				t.Context(),
				rollup.CheckOptions{Repair: true, Settle: 50 * time.Millisecond, Found: func(rollup.Difference) { found++ }},
			)
			require.NoError(t, err)
			return out, found
		}
		s.chunk, s.version, s.holds = b.ID, version(storedIn(t, r.store, b)), true
		out, found := check()
		require.NotZero(t, found)
		require.Zero(t, out.Repaired, "it still cannot be read")
		s.holds = false
		out, found = check()
		require.NotZero(t, found)
		require.Equal(t, 1, out.Repaired)
		_, found = check()
		require.Zero(t, found)
	})
}

// stored returns the stored summary of a batch of one chunk.
func stored(t *testing.T, r *rig, b *models.Batch) models.Summary {
	t.Helper()
	return storedIn(t, r.store, b)
}

// storedIn returns the summary of a batch of one chunk that a store has.
func storedIn(t *testing.T, store models.Store, b *models.Batch) models.Summary {
	t.Helper()
	s := storedUntil(t, store, b)
	require.NotNil(t, s, "no summary is stored")
	return *s
}

// storedUntil is storedIn for conditions that are waited for, which must not end the test; nil: none yet.
func storedUntil(t *testing.T, store models.Store, b *models.Batch) *models.Summary {
	t.Helper()
	for s, err := range store.Summaries(t.Context(), b.User, b.ID, 0) {
		if assert.NoError(t, err) {
			return &s.Summary
		}
	}
	return nil
}

// buggyParser is a provider whose parser takes a bounce for a delivery until it is fixed.
type buggyParser struct {
	*scripted
	fixed bool
}

func (p *buggyParser) Parse(body []byte) models.Parsed {
	out := p.scripted.Parse(body)
	for i := range out.Events {
		if ev := &out.Events[i].Event; ev.Text == "no such user" && !p.fixed {
			ev.Kind = models.Delivered
		}
	}
	return out
}

// TestReplay: a replay with the same parser changes nothing. A fixed parser corrects logs
// and sums, however often the replay is repeated.
func TestReplay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &buggyParser{scripted: newScripted("mg", always(models.Accepted))}
		r := emptyRig(t, nil, "mg")
		spec := provider.Spec{
			Adapter: p,
			Provider: models.Provider{
				Name:        "mg",
				Weight:      1,
				Concurrency: 4,
				ChunkLimit:  1000,
				Timeout:     time.Second,
				Events:      models.EventsWebhook,
			},
		}
		r.engine = r.start(fast(), []provider.Spec{spec})
		ctx := t.Context()
		b := r.batch(6, true, nil)
		r.taken(b)
		for n := 1; n <= 6; n++ {
			ev := models.ParsedEvent{
				Log:   b.ID.Log(n),
				Event: models.Event{ID: fmt.Sprint(n), Attempt: 1, Kind: models.Delivered, At: time.Now()},
			}
			if n%2 == 0 {
				ev.Event.Kind, ev.Event.Reason, ev.Event.Text = models.Bounced, models.MailboxInvalid, "no such user"
			}
			body, err := json.Marshal([]models.ParsedEvent{ev})
			require.NoError(t, err)
			in := models.Inbox{ID: models.NewInboxID(time.Now()), Provider: "mg", Posts: []models.Post{{Body: body}}}
			require.NoError(t, r.store.PutInbox(ctx, in))
			require.NoError(t, r.broker.Publish(ctx, models.Message{Kind: models.EventMessage, Provider: "mg", ID: in.ID}))
		}
		require.EqualValues(t, 6, r.done(b).Summary().Success, "as the buggy parser read it")
		before := r.view(b)
		replay := func() events.Replayed {
			out, err := r.engine.Replay(
				context.Background(),
				b.Created().Add(-time.Minute),
				time.Now().Add(time.Minute),
				func(events.Replayed) {},
			)
			require.NoError(t, err)
			require.Equal(t, 6, out.Posts)
			return out
		}
		require.Zero(t, replay().Events)
		require.Equal(t, before.Logs, r.view(b).Logs)
		require.Equal(t, before.Version, r.view(b).Version, "nothing is written twice")

		p.fixed = true
		require.EqualValues(t, 3, replay().Events)
		sum := r.view(b).Summary()
		require.EqualValues(t, 3, sum.Success)
		require.EqualValues(t, 3, sum.Reasons[models.MailboxInvalid])
		after := r.view(b)
		require.Zero(t, replay().Events)
		require.Equal(t, after.Logs, r.view(b).Logs)
	})
}

// bereft is a store that has lost recipients of a chunk.
type bereft struct {
	models.Store
	chunk models.ID
	left  []models.Recipient // nil: it has lost all
}

func (s *bereft) Recipients(ctx context.Context, chunk models.ID) ([]models.Recipient, error) {
	switch {
	case chunk != s.chunk:
		return s.Store.Recipients(ctx, chunk)
	case s.left == nil:
		return nil, models.ErrNotFound
	}
	return s.left, nil
}

// TestCheckFindsLostRecipients: a check reports a chunk whose recipients are lost, unless
// they were due to be removed.
func TestCheckFindsLostRecipients(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &bereft{}
		r := newRig(t, fast(), func(store models.Store) models.Store {
			s.Store = store
			return s
		}, newScripted("sg", always(models.Accepted)))
		r.known()
		b := r.batch(4, true, nil)
		r.done(b)
		check := func(e *Engine) (list []rollup.Difference) {
			_, err := e.Check(
				t.Context(),
				rollup.CheckOptions{Settle: 100 * time.Millisecond, Found: func(d rollup.Difference) { list = append(list, d) }},
			)
			require.NoError(t, err)
			return list
		}
		require.Eventually(t, func() bool { return len(check(r.engine)) == 0 }, patience, 20*time.Millisecond)
		s.chunk = b.ID
		list := check(r.engine)
		require.Len(t, list, 1)
		require.Equal(t, "recipients", list[0].What)
		require.Equal(t, b.ID.String(), list[0].ID)
		s.left = []models.Recipient{{Email: "u1@x.test"}}
		require.Len(t, check(r.engine), 1)
		cfg := fast()
		cfg.KeepContent = time.Nanosecond
		later, err := New(r.store, r.broker, nil, cfg)
		require.NoError(t, err)
		t.Cleanup(later.work.Stop)
		require.Empty(t, check(later), "they were due to be removed")
	})
}

// TestRepairAfterLostFacts: a summary that was made from more facts than there are is a
// difference, even if it is equal to its recount. Summaries that are counted after its
// repair are newer.
func TestRepairAfterLostFacts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mg := newScripted("mg", always(models.Accepted))
		r := emptyRig(t, nil, "mg")
		r.known()
		r.withEvents(fast(), mg)
		b := r.batch(2, true, nil)
		r.taken(b)
		require.Eventually(t, func() bool { return r.engine.Pending() == 0 && r.idle() }, patience, 20*time.Millisecond)
		check := func(repair bool) (list []rollup.Difference) {
			_, err := r.engine.Check(
				t.Context(),
				rollup.CheckOptions{
					Repair: repair,
					Settle: 200 * time.Millisecond,
					Found:  func(d rollup.Difference) { list = append(list, d) },
				},
			)
			require.NoError(t, err)
			return list
		}
		for _, wrong := range []bool{false, true} {
			lie := r.view(b).SummaryOf(b.ID, nil)
			lie.Version += 50
			if wrong {
				lie.Success, lie.Queued = 2, 0
			}
			require.NoError(t, r.store.PutSummaries(t.Context(), models.ChunkSummary{User: r.user, Chunk: b.ID, Summary: lie}))
			list := check(true)
			require.NotEmpty(t, list)
			require.Contains(
				t,
				list[0].String(),
				fmt.Sprintf("made from %d entries and facts, but only %d are stored", lie.Version, lie.Version-50),
			)
			require.Empty(t, check(false))
		}
		for n := range 2 {
			r.event("mg", b.ID.Log(n+1), models.Event{ID: fmt.Sprint(n), Attempt: 1, Kind: models.Delivered, At: time.Now()})
		}
		r.done(b)
		require.Eventually(t, func() bool {
			s := storedUntil(t, r.store, b)
			return s != nil && s.Success == 2
		}, patience, 20*time.Millisecond)
	})
}
