package consumers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/evidence"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// Snapshot is a scripted provider that can be asked for its events.
type told struct {
	*scripted
	mu     sync.Mutex
	events []models.ParsedEvent
	asked  int
	away   bool
	hangs  bool
}

func (p *told) LookupLag() time.Duration { return 0 }

func (p *told) LookUp(ctx context.Context, from, to time.Time, recipient string, post func([]byte) error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked++
	if p.hangs {
		p.mu.Unlock()
		<-ctx.Done()
		p.mu.Lock()
		return ctx.Err()
	}
	if p.away {
		return errors.New("answered 503")
	}
	for _, ev := range p.events {
		if ev.Event.At.Before(from) || !ev.Event.At.Before(to) {
			continue
		}
		if recipient != "" && recipient != p.address(ev.Log) {
			continue
		}
		body, err := json.Marshal([]models.ParsedEvent{ev})
		if err != nil {
			return err
		}
		if err := post(body); err != nil {
			return err
		}
	}
	return nil
}

// address is that of the rig's recipients.
func (p *told) address(log models.ID) string {
	return fmt.Sprintf("u%d@x.test", log.Recipient())
}

func (p *told) tell(log models.ID, attempt int, kind models.EventKind, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = append(
		p.events,
		models.ParsedEvent{
			Log:   log,
			Event: models.Event{ID: log.String() + string(kind), Attempt: attempt, Kind: kind, At: at},
		},
	)
}

func (p *told) questions() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked
}

func lookUpRig(t *testing.T, cfg Config, p *told) *rig {
	t.Helper()
	r := emptyRig(t, nil, "mg")
	r.engine = r.lookUpWorker(cfg, p)
	return r
}

// lookUpWorker starts an engine whose one provider can be asked for its events.
func (r *rig) lookUpWorker(cfg Config, p *told) *Engine {
	r.t.Helper()
	return r.start(
		cfg,
		[]provider.Spec{{Adapter: p, Provider: models.Provider{Name: "mg", Weight: 1, Concurrency: 4, ChunkLimit: 1000,
			Timeout: 100 * time.Millisecond, Events: models.EventsWebhook}}},
	)
}

// TestUnknownIsLookedUp: what a provider can tell of a call whose outcome is not
// known ends the wait, and what it cannot tell is held when the wait is over.
func TestUnknownIsLookedUp(t *testing.T) {
	t.Parallel()
	cfg := fast()
	cfg.StartBy, cfg.EvidenceWindow = 200*time.Millisecond, 600*time.Millisecond
	p := &told{scripted: newScripted("mg", always(models.Unknown)), away: true}
	r := lookUpRig(t, cfg, p)
	b := r.batch(3, true, nil)
	require.Eventually(
		t,
		func() bool { return p.questions() > 0 },
		patience,
		5*time.Millisecond,
		"asked when the window closes",
	)
	require.EqualValues(t, 3, r.view(b).Summary().Queued, "while the provider cannot be asked, nothing is ended")
	made := r.view(b).Status(1).Last.Attempt // a busy machine may have missed a start-by before
	p.tell(b.ID.Log(1), made, models.Delivered, time.Now())
	p.tell(b.ID.Log(2), made, models.Processed, time.Now())
	p.mu.Lock()
	p.away = false
	p.mu.Unlock()
	// The next question would come after queryDelays; an inquiry is made due.
	require.Eventually(t, func() bool {
		r.engine.evidence.Mu.Lock()
		for _, in := range r.engine.evidence.Open {
			in.Next = time.Now()
		}
		r.engine.evidence.Mu.Unlock()
		s := r.view(b).Summary()
		return s.Success == 1 && s.Failed == 1
	}, patience, 20*time.Millisecond)
	v := r.view(b)
	require.Equal(t, models.VerdictAccepted, v.Status(2).Last.Verdict)
	require.Equal(t, models.OutcomeUnknown, v.Status(3).Reason)
	require.Equal(t, 1, p.count())
}

