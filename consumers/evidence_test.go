package consumers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// reporting is a scripted provider with an events API, which returns the events that the test has added.
type reporting struct {
	*scripted
	mu      sync.Mutex
	events  []models.ParsedEvent
	queried int
	down    bool
	hangs   bool
}

func (p *reporting) LookupLag() time.Duration { return 0 }

func (p *reporting) Repeats() time.Duration { return 0 }

func (p *reporting) LookUp(ctx context.Context, q models.LookupQuery, post func([]byte) error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queried++
	if p.hangs {
		p.mu.Unlock()
		<-ctx.Done()
		p.mu.Lock()
		return ctx.Err()
	}
	if p.down {
		return errors.New("answered 503")
	}
	for _, ev := range p.events {
		if ev.Event.At.Before(q.From) || !ev.Event.At.Before(q.To) {
			continue
		}
		if q.Recipient != "" && q.Recipient != cmp.Or(ev.Address, p.address(ev.Log)) {
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

// address returns the address of one of the rig's recipients.
func (p *reporting) address(log models.ID) string {
	return fmt.Sprintf("u%d@x.test", log.Recipient())
}

// report adds an event of an attempt.
func (p *reporting) report(log models.ID, attempt int, kind models.EventKind, at time.Time) {
	ev := models.Event{ID: log.String() + string(kind), Attempt: attempt, Kind: kind, At: at}
	p.reportAll(models.ParsedEvent{Log: log, Event: ev})
}

func (p *reporting) reportAll(events ...models.ParsedEvent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = append(p.events, events...)
}

func (p *reporting) queries() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.queried
}

// lookUpRig is a rig whose one provider has an events API.
func lookUpRig(t *testing.T, cfg Config, p *reporting) *rig {
	t.Helper()
	r := emptyRig(t, nil, "mg")
	r.engine = r.lookUpWorker(cfg, p)
	return r
}

// lookUpWorker starts an engine whose one provider has an events API.
func (r *rig) lookUpWorker(cfg Config, p *reporting) *Engine {
	r.t.Helper()
	return r.start(
		cfg,
		[]provider.Spec{{Adapter: p, Provider: models.Provider{Name: "mg", Weight: 1, Concurrency: 4, ChunkLimit: 1000,
			Timeout: 100 * time.Millisecond, Events: models.EventsWebhook}}},
	)
}

// TestUnknownOutcomeIsLookedUp: an event that a look-up finds ends the wait for evidence.
// Mail about which it finds nothing is held when its evidence window has expired.
func TestUnknownOutcomeIsLookedUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := fast()
		cfg.StartBy, cfg.EvidenceWindow = time.Hour, 600*time.Millisecond
		p := &reporting{scripted: newScripted("mg", always(models.Unknown)), down: true}
		r := lookUpRig(t, cfg, p)
		b := r.batch(3, true, nil)
		require.Eventually(
			t,
			func() bool { return p.queries() > 0 },
			patience,
			5*time.Millisecond,
			"it is queried when the window expires",
		)
		require.EqualValues(t, 3, open(r.view(b)), "while the provider cannot be queried, nothing is ended")
		made := r.view(b).Status(1).Last.Attempt
		p.report(b.ID.Log(1), made, models.Delivered, time.Now())
		p.report(b.ID.Log(2), made, models.Processed, time.Now())
		p.mu.Lock()
		p.down = false
		p.mu.Unlock()
		require.Eventually(t, func() bool {
			s := r.view(b).Summary()
			return s.Success == 1 && s.Failed == 1
		}, patience, 20*time.Millisecond)
		v := r.view(b)
		require.Equal(t, models.VerdictAccepted, v.Status(2).Last.Verdict)
		require.Equal(t, models.OutcomeUnknown, v.Status(3).Reason)
		require.Equal(t, 1, p.count())
	})
}

