package consumers

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/policy"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
)

// oneByOne is a rig in which sg does not say whether it took the first two mails of
// a chunk, and refuses the rest, which mg takes one by one: the handler that sends
// them is at it when the window of the first two closes. Before it closes, events of
// the given kinds come in, the first for the first mail. On a machine that is held up
// at the wrong moment all of it begins again.
func oneByOne(
	t *testing.T,
	policy models.UnknownPolicy,
	kinds ...models.EventKind,
) (r *rig, b *models.Batch, mg *scripted) {
	t.Helper()
	for began := time.Now(); ; {
		require.Less(t, time.Since(began), patience)
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
		require.Eventually(t, func() bool { return mg.count() >= 2 }, patience, time.Millisecond)
		if r.view(b).Tries(1)[0].Verdict != models.VerdictUnknown {
			r.stop()
			continue // the call began too late to be made
		}
		for i, kind := range kinds {
			r.event(
				"sg",
				b.ID.Log(i+1),
				models.Event{ID: fmt.Sprint("e", i), Attempt: r.view(b).Tries(i + 1)[0].Attempt, Kind: kind, At: time.Now()},
			)
		}
		require.Eventually(t, func() bool {
			for i := range kinds {
				if r.view(b).Tries(i + 1)[0].Verdict == models.VerdictUnknown {
					return false
				}
			}
			return true
		}, patience, time.Millisecond)
		if time.Now().Before(r.view(b).Entries[0].CallEnds.Add(cfg.EvidenceWindow)) {
			return r, b, mg
		}
		r.stop()
	}
}

// What an event proves while a handler works on the chunk keeps it from sending that
// mail again.
func TestProvedMeanwhileIsNotSentAgain(t *testing.T) {
	t.Parallel()
	r, b, mg := oneByOne(t, models.Resend, models.Delivered, models.Delivered)
	require.EqualValues(t, 30, r.done(b).Summary().Success)
	require.Zero(t, mg.copiesOf(b.ID.Log(1)))
	require.Zero(t, mg.copiesOf(b.ID.Log(2)))
}

// Nor is it held then, as if nothing were known of it.
func TestProvedMeanwhileIsNotHeld(t *testing.T) {
	t.Parallel()
	r, b, _ := oneByOne(t, models.Hold, models.Processed)
	require.Eventually(t, func() bool { return r.view(b).Summary().Queued == 1 }, patience, time.Millisecond)
	v := r.view(b)
	require.Equal(t, models.Queued, v.Status(1).State)
	require.Equal(t, models.VerdictAccepted, v.Status(1).Last.Verdict)
	require.Equal(t, models.OutcomeUnknown, v.Status(2).Reason)
}

// Where it turns out that one of several providers has the mail, no further one gets
// it, though it is not known whether the newest took it, too.
func TestTakenAndUnknownGoesNowhereElse(t *testing.T) {
	t.Parallel()
	aa, bb, cc := newScripted(
		"aa",
		always(models.Unknown),
	), newScripted(
		"bb",
		always(models.Unknown),
	), newScripted(
		"cc",
		always(models.Accepted),
	)
	r := emptyRig(t, nil, "aa", "bb", "cc")
	cfg := fast()
	cfg.StartBy, cfg.EvidenceWindow = 200*time.Millisecond, 300*time.Millisecond
	r.withEvents(cfg, aa, bb, cc)
	b := r.batch(1, true, func(b *models.Batch, _ []models.Recipient) {
		b.Providers, b.OnUnknown = []string{"aa", "bb", "cc"}, models.Resend
	})
	require.Eventually(t, func() bool { return bb.count() == 1 }, patience, time.Millisecond)
	r.event(
		"aa",
		b.ID.Log(1),
		models.Event{ID: "1", Attempt: r.view(b).Tries(1)[0].Attempt, Kind: models.Processed, At: time.Now()},
	)
	require.Eventually(t, func() bool {
		return len(r.dueWithin(b, time.Now().Add(time.Hour), time.Now().Add(200*time.Hour))) > 0 || cc.count() > 0
	}, patience,
		time.Millisecond, "the final event is waited for")
	require.Zero(t, cc.count())
	s := r.view(b).Status(1)
	require.Equal(t, models.Queued, s.State)
	require.Equal(t, "aa", s.Accepted.Provider)
}

