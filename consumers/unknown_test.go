package consumers

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
)

// oneByOne returns a rig in which sg does not answer the call with the first two mails of a
// chunk, and refuses the rest, which mg takes one by one. A handler is sending them when the
// evidence window of the first two expires. Before that, events of the given kinds arrive, the
// first for the first mail. The test is in a synctest bubble, so all of this takes its time exactly.
func oneByOne(
	t *testing.T,
	policy models.UnknownPolicy,
	kinds ...models.EventKind,
) (r *rig, b *models.Batch, mg *scripted) {
	t.Helper()
	var calls atomic.Int64
	sg := newScripted("sg", func(_ context.Context, c *models.Call) []models.Part {
		if calls.Add(1) == 1 {
			return part(models.Unknown, c)
		}
		return part(models.RejectedHereClass, c)
	})
	mg = newScripted("mg", func(_ context.Context, c *models.Call) []models.Part {
		time.Sleep(150 * time.Millisecond)
		parts := part(models.Accepted, c)
		parts[0].Final = true
		return parts
	})
	cfg := fast()
	cfg.StartBy, cfg.EvidenceWindow, cfg.Recheck = time.Second, time.Second, time.Hour
	spec := func(p *scripted, perCall int, events models.EventSource) provider.Spec {
		return provider.Spec{
			Adapter: p,
			Provider: models.Provider{
				Name:        p.name,
				Weight:      1,
				Concurrency: 2,
				ChunkLimit:  perCall,
				Timeout:     300 * time.Millisecond,
				Events:      events,
			},
		}
	}
	r = emptyRig(t, nil, "sg", "mg")
	r.engine = r.start(cfg, []provider.Spec{spec(sg, 2, models.EventsWebhook), spec(mg, 1, models.EventsNone)})
	b = r.batch(
		30,
		true,
		func(b *models.Batch, _ []models.Recipient) { b.Providers, b.OnUnknown = []string{"sg", "mg"}, policy },
	)
	require.Eventually(t, func() bool { return mg.count() >= 2 }, patience, 20*time.Millisecond)
	for i, kind := range kinds {
		r.event(
			"sg",
			b.ID.Log(i+1),
			models.Event{
				ID:      fmt.Sprint("e", i),
				Attempt: r.view(b).Tries(i + 1)[0].Attempt,
				Kind:    kind,
				At:      time.Now(),
			},
		)
	}
	require.Eventually(t, func() bool {
		for i := range kinds {
			if r.view(b).Tries(i + 1)[0].Verdict == models.VerdictUnknown {
				return false
			}
		}
		return true
	}, patience, 20*time.Millisecond)
	require.Less(
		t,
		time.Since(r.view(b).Entries[0].At),
		cfg.EvidenceWindow,
		"the events came before the window expired",
	)
	return r, b, mg
}

// TestEventWhileSendingStopsResend: mail is not sent again if an event proves that it was
// delivered while a handler is sending the rest of its chunk.
func TestEventWhileSendingStopsResend(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, b, mg := oneByOne(t, models.Resend, models.Delivered, models.Delivered)
		require.EqualValues(t, 30, r.done(b).Summary().Success)
		require.Zero(t, mg.copiesOf(b.ID.Log(1)))
		require.Zero(t, mg.copiesOf(b.ID.Log(2)))
	})
}

// TestEventWhileSendingStopsHold: mail is not held in that case, either.
func TestEventWhileSendingStopsHold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, b, _ := oneByOne(t, models.Hold, models.Processed)
		require.Eventually(t, func() bool { return open(r.view(b)) == 1 }, patience, 20*time.Millisecond)
		v := r.view(b)
		require.Equal(t, models.Sent, v.Status(1).State)
		require.Equal(t, models.VerdictAccepted, v.Status(1).Last.Verdict)
		require.Equal(t, models.OutcomeUnknown, v.Status(2).Reason)
	})
}