// TestResendWaitsForLookup: a second copy is sent only after the provider that may have the
// first was queried, and reported nothing.
func TestResendWaitsForLookup(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := fast()
		cfg.StartBy, cfg.EvidenceWindow, cfg.LookUpPause = time.Hour, 400*time.Millisecond, 50*time.Millisecond
		p := &reporting{scripted: newScripted("mg", always(models.Unknown)), down: true}
		other := newScripted("sg", always(models.Accepted))
		r := emptyRig(t, nil, "mg", "sg")
		const timeout = 100 * time.Millisecond
		r.engine = r.start(cfg, []provider.Spec{specOf(p, "mg", timeout), specOf(other, "sg", timeout)})
		b := r.batch(2, true, func(b *models.Batch, _ []models.Recipient) {
			b.Providers, b.OnUnknown = []string{"mg", "sg"}, models.Resend
		})
		require.Eventually(
			t,
			func() bool { return p.queries() > 0 },
			patience,
			5*time.Millisecond,
			"it is queried when the window expires",
		)
		r.looked(b)
		require.Zero(t, other.count(), "while it cannot be queried, nothing is sent again")
		p.report(b.ID.Log(1), r.view(b).Status(1).Last.Attempt, models.Delivered, time.Now())
		p.mu.Lock()
		p.down = false
		p.mu.Unlock()
		require.Eventually(t, func() bool {
			return r.view(b).Status(1).State == models.Success && other.copiesOf(b.ID.Log(2)) == 1
		}, patience, 20*time.Millisecond)
		require.Zero(t, other.copiesOf(b.ID.Log(1)), "its provider had delivered it")
		require.True(t, r.view(b).Status(2).MayDouble)
	})
}

// TestLookupAfterHold: an event that a look-up finds changes the log of a mail that was
// held meanwhile.
func TestLookupAfterHold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := fast()
		cfg.StartBy, cfg.EvidenceWindow = time.Hour, 300*time.Millisecond
		p := &reporting{scripted: newScripted("mg", always(models.Unknown))}
		r := lookUpRig(t, cfg, p)
		b := r.batch(2, true, nil)
		require.Equal(t, models.OutcomeUnknown, r.done(b).Status(1).Reason)
		at := time.Now()
		p.report(b.ID.Log(1), r.view(b).Status(1).Last.Attempt, models.Delivered, at)
		r.outage(telemetry.Outage{From: at.Add(-time.Minute), To: at.Add(time.Millisecond)})
		require.Eventually(
			t,
			func() bool { return r.view(b).Status(1).State == models.Success },
			patience,
			5*time.Millisecond,
		)
		require.Equal(t, models.OutcomeUnknown, r.view(b).Status(2).Reason)
	})
}

// outage stores an outage of the webhook receiver under the name o.
func (r *rig) outage(o telemetry.Outage) {
	r.t.Helper()
	raw, err := json.Marshal(o)
	require.NoError(r.t, err)
	require.NoError(r.t, r.store.PutTransient(r.t.Context(), telemetry.OutageRecord, "o", raw, time.Hour))
}

// outages returns the stored outages of the webhook receiver by name.
func (r *rig) outages() map[string]telemetry.Outage {
	r.t.Helper()
	rows, err := r.store.Transients(r.t.Context(), telemetry.OutageRecord)
	require.NoError(r.t, err)
	out := map[string]telemetry.Outage{}
	for name, raw := range rows {
		var o telemetry.Outage
		require.NoError(r.t, json.Unmarshal(raw, &o))
		out[name] = o
	}
	return out
}

// TestOutageIsLookedUp: events that were reported during an outage of the webhook receiver
// are found.
func TestOutageIsLookedUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &reporting{scripted: newScripted("mg", always(models.Accepted))}
		r := lookUpRig(t, fast(), p)
		b := r.batch(4, true, nil)
		r.taken(b)
		at := time.Now()
		for n := 1; n <= 4; n++ {
			p.report(b.ID.Log(n), r.view(b).Status(n).Last.Attempt, models.Delivered, at)
		}
		r.outage(telemetry.Outage{From: at.Add(-time.Minute), To: at.Add(time.Millisecond)})
		require.EqualValues(t, 4, r.done(b).Summary().Success)
		require.Eventually(t, func() bool { return r.outages()["o"].Asked == 1 }, patience, 5*time.Millisecond)
	})
}