// TestResendWaitsForTheAnswer: a second copy is sent only when the provider that may
// have the first was asked, and did not know of it.
func TestResendWaitsForTheAnswer(t *testing.T) {
	t.Parallel()
	cfg := fast()
	cfg.StartBy, cfg.EvidenceWindow, cfg.LookUpPause = 200*time.Millisecond, 400*time.Millisecond, 50*time.Millisecond
	p, other := &told{
		scripted: newScripted("mg", always(models.Unknown)),
		away:     true,
	}, newScripted(
		"sg",
		always(models.Accepted),
	)
	r := emptyRig(t, nil, "mg", "sg")
	spec := func(p models.Adapter, name string) provider.Spec {
		return provider.Spec{
			Adapter: p,
			Provider: models.Provider{
				Name:        name,
				Weight:      1,
				Concurrency: 4,
				ChunkLimit:  1000,
				Timeout:     100 * time.Millisecond,
				Events:      models.EventsWebhook,
			},
		}
	}
	r.engine = r.start(cfg, []provider.Spec{spec(p, "mg"), spec(other, "sg")})
	b := r.batch(2, true, func(b *models.Batch, _ []models.Recipient) {
		b.Providers, b.OnUnknown = []string{"mg", "sg"}, models.Resend
	})
	require.Eventually(
		t,
		func() bool { return p.questions() > 0 },
		patience,
		5*time.Millisecond,
		"asked when the window closes",
	)
	r.looked(b)
	require.Zero(t, other.count(), "while it cannot be asked, nothing is sent again")
	p.tell(b.ID.Log(1), r.view(b).Status(1).Last.Attempt, models.Delivered, time.Now())
	p.mu.Lock()
	p.away = false
	p.mu.Unlock()
	require.Eventually(t, func() bool {
		r.engine.evidence.Mu.Lock()
		for _, in := range r.engine.evidence.Open {
			in.Next = time.Now()
		}
		r.engine.evidence.Mu.Unlock()
		return r.view(b).Status(1).State == models.Success && other.copiesOf(b.ID.Log(2)) == 1
	}, patience, 20*time.Millisecond)
	require.Zero(t, other.copiesOf(b.ID.Log(1)), "the provider had it")
	require.True(t, r.view(b).Status(2).MayDouble)
}

// TestFoundAfterItWasHeld: what a look-up finds of a mail that was held meanwhile
// still lands in its log.
func TestFoundAfterItWasHeld(t *testing.T) {
	t.Parallel()
	cfg := fast()
	cfg.StartBy, cfg.EvidenceWindow = 200*time.Millisecond, 300*time.Millisecond
	p := &told{scripted: newScripted("mg", always(models.Unknown))}
	r := lookUpRig(t, cfg, p)
	b := r.batch(2, true, nil)
	require.Equal(t, models.OutcomeUnknown, r.done(b).Status(1).Reason)
	at := time.Now()
	p.tell(b.ID.Log(1), r.view(b).Status(1).Last.Attempt, models.Delivered, at)
	found := evidence.Findings{}
	require.NoError(
		t,
		r.engine.evidence.LookUp(t.Context(), "mg", p, at.Add(-time.Minute), at.Add(time.Minute), "", nil, found),
	)
	require.Equal(t, evidence.Findings{b.ID: {News: 1}}, found)
	require.Eventually(t, func() bool { return r.view(b).Status(1).State == models.Success }, patience, 5*time.Millisecond)
	require.Equal(t, models.OutcomeUnknown, r.view(b).Status(2).Reason)
}

// TestGapIsLookedUp: events that were reported while the door was shut are found.
func TestGapIsLookedUp(t *testing.T) {
	t.Parallel()
	p := &told{scripted: newScripted("mg", always(models.Accepted))}
	r := lookUpRig(t, fast(), p)
	b := r.batch(4, true, nil)
	r.taken(b)
	at := time.Now()
	for n := 1; n <= 4; n++ {
		p.tell(b.ID.Log(n), r.view(b).Status(n).Last.Attempt, models.Delivered, at)
	}
	raw, err := json.Marshal(telemetry.Outage{From: at.Add(-time.Minute), To: at.Add(time.Millisecond)})
	require.NoError(t, err)
	require.NoError(t, r.store.PutTransient(t.Context(), telemetry.OutageRecord, "g", raw, time.Hour))
	require.EqualValues(t, 4, r.done(b).Summary().Success)
	require.Eventually(t, func() bool {
		rows, err := r.store.Transients(t.Context(), telemetry.OutageRecord)
		var g telemetry.Outage
		return err == nil && json.Unmarshal(rows["g"], &g) == nil && g.Asked == 1
	}, patience, 5*time.Millisecond)
}

