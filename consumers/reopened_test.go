package consumers

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
)

// withEvents starts a worker whose providers report events by webhooks.
func (r *rig) withEvents(cfg Config, adapters ...*scripted) {
	r.t.Helper()
	providers := make([]provider.Spec, len(adapters))
	for i, p := range adapters {
		providers[i] = provider.Spec{
			Adapter: p,
			Provider: models.Provider{Name: p.name, Weight: 1, Concurrency: 4, ChunkLimit: 1000,
				Timeout: time.Second, Events: models.EventsWebhook, Carries: models.Capabilities{Copies: true, Variables: true}},
		}
	}
	r.engine = r.start(cfg, providers)
}

// dueWithin returns the agenda entries of a batch and its chunks that are due in [from, to).
func (r *rig) dueWithin(b *models.Batch, from, to time.Time) (out []models.AgendaEntry) {
	r.t.Helper()
	for shard := range r.store.Shards() {
		for e, err := range r.store.Agenda(context.Background(), shard, from, to) {
			require.NoError(r.t, err)
			if e.ID.Batch() == b.ID {
				out = append(out, e)
			}
		}
	}
	return out
}

// TestReopenedMailIsOnTheAgenda: mail that an event reopens is on the agenda, so that it is sent
// later if no provider can take it when the event arrives.
func TestReopenedMailIsOnTheAgenda(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sg, mg := newScripted("sg", always(models.Accepted)), newScripted("mg", always(models.Accepted))
		r := emptyRig(t, nil, "sg", "mg")
		r.withEvents(fast(), sg, mg)
		b := r.batch(2, true, func(b *models.Batch, _ []models.Recipient) { b.Providers = []string{"sg", "mg"} })
		require.Eventually(
			t,
			func() bool { return len(r.dueWithin(b, time.Now().Add(time.Hour), time.Now().Add(200*time.Hour))) == 1 },
			patience,
			time.Millisecond,
			"the batch is reconciled when the wait for final events ends",
		)
		r.lookedAtLately(b)
		r.order(models.Command{Kind: models.ProviderOffline, Provider: "mg"})
		r.event(
			"sg",
			b.ID.Log(1),
			models.Event{ID: "1", Attempt: 1, Kind: models.Blocked, Reason: models.PolicyReputation, At: time.Now()},
		)
		r.workedOff()
		require.Zero(t, mg.count())
		r.order(models.Command{Kind: models.ProviderOnline, Provider: "mg"})
		require.Eventually(t, func() bool { return mg.copiesOf(b.ID.Log(1)) == 1 }, patience, 20*time.Millisecond)
	})
}

// TestReopenedLogEnds: a final log that an event reopens becomes final again, even if nothing
// is reported of its next attempt.
func TestReopenedLogEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sg, mg := newScripted("sg", always(models.Accepted)), newScripted("mg", always(models.Unknown))
		r := emptyRig(t, nil, "sg", "mg")
		cfg := fast()
		cfg.EvidenceWindow, cfg.StartBy = 300*time.Millisecond, 300*time.Millisecond
		r.withEvents(cfg, sg, mg)
		b := r.batch(1, true, func(b *models.Batch, _ []models.Recipient) { b.Providers = []string{"sg", "mg"} })
		r.taken(b)
		r.event("sg", b.ID.Log(1), models.Event{ID: "1", Attempt: 1, Kind: models.Delivered, At: time.Now()})
		require.EqualValues(t, 1, r.done(b).Summary().Success)
		r.lookedAtLately(b)

		r.event(
			"sg",
			b.ID.Log(1),
			models.Event{ID: "2", Attempt: 1, Kind: models.Bounced, Reason: models.PolicyReputation, At: time.Now()},
		)
		require.Eventually(t, func() bool { return mg.count() == 1 }, patience, 20*time.Millisecond)
		v := r.done(b)
		require.Equal(t, models.Failed, v.Status(1).State)
		require.Equal(t, models.OutcomeUnknown, v.Status(1).Reason)
	})
}

// hangingEndings is a store in which the append of an ending hangs.
type hangingEndings struct{ models.Store }

func (s *hangingEndings) Append(ctx context.Context, chunk models.ID, e models.Entry) error {
	if e.Kind == models.Ending {
		<-ctx.Done()
		return fmt.Errorf("%w: %w", models.ErrOutcomeUnknown, ctx.Err())
	}
	return s.Store.Append(ctx, chunk, e)
}

// TestEndingThatHangs: an append of an ending that hangs is given up after a time. Other chunks
// are not delayed, and the worker can stop.
func TestEndingThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sg := newScripted("sg", always(models.Accepted))
		r := emptyRig(t, func(s models.Store) models.Store { return &hangingEndings{s} }, "sg")
		cfg := fast()
		cfg.StartBy = 100 * time.Millisecond
		r.withEvents(cfg, sg)
		b := r.batch(1, true, nil)
		r.taken(b)
		const groups = 4        // twice as many as are processed at once
		for i := range groups { // no provider may take these, so they end
			other := r.batch(1, true, nil)
			r.taken(other)
			r.event(
				"sg",
				other.ID.Log(1),
				models.Event{
					ID:      strconv.Itoa(i),
					Attempt: 1,
					Kind:    models.Dropped,
					Reason:  models.PolicyReputation,
					At:      time.Now(),
				},
			)
		}
		r.event("sg", b.ID.Log(1), models.Event{ID: "1", Attempt: 1, Kind: models.Delivered, At: time.Now()})
		require.EqualValues(t, 1, r.done(b).Summary().Success)
		stopped := make(chan struct{})
		go func() { r.stop(); close(stopped) }()
		select {
		case <-stopped:
		case <-time.After(patience):
			t.Fatal("the worker does not stop")
		}
	})
}

