package consumers

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// silenceEngine is an engine that is not started, of providers that report.
func silenceEngine(t *testing.T, names ...string) *Engine {
	t.Helper()
	r := emptyRig(t, nil, names...)
	var providers []Provider
	for _, n := range names {
		providers = append(providers, Provider{Adapter: newScripted(n, nil), Provider: models.Provider{Name: n, Concurrency: 1, Events: models.EventsWebhook}})
	}
	e, err := New(r.store, r.broker, providers, DefaultConfig())
	require.NoError(t, err)
	return e
}

func TestSilence(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	hour := ago(time.Hour)
	usable := func(e *Engine, name string) bool { ok, _ := e.byName[name].health.usable(time.Now()); return ok }
	for _, c := range []struct {
		name  string
		door  time.Time
		given func(e *Engine)
		want  bool // still usable
	}{
		{"talks", hour, func(e *Engine) { e.flows.add("sg", ago(2*time.Minute), 100, 100) }, true},
		{"quiet", hour, func(*Engine) {}, true},
		{"little mail", hour, func(e *Engine) { e.flows.add("sg", ago(2*time.Minute), silenceLeast-1, 0) }, true},
		{"too early to say", hour, func(e *Engine) { e.flows.add("sg", ago(30*time.Second), 100, 0) }, true},
		{"silent", hour, func(e *Engine) { e.flows.add("sg", ago(2*time.Minute), 100, 0) }, false},
		{"silent, as all workers saw it", hour, func(e *Engine) {
			e.flows.hear("other", map[string]map[int64]Flow{"sg": {bucketOf(ago(2 * time.Minute)): {Taken: 100}}})
		}, false},
		{"another worker heard", hour, func(e *Engine) {
			e.flows.add("sg", ago(2*time.Minute), 100, 0)
			e.flows.hear("other", map[string]map[int64]Flow{"sg": {bucketOf(ago(2 * time.Minute)): {Heard: 90}}})
		}, true},
		{"next to nothing is heard of newer mail, either", hour, func(e *Engine) {
			e.flows.add("sg", ago(2*time.Minute), 1000, 0)
			e.flows.add("sg", ago(10*time.Second), 1000, 1)
		}, false},
		{"left alone since that mail", hour, func(e *Engine) {
			e.flows.add("sg", ago(2*time.Minute), 1000, 0)
			e.byName["sg"].health.fallenSilent(ago(time.Minute), "it was silent")
			e.byName["sg"].health.trusted()
		}, true},
		{"a post waits in our own inbox", hour, func(e *Engine) {
			e.flows.add("sg", ago(2*time.Minute), 1000, 0)
			in := models.Inbox{ID: models.NewInboxID(ago(90 * time.Second)), Provider: "sg", Posts: []models.Post{{Body: []byte("[]")}}}
			require.NoError(t, e.store.PutInbox(t.Context(), in))
		}, true},
		{"talks again", hour, func(e *Engine) {
			e.flows.add("sg", ago(2*time.Minute), 100, 0)
			e.flows.add("sg", ago(10*time.Second), 0, 3)
		}, true},
		{"gone silent", hour, func(e *Engine) {
			e.flows.add("sg", ago(5*time.Minute), 20_000, 19_990)
			for k := range silenceSteps {
				e.flows.add("sg", ago(2*time.Minute+time.Duration(k)*flowBucket), 10, 0)
			}
		}, false},
		{"much has gone silent", hour, func(e *Engine) {
			e.flows.add("sg", ago(5*time.Minute), 20_000, 19_990)
			e.flows.add("sg", ago(2*time.Minute), silenceMany, 3)
		}, false},
		{"gone silent with one batch", hour, func(e *Engine) {
			e.flows.add("sg", ago(5*time.Minute), 1000, 990)
			e.flows.add("sg", ago(2*time.Minute), silenceMany-1, 0)
		}, true},
		{"little has gone silent", hour, func(e *Engine) {
			e.flows.add("sg", ago(5*time.Minute), 1000, 990)
			for k := range silenceLeast - 1 {
				e.flows.add("sg", ago(90*time.Second+time.Duration(k)*flowBucket), 1, 0)
			}
		}, true},
		{"some of it was heard", hour, func(e *Engine) {
			for k := range 12 {
				e.flows.add("sg", ago(90*time.Second+time.Duration(k)*flowBucket), 100, 3)
			}
		}, true},
		{"the door was shut meanwhile", ago(90 * time.Second), func(e *Engine) { e.flows.add("sg", ago(2*time.Minute), 100, 0) }, true},
		{"all are silent", hour, func(e *Engine) {
			e.flows.add("sg", ago(2*time.Minute), 100, 0)
			e.flows.add("mg", ago(2*time.Minute), 100, 0)
		}, true},
		{"the other is down", hour, func(e *Engine) {
			e.flows.add("sg", ago(2*time.Minute), 100, 0)
			e.byName["mg"].health.shutOff(now.Add(time.Hour), "key")
		}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e := silenceEngine(t, "sg", "mg")
			e.flows.delays["sg"], e.flows.delays["mg"] = &delays{}, &delays{}
			for range learnLeast {
				e.flows.delays["sg"].add(time.Second)
				e.flows.delays["mg"].add(time.Second)
			}
			c.given(e)
			e.judgeSilence(t.Context(), e.byName["sg"], now, c.door)
			require.Equal(t, c.want, usable(e, "sg"))
			if !c.want {
				require.Equal(t, telemetry.Tripped, e.byName["sg"].health.report().State)
				require.Contains(t, e.byName["sg"].health.report().Why, "reported nothing")
			}
		})
	}
	t.Run("slow by nature", func(t *testing.T) {
		t.Parallel()
		e := silenceEngine(t, "sg", "mg")
		e.flows.delays["sg"] = &delays{}
		for range learnLeast {
			e.flows.delays["sg"].add(10 * time.Minute)
		}
		e.flows.add("sg", ago(5*time.Minute), 100, 0)
		e.judgeSilence(t.Context(), e.byName["sg"], now, hour)
		require.True(t, usable(e, "sg"))
	})
	t.Run("it reported to an earlier worker", func(t *testing.T) {
		t.Parallel()
		e := silenceEngine(t, "sg", "mg")
		for k := range 2 * learnLeast {
			e.history.event(&models.Event{Provider: "sg", Kind: models.Delivered, At: ago(3*time.Hour + time.Duration(k)*time.Second)},
				&models.Entry{At: ago(3*time.Hour + time.Duration(k+2)*time.Second)})
		}
		require.NoError(t, e.history.flush(t.Context()))
		require.Zero(t, e.flows.usual("sg"))
		require.NoError(t, e.learn(t.Context(), now))
		require.InDelta(t, 2*time.Second, e.flows.usual("sg"), float64(time.Second))
		require.Zero(t, e.flows.usual("mg"))
		e.flows.add("sg", ago(2*time.Minute), 100, 0)
		e.judgeSilence(t.Context(), e.byName["sg"], now, hour)
		require.False(t, usable(e, "sg"))
	})
	t.Run("never heard of", func(t *testing.T) {
		t.Parallel()
		e := silenceEngine(t, "sg", "mg")
		e.flows.add("sg", ago(5*time.Minute), 100, 0)
		e.judgeSilence(t.Context(), e.byName["sg"], now, hour)
		require.True(t, usable(e, "sg"), "its webhooks may never have been set up")
	})
}