// A mail that may be with a provider, and that nobody else can take, says so, and is
// released with its batch.
func TestResendNowhereElse(t *testing.T) {
	t.Parallel()
	sg := newScripted("sg", always(models.Unknown))
	r := emptyRig(t, nil, "sg")
	cfg := fast()
	cfg.StartBy, cfg.EvidenceWindow = 200*time.Millisecond, 200*time.Millisecond
	r.withEvents(cfg, sg)
	b := r.batch(1, true, func(b *models.Batch, _ []models.Recipient) { b.OnUnknown = models.Resend })
	v := r.done(b)
	require.Equal(t, models.OutcomeUnknown, v.Status(1).Reason)
	require.Contains(t, v.Status(1).Detail, models.NoProviderLeft.Words())
	require.True(t, policy.Released(v, &models.Command{Kind: models.RetryBatch, Batch: b.ID}).Empty(), "not safe")
	require.Equal(t, 1, policy.Released(v, &models.Command{Kind: models.ReleaseBatch, Batch: b.ID}).Len())
	require.Equal(t, 1, policy.Released(v, &models.Command{Kind: models.ReleaseBatch, Batch: b.ID, Provider: "sg"}).Len())
}

// A retry that was safe when it was ordered does not send what turns out meanwhile
// to be with a provider.
func TestRetryThatIsNoLongerSafe(t *testing.T) {
	t.Parallel()
	var up atomic.Bool
	mg := newScripted("mg", func(_ context.Context, c *models.Call) []models.Part {
		if up.Load() {
			return part(models.Accepted, c)
		}
		return part(models.Unavailable, c)
	})
	r := emptyRig(t, nil, "mg")
	cfg := fast()
	cfg.MaxRetries = 0
	r.withEvents(cfg, mg)
	b := r.batch(2, true, nil)
	require.Equal(t, models.RetriesUsedUp, r.done(b).Status(1).Reason)
	require.Equal(t, 1, mg.count())
	up.Store(true)
	r.order(models.Command{Kind: models.StopBatch, Batch: b.ID})
	r.order(models.Command{Kind: models.RetryBatch, Batch: b.ID})
	r.announce(b)
	require.Eventually(t, func() bool { return r.view(b).Summary().Queued == 2 }, patience, time.Millisecond)
	r.event("mg", b.ID.Log(1), models.Event{ID: "1", Attempt: 1, Kind: models.Deferred, At: time.Now()})
	require.Eventually(
		t,
		func() bool { return r.view(b).Status(1).Last.Verdict == models.VerdictAccepted },
		patience,
		time.Millisecond,
	)
	r.order(models.Command{Kind: models.ResumeBatch, Batch: b.ID})
	r.announce(b)
	require.Eventually(t, func() bool { return mg.copiesOf(b.ID.Log(2)) == 1 }, patience, time.Millisecond)
	require.Zero(t, mg.copiesOf(b.ID.Log(1)))
	require.False(t, r.view(b).Status(1).MayDouble)
}

// What is released although a provider took it goes on to another provider when the
// first refuses it: the release is not taken back.
func TestReleasedGoesElsewhere(t *testing.T) {
	t.Parallel()
	for _, class := range []models.Class{models.Throttled, models.Unavailable, models.RejectedHereClass} {
		t.Run(string(class), func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int64
			sg := newScripted("sg", func(_ context.Context, c *models.Call) []models.Part {
				if calls.Add(1) == 1 {
					return part(models.Accepted, c)
				}
				return part(class, c)
			})
			mg := newScripted("mg", always(models.Accepted))
			r := emptyRig(t, nil, "sg", "mg")
			cfg := fast()
			cfg.FinalEventWait, cfg.SilenceLeast = 300*time.Millisecond, time.Hour
			r.withEvents(cfg, sg, mg)
			b := r.batch(4, true, func(b *models.Batch, _ []models.Recipient) { b.Providers = []string{"sg", "mg"} })
			require.Equal(t, models.NoFinalEvent, r.done(b).Status(1).Reason)
			r.order(models.Command{Kind: models.ReleaseBatch, Batch: b.ID})
			r.announce(b)
			require.Eventually(t, func() bool { return mg.copiesOf(b.ID.Log(4)) == 1 }, patience, time.Millisecond)
			require.True(t, r.view(b).Status(4).MayDouble)
		})
	}
}

// A wait for evidence ends at its time also in a batch that is stopped.
func TestStoppedUnknownEnds(t *testing.T) {
	t.Parallel()
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
}