// TestHangingEventsAPI: a provider whose events API hangs or is down does not delay the
// look-ups at others, neither of unknown outcomes nor of an outage. It is queried about the
// outage when it is back.
func TestHangingEventsAPI(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := fast()
		cfg.StartBy, cfg.EvidenceWindow = time.Hour, 600*time.Millisecond
		hangs := &reporting{scripted: newScripted("mg", always(models.Unknown)), hangs: true}
		good := &reporting{scripted: newScripted("mg-eu", always(models.Unknown))}
		r := emptyRig(t, nil, "mg", "mg-eu")
		spec := func(p *reporting) provider.Spec {
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
		require.Eventually(t, func() bool { return hangs.queries() > 0 }, patience, 5*time.Millisecond)
		require.Equal(t, models.OutcomeUnknown, r.done(ended).Status(1).Reason)
		require.EqualValues(t, 2, open(r.view(held)))

		hangs.mu.Lock()
		hangs.hangs, hangs.down = false, true // the query that hangs continues to
		hangs.mu.Unlock()
		at := time.Now()
		r.outage(telemetry.Outage{From: at.Add(-time.Minute), To: at.Add(time.Millisecond)})
		require.Eventually(
			t,
			func() bool { return r.outages()["o"].Asked == 1 && r.outages()["o@mg"].Provider == "mg" },
			patience,
			5*time.Millisecond,
		)
		require.Zero(t, r.outages()["o@mg"].Asked)
		hangs.mu.Lock()
		hangs.down = false
		hangs.mu.Unlock()
		require.Eventually(t, func() bool { return r.outages()["o@mg"].Asked == 1 }, patience, 5*time.Millisecond)
		require.Equal(t, 1, r.outages()["o"].Asked)
	})
}

// TestOutagesShareQuery: overlapping outages, as a process leaves them that is killed again
// and again, share a query.
func TestOutagesShareQuery(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &reporting{scripted: newScripted("mg", always(models.Accepted))}
		r := emptyRig(t, nil, "mg")
		at := time.Now().Add(-time.Second)
		for i := range 50 {
			raw, err := json.Marshal(
				telemetry.Outage{From: at.Add(-time.Minute + time.Duration(i)*time.Second), To: at},
			)
			require.NoError(t, err)
			require.NoError(
				t,
				r.store.PutTransient(t.Context(), telemetry.OutageRecord, fmt.Sprint("o", i), raw, time.Hour),
			)
		}
		// An outage that ended 5 minutes ago is due for the third time, and not for the fourth.
		raw, err := json.Marshal(telemetry.Outage{From: at.Add(-time.Hour), To: at.Add(-5 * time.Minute), Asked: 2})
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
			all := r.outages()
			for name, o := range all {
				if want := map[bool]int{true: 3, false: 1}[name == "before"]; o.Asked != want {
					return false
				}
			}
			return len(all) == 51
		}, patience, 5*time.Millisecond)
		require.Equal(t, 2, p.queries())
	})
}

// TestNoFinalEventIsLookedUpFirst: before accepted mail ends because no final event
// arrived, its provider is queried.
func TestNoFinalEventIsLookedUpFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := fast()
		cfg.FinalEvent = 300 * time.Millisecond
		p := &reporting{scripted: newScripted("mg", always(models.Accepted))}
		r := lookUpRig(t, cfg, p)
		b := r.batch(2, false, nil)
		p.report(b.ID.Log(2), 1, models.Delivered, time.Now().Add(10*time.Millisecond))
		r.announce(b)
		v := r.done(b)
		require.Equal(t, models.NoFinalEvent, v.Status(1).Reason)
		require.Equal(t, models.Success, v.Status(2).State)
		require.Equal(t, 1, p.count())
	})
}