// What a provider drops without an attempt to deliver it is no sign of life, and what
// was looked up later says nothing of how long it usually takes.
func TestReports(t *testing.T) {
	t.Parallel()
	e := silenceEngine(t, "sg")
	now := time.Now()
	of := &models.Entry{At: now.Add(-time.Minute)}
	heard := func() int64 { return e.flows.between("sg", 0, bucketOf(now)+1).Heard }
	for _, kind := range []models.EventKind{models.Dropped, models.Rejected, models.Processed, models.Opened} {
		e.countEvent(&models.Event{Provider: "sg", Kind: kind, At: now}, of, now)
	}
	require.Zero(t, heard())
	for _, kind := range []models.EventKind{models.Delivered, models.Bounced, models.Blocked, models.Deferred} {
		e.countEvent(&models.Event{Provider: "sg", Kind: kind, At: now}, of, now)
	}
	require.EqualValues(t, 4, heard())

	at := func(d time.Duration) time.Time { return of.At.Add(d) }
	require.Equal(t, 40*time.Second, reportTime(of.At, at(time.Second), at(40*time.Second)), "its posts come late")
	require.Equal(t, time.Second, reportTime(of.At, at(time.Second), at(2*time.Hour)), "our door was shut")
	require.Zero(t, reportTime(of.At, at(-time.Second), at(-time.Second)))
}