// A stopped batch is not looked through again and again: of what was never handed
// over nothing can become known.
func TestStoppedIsLeftAlone(t *testing.T) {
	t.Parallel()
	var reads atomic.Int64
	sg := newScripted("sg", always(models.Accepted))
	r := newRig(t, fast(), func(s models.Store) models.Store { return &countedReads{s, &reads} }, sg)
	b := r.batch(10, false, nil)
	r.order(models.Command{Kind: models.StopBatch, Batch: b.ID})
	r.looked(b)
	require.Eventually(t, func() bool { return r.engine.Pending() == 0 }, patience, time.Millisecond)
	require.EqualValues(t, 10, stored(t, r, b).Untried)
	r.caughtUp()
	r.engine.cluster.NoteGone(time.UnixMilli(1)) // a crash was long ago
	rounds := func() (n int) {
		for _, e := range r.dueWithin(b, time.Now(), time.Now().Add(time.Hour)) {
			n = max(n, e.Round)
		}
		return n
	}
	begun := rounds()
	require.Eventually(t, func() bool { return rounds() > begun+1 }, patience, time.Millisecond)
	before := reads.Load()
	require.Eventually(t, func() bool { return rounds() > begun+8 }, patience, time.Millisecond)
	require.Less(t, reads.Load(), before+3, "not at every look")
	r.order(models.Command{Kind: models.ResumeBatch, Batch: b.ID})
	r.announce(b)
	require.EqualValues(t, 10, r.done(b).Summary().Success)
}

// countedReads counts what is read of chunks.
type countedReads struct {
	models.Store
	n *atomic.Int64
}

func (s *countedReads) Record(ctx context.Context, chunk models.ID) ([]models.Entry, []models.Fact, error) {
	s.n.Add(1)
	return s.Store.Record(ctx, chunk)
}