// TestSumsAfterCrash: if a worker dies between storing a summary and renewing the sums above it, the next reconcile of
// the batch renews them, in any round.
func TestSumsAfterCrash(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := emptyRig(t, nil, "sg")
		ctx := t.Context()
		b := r.stored(models.Bulk, time.Now().Add(time.Hour))
		entry := models.Entry{
			Number:     1,
			Token:      models.NewToken(),
			Kind:       models.Ending,
			At:         time.Now().UTC(),
			Recipients: models.SetOf(1),
			Reason:     models.NoProviderLeft,
		}
		queued := models.Resolve(1, nil, nil).SummaryOf(b.ID, nil)
		put := func(s models.Summary) {
			t.Helper()
			require.NoError(t, r.store.PutSummaries(ctx, models.ChunkSummary{User: b.User, Chunk: b.ID, Summary: s}))
		}
		put(queued)
		for _, level := range models.Levels {
			err := r.store.RollUp(ctx, models.SpanOf(b.User, level, b.Created()))
			require.NoError(t, err)
		}
		require.NoError(t, r.store.Append(ctx, b.ID, entry))
		put(r.view(b).SummaryOf(b.ID, nil)) // the worker dies here
		require.NoError(
			t,
			r.store.Schedule(
				ctx,
				models.AgendaEntry{
					Due:    time.Now(),
					Kind:   models.LookAtBatch,
					ID:     b.ID,
					User:   b.User,
					Chunks: 1,
					Round:  5,
				},
			),
		)
		r.withEvents(fast(), newScripted("sg", always(models.Accepted)))
		require.Eventually(t, func() bool {
			days, err := r.store.Nodes(
				ctx,
				b.User,
				models.Day,
				b.Created().Add(-48*time.Hour),
				b.Created().Add(48*time.Hour),
			)
			require.NoError(t, err)
			return len(days) == 1 && days[0].Summary.Failed == 1 && days[0].Summary.Open() == 0
		}, patience, 20*time.Millisecond)
	})
}

// lookedAtLately waits until the next reconcile of a batch is due in hours, or never.
func (r *rig) lookedAtLately(b *models.Batch) {
	r.t.Helper()
	require.Eventually(
		r.t,
		func() bool { return len(r.dueWithin(b, time.Now(), time.Now().Add(time.Hour))) == 0 },
		patience,
		time.Millisecond,
	)
}

// workedOff waits until every post is processed.
func (r *rig) workedOff() {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		for s := range r.store.Shards() {
			for _, err := range r.store.Pending(context.Background(), s, time.Now().Add(-time.Hour), time.Now().Add(time.Hour)) {
				require.NoError(r.t, err)
				return false
			}
		}
		return true
	}, patience, 5*time.Millisecond)
}

// TestEventAfterRefusal: if an event shows that a provider has a mail that its answer refused, the
// mail is not sent again, even if another provider has refused it meanwhile.
func TestEventAfterRefusal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sg := newScripted("sg", always(models.Unavailable))
		mg := newScripted("mg", func(_ context.Context, c *models.Call) []models.Part {
			return []models.Part{
				{Class: models.Throttled, Recipients: c.Numbers(), RetryAt: time.Now().Add(2 * time.Second)},
			}
		})
		r := emptyRig(t, nil, "sg", "mg")
		cfg := fast()
		cfg.Delays = []time.Duration{2 * time.Second}
		r.withEvents(cfg, sg, mg)
		b := r.batch(1, true, func(b *models.Batch, _ []models.Recipient) { b.Providers = []string{"sg", "mg"} })
		require.Eventually(t, func() bool {
			return r.view(b).Status(1).Attempts == 2 && r.view(b).Status(1).Last.Verdict == models.VerdictRefused
		}, patience, 20*time.Millisecond)
		r.event("sg", b.ID.Log(1), models.Event{ID: "1", Attempt: 1, Kind: models.Deferred, At: time.Now()})
		require.Eventually(t, func() bool { return r.view(b).Status(1).Unsettled() }, patience, 20*time.Millisecond)
		r.lookedAtLately(b)
		r.event("sg", b.ID.Log(1), models.Event{ID: "2", Attempt: 1, Kind: models.Delivered, At: time.Now()})
		v := r.done(b)
		require.Equal(t, models.Success, v.Status(1).State)
		require.Equal(t, 2, v.Status(1).Attempts)
		require.Equal(t, 1, sg.count())
		require.Equal(t, 1, mg.count())
	})
}