func TestDoorWatch(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var d doorWatch
	at := func(n int) map[string][]byte {
		raw, err := json.Marshal(fmt.Sprint("beat ", n))
		require.NoError(t, err)
		return map[string][]byte{"a": raw}
	}
	d.look(at(1), now)
	require.True(t, d.since.IsZero(), "a report may be of long ago")
	d.look(at(2), now.Add(10*time.Second))
	require.Equal(t, now.Add(10*time.Second), d.since)
	d.look(at(2), now.Add(20*time.Second))
	d.look(at(3), now.Add(30*time.Second))
	require.Equal(t, now.Add(10*time.Second), d.since)
	d.look(at(3), now.Add(60*time.Second))
	require.True(t, d.since.IsZero())
	d.look(at(4), now.Add(70*time.Second))
	require.Equal(t, now.Add(70*time.Second), d.since)
}

// TestReportsAreHeard: what the engine sends and what it is told end up in the
// counts by which silence is judged.
func TestReportsAreHeard(t *testing.T) {
	t.Parallel()
	p := &told{scripted: newScripted("mg", always(models.Accepted))}
	r := lookUpRig(t, fast(), p)
	b := r.batch(5, true, nil)
	r.taken(b)
	var events []models.ParsedEvent
	for n := 1; n <= 3; n++ {
		events = append(events, models.ParsedEvent{Log: b.ID.Log(n), Event: models.Event{ID: fmt.Sprint(n), Attempt: 1, Kind: models.Delivered, At: time.Now()}})
	}
	body, err := json.Marshal(events)
	require.NoError(t, err)
	in := models.Inbox{ID: models.NewInboxID(time.Now()), Provider: "mg", Posts: []models.Post{{Body: body}}}
	require.NoError(t, r.store.PutInbox(t.Context(), in))
	require.NoError(t, r.broker.Publish(t.Context(), models.Message{Kind: models.EventMessage, Provider: "mg", ID: in.ID}))
	require.Eventually(t, func() bool {
		f := r.engine.flows.between("mg", 0, bucketOf(time.Now())+1)
		return f == Flow{Taken: 5, Heard: 3}
	}, patience, 5*time.Millisecond)
}

// What a worker heard counts when it is gone, as long as what others gave counts.
func TestGoneWorkersWereHeard(t *testing.T) {
	t.Parallel()
	f := newFlows()
	now := bucketOf(time.Now())
	f.hear("a", map[string]map[int64]Flow{"sg": {now - 1: {Taken: 5, Heard: 300}}})
	f.hear("b", map[string]map[int64]Flow{"sg": {now - flowKept - 5: {Taken: 7}}})
	f.hear("a", nil)
	require.Equal(t, Flow{Taken: 5, Heard: 300}, f.between("sg", now-10, now))
	require.Len(t, f.others, 1, "what is old is let go of")
}