// Mail that may be with a provider is not said to be blocked or cancelled: nobody
// knows what became of it.
func TestOrdersTellNoLies(t *testing.T) {
	t.Parallel()
	held := func(t *testing.T, policy models.UnknownPolicy) (*rig, *models.Batch, *scripted) {
		t.Helper()
		sg, mg := newScripted("sg", always(models.Unknown)), newScripted("mg", always(models.Accepted))
		cfg := fast()
		cfg.EvidenceWindow, cfg.StartBy = time.Millisecond, 300*time.Millisecond
		r := newRig(t, cfg, nil, sg, mg)
		b := r.batch(
			2,
			true,
			func(b *models.Batch, _ []models.Recipient) { b.Providers, b.OnUnknown = []string{"sg", "mg"}, policy },
		)
		require.Eventually(t, func() bool { return sg.count() == 1 }, patience, time.Millisecond)
		return r, b, mg
	}
	t.Run("blocked before it is sent again", func(t *testing.T) {
		t.Parallel()
		r, b, mg := held(t, models.Resend)
		r.order(models.Command{Kind: models.AddBlock, Block: &models.Block{ID: "b", Domain: "x.test", Fail: true}, Why: "no"})
		require.Equal(t, models.OutcomeUnknown, r.done(b).Status(1).Reason)
		require.Zero(t, mg.count())
	})
	t.Run("cancelled after its release", func(t *testing.T) {
		t.Parallel()
		r, b, mg := held(t, models.Hold)
		r.done(b)
		for _, a := range []string{"sg", "mg"} {
			r.order(models.Command{Kind: models.ProviderOffline, Provider: a})
		}
		r.order(models.Command{Kind: models.ReleaseBatch, Batch: b.ID})
		r.announce(b)
		require.Eventually(t, func() bool { return r.view(b).Summary().Queued == 2 }, patience, time.Millisecond)
		r.order(models.Command{Kind: models.CancelBatch, Batch: b.ID})
		r.announce(b)
		v := r.done(b)
		require.Equal(t, models.OutcomeUnknown, v.Status(1).Reason)
		require.Equal(t, "the batch was cancelled meanwhile", v.Status(1).Detail)
		require.Zero(t, mg.count())
	})
	t.Run("cancelled after a provider gave it up", func(t *testing.T) {
		t.Parallel()
		sg, mg := newScripted("sg", always(models.Accepted)), newScripted("mg", always(models.Accepted))
		r := emptyRig(t, nil, "sg", "mg")
		r.withEvents(fast(), sg, mg)
		r.order(models.Command{Kind: models.ProviderOffline, Provider: "mg"})
		b := r.batch(1, true, nil)
		r.taken(b)
		r.event(
			"sg",
			b.ID.Log(1),
			models.Event{ID: "1", Attempt: 1, Kind: models.Blocked, Reason: models.PolicyReputation, At: time.Now()},
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
}

// Where every provider that a mail may use is closed to it by a rule that fails mail,
// it fails.
func TestEveryProviderFailsIt(t *testing.T) {
	t.Parallel()
	sg, mg := newScripted("sg", always(models.Accepted)), newScripted("mg", always(models.Accepted))
	r := newRig(t, fast(), nil, sg, mg)
	for _, a := range []string{"sg", "mg"} {
		r.order(models.Command{Kind: models.AddBlock, Block: &models.Block{ID: a, Provider: a, Domain: "x.test", Fail: true}})
	}
	b := r.batch(2, true, nil)
	require.Equal(t, models.BlockedByRule, r.done(b).Status(1).Reason)
	require.Zero(t, sg.count()+mg.count())
}

// A second copy that was sent on purpose, and one that an event proves, are counted.
func TestDuplicatesAreCounted(t *testing.T) {
	t.Parallel()
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
	for _, try := range []models.Try{tries[len(tries)-1], tries[0]} { // whichever comes first
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
}

// Where it is not a wait for evidence that ends, nobody is asked before it does: mail
// that is let go by hand and cancelled is so at once.
func TestCancelledAfterItsReleaseAtOnce(t *testing.T) {
	t.Parallel()
	cfg := fast()
	cfg.StartBy, cfg.EvidenceWindow, cfg.FinalEventWait = 200*time.Millisecond, 300*time.Millisecond, 100*time.Hour
	p := &told{scripted: newScripted("mg", always(models.Unknown))}
	r := lookUpRig(t, cfg, p)
	b := r.batch(1, true, nil)
	require.Eventually(t, func() bool {
		return r.view(b).Status(1).Reason == models.OutcomeUnknown
	}, patience, 10*time.Millisecond)
	r.order(models.Command{Kind: models.StopBatch, Batch: b.ID})
	r.event(
		"mg",
		b.ID.Log(1),
		models.Event{ID: "1", Attempt: r.view(b).Entries[0].Number, Kind: models.Processed, At: time.Now()},
	)
	require.Eventually(t, func() bool { return r.view(b).Status(1).Accepted != nil }, patience, time.Millisecond)
	r.order(models.Command{Kind: models.ReleaseBatch, Batch: b.ID, Log: b.ID.Log(1)})
	r.announce(b)
	require.Eventually(t, func() bool { return r.view(b).Status(1).State == models.Queued }, patience, time.Millisecond)
	r.order(models.Command{Kind: models.CancelBatch, Batch: b.ID})
	r.announce(b)
	require.Equal(t, models.Failed, r.done(b).Status(1).State)
}

// What was let go while its user is paused goes on when the user is resumed, also where
// all of it had ended and nobody announces it.
func TestReleasedWhilePaused(t *testing.T) {
	t.Parallel()
	cfg := fast()
	cfg.StartBy, cfg.EvidenceWindow = 200*time.Millisecond, time.Millisecond
	var up atomic.Bool
	sg := newScripted("sg", func(_ context.Context, c *models.Call) []models.Part {
		if up.Load() {
			return part(models.Accepted, c)
		}
		return part(models.Unknown, c)
	})
	r := newRig(t, cfg, nil, sg)
	b := r.batch(2, true, nil)
	require.Equal(t, models.OutcomeUnknown, r.done(b).Status(1).Reason)
	require.Eventually(
		t,
		func() bool { return r.engine.Pending() == 0 && stored(t, r, b).Failed == 2 },
		patience,
		time.Millisecond,
	)
	up.Store(true)
	r.order(models.Command{Kind: models.PauseUser, User: r.user})
	r.order(models.Command{Kind: models.ReleaseBatch, Batch: b.ID})
	require.NoError(
		t,
		r.store.Schedule(
			t.Context(),
			models.AgendaEntry{
				Due:    time.Now().Add(100 * time.Millisecond),
				Kind:   models.LookAtBatch,
				ID:     b.ID,
				User:   b.User,
				Chunks: 1,
				Lane:   b.Lane,
			},
		),
	)
	require.Eventually(t, func() bool {
		due := r.dueWithin(b, time.Now(), time.Now().Add(time.Hour))
		return len(due) > 0 && due[len(due)-1].Round > 1
	}, patience, time.Millisecond, "the agenda has looked, and looks again")
	r.order(models.Command{Kind: models.ResumeUser, User: r.user})
	require.Eventually(t, func() bool { return sg.copiesOf(b.ID.Log(2)) == 1 }, patience, time.Millisecond)
}