// TestOneHangsTheOthersAreAsked: a provider whose events API hangs, or is away,
// keeps nobody from asking the others, neither about calls nor about the time in
// which the door was shut; and it is asked about that time when it is back.
func TestOneHangsTheOthersAreAsked(t *testing.T) {
	t.Parallel()
	cfg := fast()
	cfg.StartBy, cfg.EvidenceWindow = 200*time.Millisecond, 600*time.Millisecond
	hangs, good := &told{
		scripted: newScripted("mg", always(models.Unknown)),
		hangs:    true,
	}, &told{
		scripted: newScripted("mg-eu", always(models.Unknown)),
	}
	r := emptyRig(t, nil, "mg", "mg-eu")
	spec := func(p *told) provider.Spec {
		return provider.Spec{
			Adapter: p,
			Provider: models.Provider{
				Name:        p.name,
				Weight:      1,
				Concurrency: 4,
				ChunkLimit:  1000,
				Timeout:     100 * time.Millisecond,
				Events:      models.EventsWebhook,
			},
		}
	}
	r.engine = r.start(cfg, []provider.Spec{spec(hangs), spec(good)})
	through := func(name string) func(*models.Batch, []models.Recipient) {
		return func(b *models.Batch, _ []models.Recipient) { b.Providers = []string{name} }
	}
	held, ended := r.batch(2, true, through("mg")), r.batch(2, true, through("mg-eu"))
	require.Eventually(t, func() bool { return hangs.questions() > 0 }, patience, 5*time.Millisecond)
	require.Equal(t, models.OutcomeUnknown, r.done(ended).Status(1).Reason)
	require.EqualValues(t, 2, r.view(held).Summary().Queued)

	hangs.mu.Lock()
	hangs.hangs, hangs.away = false, true // the question that hangs goes on to
	hangs.mu.Unlock()
	at := time.Now()
	raw, err := json.Marshal(telemetry.Outage{From: at.Add(-time.Minute), To: at.Add(time.Millisecond)})
	require.NoError(t, err)
	require.NoError(t, r.store.PutTransient(t.Context(), telemetry.OutageRecord, "g", raw, time.Hour))
	gaps := func() map[string]telemetry.Outage {
		rows, err := r.store.Transients(t.Context(), telemetry.OutageRecord)
		require.NoError(t, err)
		out := map[string]telemetry.Outage{}
		for name, raw := range rows {
			var g telemetry.Outage
			require.NoError(t, json.Unmarshal(raw, &g))
			out[name] = g
		}
		return out
	}
	require.Eventually(
		t,
		func() bool { return gaps()["g"].Asked == 1 && gaps()["g@mg"].Provider == "mg" },
		patience,
		5*time.Millisecond,
	)
	require.Zero(t, gaps()["g@mg"].Asked)
	hangs.mu.Lock()
	hangs.away = false
	hangs.mu.Unlock()
	require.Eventually(t, func() bool { return gaps()["g@mg"].Asked == 1 }, patience, 5*time.Millisecond)
	require.Equal(t, 1, gaps()["g"].Asked)
}

// TestFoundAgain: what was found and waits to be worked off is found by the next
// question, too, and is not put into the inbox twice.
func TestFoundAgain(t *testing.T) {
	t.Parallel()
	p := &told{scripted: newScripted("mg", always(models.Accepted))}
	r := lookUpRig(t, fast(), p)
	b := r.batch(2, true, nil)
	r.taken(b)
	r.stop() // nobody works anything off
	at := time.Now()
	find := func() int {
		found := evidence.Findings{}
		require.NoError(
			t,
			r.engine.evidence.LookUp(t.Context(), "mg", p, at.Add(-time.Minute), at.Add(time.Minute), "", nil, found),
		)
		return found.Total()
	}
	posts := func() (n int) {
		for shard := range r.store.Shards() {
			for in, err := range r.store.Pending(t.Context(), shard, time.Time{}, at.Add(time.Hour)) {
				require.NoError(t, err)
				full, err := r.store.Inbox(t.Context(), in.ID)
				require.NoError(t, err)
				n += len(full[0].Posts)
			}
		}
		return n
	}
	p.tell(b.ID.Log(1), r.view(b).Status(1).Last.Attempt, models.Delivered, at)
	require.Equal(t, 1, find())
	require.Equal(t, 1, find(), "no answer says that there is nothing")
	p.tell(b.ID.Log(2), r.view(b).Status(2).Last.Attempt, models.Delivered, at)
	require.Equal(t, 2, find())
	require.Equal(t, 2, posts())

	// What has become a fact is no news, and its chunk need not be read again for it.
	r.engine = r.lookUpWorker(fast(), p)
	require.EqualValues(t, 2, r.done(b).Summary().Success)
	r.stop()
	require.Zero(t, find())
	for n := 1; n <= 2; n++ {
		worked, ok := r.engine.evidence.Filed.Get(
			evidence.FiledEvent{Provider: "mg", ID: b.ID.Log(n).String() + string(models.Delivered)},
		)
		require.True(t, ok && worked)
	}
	require.Zero(t, find())
}