// TestAcceptedMailIsNotResent: once an event shows that a provider has accepted a mail, no further
// provider gets it, even if the outcome of the newest attempt is unknown.
func TestAcceptedMailIsNotResent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began, free := make(chan struct{}), make(chan struct{})
		aa, cc := newScripted("aa", always(models.Unknown)), newScripted("cc", always(models.Accepted))
		bb := newScripted("bb", func(_ context.Context, c *models.Call) []models.Part {
			close(began)
			<-free
			return part(models.Unknown, c)
		})
		r := emptyRig(t, nil, "aa", "bb", "cc")
		cfg := fast()
		cfg.StartBy, cfg.EvidenceWindow = 200*time.Millisecond, 300*time.Millisecond
		r.withEvents(cfg, aa, bb, cc)
		b := r.batch(1, true, func(b *models.Batch, _ []models.Recipient) {
			b.Providers, b.OnUnknown = []string{"aa", "bb", "cc"}, models.Resend
		})
		<-began
		r.event(
			"aa",
			b.ID.Log(1),
			models.Event{ID: "1", Attempt: r.view(b).Tries(1)[0].Attempt, Kind: models.Processed, At: time.Now()},
		)
		require.Eventually(t, func() bool {
			return r.view(b).Tries(1)[0].Verdict == models.VerdictAccepted
		}, patience, 20*time.Millisecond)
		close(free)
		require.Eventually(t, func() bool {
			return len(r.dueWithin(b, time.Now().Add(time.Hour), time.Now().Add(200*time.Hour))) > 0 || cc.count() > 0
		}, patience,
			time.Millisecond, "it waits for the final event")
		require.Zero(t, cc.count())
		s := r.view(b).Status(1)
		require.Equal(t, models.Sent, s.State)
		require.Equal(t, "aa", s.Accepted.Provider)
	})
}

// TestWindowOfStoppedBatchExpires: an evidence window expires even if the batch is stopped.
func TestWindowOfStoppedBatchExpires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := fast()
		cfg.EvidenceWindow, cfg.StartBy = time.Millisecond, 300*time.Millisecond
		began, free := make(chan struct{}), make(chan struct{})
		sg := newScripted("sg", func(_ context.Context, c *models.Call) []models.Part {
			close(began)
			<-free
			return part(models.Unknown, c)
		})
		r := newRig(t, cfg, nil, sg)
		b := r.batch(4, true, nil)
		<-began
		r.order(models.Command{Kind: models.StopBatch, Batch: b.ID})
		close(free)
		require.Equal(t, models.OutcomeUnknown, r.done(b).Status(1).Reason)
	})
}

// TestStoppedBatchIsNotRead: the chunks of a stopped batch are not read at each reconcile if no
// recipient was handed over, because nothing new can be known of them.
func TestStoppedBatchIsNotRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var reads atomic.Int64
		sg := newScripted("sg", always(models.Accepted))
		r := newRig(t, fast(), func(s models.Store) models.Store { return &countedReads{s, &reads} }, sg)
		b := r.batch(10, false, nil)
		r.order(models.Command{Kind: models.StopBatch, Batch: b.ID})
		r.looked(b)
		require.Eventually(t, func() bool {
			return r.engine.Pending() == 0 && storedUntil(t, r.store, b) != nil
		}, patience, 20*time.Millisecond)
		require.EqualValues(t, 10, stored(t, r, b).Untried)
		r.caughtUp()
		r.engine.cluster.NoteGone(time.UnixMilli(1)) // no worker has stopped recently
		rounds := func() (n int) {
			for _, e := range r.dueWithin(b, time.Now(), time.Now().Add(time.Hour)) {
				n = max(n, e.Round)
			}
			return n
		}
		begun := rounds()
		require.Eventually(t, func() bool { return rounds() > begun+1 }, patience, 20*time.Millisecond)
		before := reads.Load()
		require.Eventually(t, func() bool { return rounds() > begun+8 }, patience, 20*time.Millisecond)
		require.Less(t, reads.Load(), before+3, "not at each reconcile")
		r.order(models.Command{Kind: models.ResumeBatch, Batch: b.ID})
		r.announce(b)
		require.EqualValues(t, 10, r.done(b).Summary().Success)
	})
}

// countedReads is a store that counts the reads of records.
type countedReads struct {
	models.Store
	n *atomic.Int64
}

func (s *countedReads) Record(ctx context.Context, chunk models.ID) ([]models.Entry, []models.Fact, error) {
	s.n.Add(1)
	return s.Store.Record(ctx, chunk)
}