// TestGapsAreLookedUpTogether: a process that died again and again left gaps that
// overlap; they are one question.
func TestGapsAreLookedUpTogether(t *testing.T) {
	t.Parallel()
	p := &told{scripted: newScripted("mg", always(models.Accepted))}
	r := emptyRig(t, nil, "mg")
	at := time.Now().Add(-time.Second)
	for i := range 50 {
		raw, err := json.Marshal(telemetry.Outage{From: at.Add(-time.Minute + time.Duration(i)*time.Second), To: at})
		require.NoError(t, err)
		require.NoError(t, r.store.PutTransient(t.Context(), telemetry.OutageRecord, fmt.Sprint("g", i), raw, time.Hour))
	}
	// Due for the third time, and not for the fourth: else it is asked about again soon.
	raw, err := json.Marshal(telemetry.Outage{From: at.Add(-time.Hour), To: at.Add(-evidence.QueryDelays[2]), Asked: 2})
	require.NoError(t, err)
	require.NoError(t, r.store.PutTransient(t.Context(), telemetry.OutageRecord, "before", raw, time.Hour))
	r.start(
		fast(),
		[]provider.Spec{
			{
				Adapter: p,
				Provider: models.Provider{
					Name:        "mg",
					Weight:      1,
					Concurrency: 4,
					ChunkLimit:  1000,
					Timeout:     time.Second,
					Events:      models.EventsWebhook,
				},
			},
		},
	)
	require.Eventually(t, func() bool {
		rows, err := r.store.Transients(t.Context(), telemetry.OutageRecord)
		require.NoError(t, err)
		for name, raw := range rows {
			var g telemetry.Outage
			require.NoError(t, json.Unmarshal(raw, &g))
			if want := map[bool]int{true: 3, false: 1}[name == "before"]; g.Asked != want {
				return false
			}
		}
		return len(rows) == 51
	}, patience, 5*time.Millisecond)
	require.Equal(t, 2, p.questions())
}

// TestNoFinalEventIsLookedUpFirst: before accepted mail ends for want of a final
// event, the provider is asked.
func TestNoFinalEventIsLookedUpFirst(t *testing.T) {
	t.Parallel()
	cfg := fast()
	cfg.FinalEventWait = 300 * time.Millisecond
	p := &told{scripted: newScripted("mg", always(models.Accepted))}
	r := lookUpRig(t, cfg, p)
	b := r.batch(2, false, nil)
	p.tell(b.ID.Log(2), 1, models.Delivered, time.Now().Add(10*time.Millisecond))
	r.announce(b)
	v := r.done(b)
	require.Equal(t, models.NoFinalEvent, v.Status(1).Reason)
	require.Equal(t, models.Success, v.Status(2).State)
	require.Equal(t, 1, p.count())
}

// paged is a provider whose look-ups take as long as the test says: pages that come
// a minute apart, and then nothing more.
type paged struct {
	*scripted
	pages int
	hangs bool
}

func (p *paged) LookupLag() time.Duration { return 0 }

func (p *paged) LookUp(ctx context.Context, _, _ time.Time, _ string, post func([]byte) error) error {
	for range p.pages {
		select {
		case <-time.After(time.Minute):
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := post([]byte("[]")); err != nil {
			return err
		}
	}
	if p.hangs {
		<-ctx.Done()
	}
	return ctx.Err()
}

// A look-up may take as long as it needs while pages come, or a long gap would
// never be read to its end; one that hangs ends.
func TestLongLookUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &paged{scripted: newScripted("mg", nil), pages: 100}
		e, err := New(
			&entries{},
			nil,
			[]provider.Spec{{Adapter: p, Provider: models.Provider{Name: "mg", Weight: 1, Concurrency: 1}}},
			fast(),
		)
		require.NoError(t, err)
		lookUp := func() error {
			return e.evidence.LookUp(t.Context(), "mg", p, time.Now().Add(-time.Hour), time.Now(), "", nil, evidence.Findings{})
		}
		require.NoError(t, lookUp())
		p.hangs = true
		require.ErrorIs(t, lookUp(), context.Canceled)
	})
}