// TestCommandsKeepUnknownOutcome: a block or a cancellation does not hide that a provider may have
// the mail.
func TestCommandsKeepUnknownOutcome(t *testing.T) {
	t.Parallel()
	held := func(t *testing.T, policy models.UnknownPolicy) (*rig, *models.Batch, *scripted) {
		t.Helper()
		sg, mg := newScripted("sg", always(models.Unknown)), newScripted("mg", always(models.Accepted))
		cfg := fast()
		cfg.EvidenceWindow, cfg.StartBy = time.Millisecond, 300*time.Millisecond
		r := newRig(t, cfg, nil, sg, mg)
		r.order(models.Command{Kind: models.ProviderOffline, Provider: "mg"})
		b := r.batch(
			2,
			true,
			func(b *models.Batch, _ []models.Recipient) { b.Providers, b.OnUnknown = []string{"sg", "mg"}, policy },
		)
		require.Eventually(t, func() bool { return sg.count() == 1 }, patience, 20*time.Millisecond)
		return r, b, mg
	}
	t.Run("blocked before it is sent again", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			r, b, mg := held(t, models.Resend)
			r.order(
				models.Command{
					Kind:  models.AddBlock,
					Block: &models.Block{ID: "b", Domain: "x.test", Fail: true},
					Why:   "no",
				},
			)
			r.order(models.Command{Kind: models.ProviderOnline, Provider: "mg"})
			require.Equal(t, models.OutcomeUnknown, r.done(b).Status(1).Reason)
			require.Zero(t, mg.count())
		})
	})
	t.Run("cancelled after its release", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			r, b, mg := held(t, models.Hold)
			r.done(b)
			r.order(models.Command{Kind: models.ProviderOffline, Provider: "sg"})
			r.order(models.Command{Kind: models.ReleaseBatch, Batch: b.ID})
			r.announce(b)
			require.Eventually(t, func() bool { return open(r.view(b)) == 2 }, patience, 20*time.Millisecond)
			r.order(models.Command{Kind: models.CancelBatch, Batch: b.ID})
			r.announce(b)
			v := r.done(b)
			require.Equal(t, models.OutcomeUnknown, v.Status(1).Reason)
			require.Equal(t, "the batch was cancelled meanwhile", v.Status(1).Detail)
			require.Zero(t, mg.count())
		})
	})
	t.Run("cancelled after a provider gave it up", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			sg, mg := newScripted("sg", always(models.Accepted)), newScripted("mg", always(models.Accepted))
			r := emptyRig(t, nil, "sg", "mg")
			r.withEvents(fast(), sg, mg)
			r.order(models.Command{Kind: models.ProviderOffline, Provider: "mg"})
			b := r.batch(1, true, nil)
			r.taken(b)
			r.event(
				"sg",
				b.ID.Log(1),
				models.Event{
					ID:      "1",
					Attempt: 1,
					Kind:    models.Blocked,
					Reason:  models.PolicyReputation,
					At:      time.Now(),
				},
			)
			require.Eventually(
				t,
				func() bool { return r.view(b).Status(1).Last.Verdict == models.VerdictFailed },
				patience,
				time.Millisecond,
			)
			r.order(models.Command{Kind: models.CancelBatch, Batch: b.ID})
			r.announce(b)
			v := r.done(b)
			require.Equal(t, models.Failed, v.Status(1).State)
			require.Equal(t, models.PolicyReputation, v.Status(1).Reason)
		})
	})
}

// TestDuplicatesAreCounted: second copies that may have been sent are counted, and those that
// events prove.
func TestDuplicatesAreCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewPedanticRegistry()
		cfg := fast()
		cfg.Metrics, cfg.SumsPoll = reg, 50*time.Millisecond
		cfg.StartBy, cfg.EvidenceWindow = 200*time.Millisecond, 300*time.Millisecond
		sg, mg := newScripted("sg", always(models.Unknown)), newScripted("mg", always(models.Accepted))
		r := emptyRig(t, nil, "sg", "mg")
		r.known()
		r.withEvents(cfg, sg, mg)
		b := r.batch(2, true, func(b *models.Batch, _ []models.Recipient) {
			b.Providers, b.OnUnknown = []string{"sg", "mg"}, models.Resend
		})
		r.taken(b)
		require.Equal(t, "mg", r.view(b).Status(1).Last.Provider)
		require.InDelta(t, 2, value(gathered(t, reg), "safedelivr_possible_duplicates_total"), 0)
		tries := r.view(b).Tries(1)
		for _, try := range []models.Try{tries[len(tries)-1], tries[0]} { // in the other order
			r.event(
				try.Provider,
				b.ID.Log(1),
				models.Event{ID: try.Provider, Attempt: try.Attempt, Kind: models.Delivered, At: time.Now()},
			)
		}
		require.Eventually(
			t,
			func() bool { return value(gathered(t, reg), "safedelivr_doubled_deliveries") == 1 },
			patience,
			10*time.Millisecond,
		)
		require.Equal(t, 2, r.view(b).Status(1).Copies)
		require.True(t, r.view(b).Status(1).MayDouble)
	})
}
