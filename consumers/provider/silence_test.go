package provider

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

func TestSilence(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	hour := ago(time.Hour)
	usable := func(e *silenceFixture, name string) bool {
		ok, _ := e.providers.Get(name).Health.usable(time.Now())
		return ok
	}
	for _, c := range []struct {
		name   string
		upTime time.Time // since when the receiver is up
		given  func(e *silenceFixture)
		want   bool // still usable
	}{
		{"reports", hour, func(e *silenceFixture) { e.flows.Add("sg", ago(2*time.Minute), 100, 100) }, true},
		{"no mail", hour, func(*silenceFixture) {}, true},
		{"little mail", hour, func(e *silenceFixture) { e.flows.Add("sg", ago(2*time.Minute), silenceLeast-1, 0) }, true},
		{"too early to say", hour, func(e *silenceFixture) { e.flows.Add("sg", ago(30*time.Second), 100, 0) }, true},
		{"silent", hour, func(e *silenceFixture) { e.flows.Add("sg", ago(2*time.Minute), 100, 0) }, false},
		{"silent, as all workers saw it", hour, func(e *silenceFixture) {
			e.flows.Merge("other", map[string]map[int64]Flow{"sg": {bucket(ago(2 * time.Minute)): {Accepted: 100}}})
		}, false},
		{"reports to another worker", hour, func(e *silenceFixture) {
			e.flows.Add("sg", ago(2*time.Minute), 100, 0)
			e.flows.Merge("other", map[string]map[int64]Flow{"sg": {bucket(ago(2 * time.Minute)): {Reported: 90}}})
		}, true},
		{"next to no report on newer mail, either", hour, func(e *silenceFixture) {
			e.flows.Add("sg", ago(2*time.Minute), 1000, 0)
			e.flows.Add("sg", ago(10*time.Second), 1000, 1)
		}, false},
		{"suspended since that mail", hour, func(e *silenceFixture) {
			e.flows.Add("sg", ago(2*time.Minute), 1000, 0)
			e.providers.Get("sg").Health.suspend(telemetry.Silence, ago(time.Minute), "it was silent")
			e.providers.Get("sg").Health.EndProbation()
		}, true},
		{"a post waits in our own inbox", hour, func(e *silenceFixture) {
			e.flows.Add("sg", ago(2*time.Minute), 1000, 0)
			id, posts := models.NewInboxID(ago(90*time.Second)), []models.Post{{Body: []byte("[]")}}
			e.store.inbox = append(e.store.inbox, models.Inbox{ID: id, Provider: "sg", Posts: posts})
		}, true},
		{"reports again", hour, func(e *silenceFixture) {
			e.flows.Add("sg", ago(2*time.Minute), 100, 0)
			e.flows.Add("sg", ago(10*time.Second), 0, 3)
		}, true},
		{"became silent", hour, func(e *silenceFixture) {
			e.flows.Add("sg", ago(5*time.Minute), 20_000, 19_990)
			for k := range silenceSteps {
				e.flows.Add("sg", ago(2*time.Minute+time.Duration(k)*flowBucket), 10, 0)
			}
		}, false},
		{"silent about much mail", hour, func(e *silenceFixture) {
			e.flows.Add("sg", ago(5*time.Minute), 20_000, 19_990)
			e.flows.Add("sg", ago(2*time.Minute), silenceMany, 3)
		}, false},
		{"silent about one batch", hour, func(e *silenceFixture) {
			e.flows.Add("sg", ago(5*time.Minute), 1000, 990)
			e.flows.Add("sg", ago(2*time.Minute), silenceMany-1, 0)
		}, true},
		{"silent about little mail", hour, func(e *silenceFixture) {
			e.flows.Add("sg", ago(5*time.Minute), 1000, 990)
			for k := range silenceLeast - 1 {
				e.flows.Add("sg", ago(90*time.Second+time.Duration(k)*flowBucket), 1, 0)
			}
		}, true},
		{"reports on some mail", hour, func(e *silenceFixture) {
			for k := range 12 {
				e.flows.Add("sg", ago(90*time.Second+time.Duration(k)*flowBucket), 100, 3)
			}
		}, true},
		{"the receiver was down meanwhile", ago(90 * time.Second), func(e *silenceFixture) {
			e.flows.Add("sg", ago(2*time.Minute), 100, 0)
		}, true},
		{"all are silent", hour, func(e *silenceFixture) {
			e.flows.Add("sg", ago(2*time.Minute), 100, 0)
			e.flows.Add("mg", ago(2*time.Minute), 100, 0)
		}, true},
		{"the other is down", hour, func(e *silenceFixture) {
			e.flows.Add("sg", ago(2*time.Minute), 100, 0)
			e.providers.Get("mg").Health.suspend(telemetry.Rejected, now.Add(time.Hour), "key")
		}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e := newSilenceFixture("sg", "mg")
			e.flows.delays["sg"], e.flows.delays["mg"] = &delays{}, &delays{}
			for range learnLeast {
				e.flows.delays["sg"].add(time.Second)
				e.flows.delays["mg"].add(time.Second)
			}
			c.given(e)
			e.silence.judgeSilence(t.Context(), e.providers.Get("sg"), now, c.upTime)
			require.Equal(t, c.want, usable(e, "sg"))
			if !c.want {
				is := e.providers.Get("sg").Health.Report(now, control.ProviderMode{})
				require.Equal(t, telemetry.Silence, is.Source)
				require.Contains(t, is.Why, "reported nothing")
			}
		})
	}
	t.Run("slow by nature", func(t *testing.T) {
		t.Parallel()
		e := newSilenceFixture("sg", "mg")
		e.flows.delays["sg"] = &delays{}
		for range learnLeast {
			e.flows.delays["sg"].add(10 * time.Minute)
		}
		e.flows.Add("sg", ago(5*time.Minute), 100, 0)
		e.silence.judgeSilence(t.Context(), e.providers.Get("sg"), now, hour)
		require.True(t, usable(e, "sg"))
	})
	t.Run("it reported to an earlier worker", func(t *testing.T) {
		t.Parallel()
		e := newSilenceFixture("sg", "mg")
		seen := telemetry.HistoryHour{}
		for range 2 * learnLeast {
			minute := seen.At("sg", 7)
			minute.Delivered++
			minute.Delivery.Add(2 * time.Second)
		}
		e.store.transients[telemetry.HistoryKind(ago(3*time.Hour))] = map[string][]byte{"w": seen.Encode()}
		require.Zero(t, e.flows.ReportTime("sg"))
		require.NoError(t, e.silence.learn(t.Context(), now))
		require.InDelta(t, 2*time.Second, e.flows.ReportTime("sg"), float64(time.Second))
		require.Zero(t, e.flows.ReportTime("mg"))
		e.flows.Add("sg", ago(2*time.Minute), 100, 0)
		e.silence.judgeSilence(t.Context(), e.providers.Get("sg"), now, hour)
		require.False(t, usable(e, "sg"))
	})
	t.Run("it never reported", func(t *testing.T) {
		t.Parallel()
		e := newSilenceFixture("sg", "mg")
		e.flows.Add("sg", ago(5*time.Minute), 100, 0)
		e.silence.judgeSilence(t.Context(), e.providers.Get("sg"), now, hour)
		require.True(t, usable(e, "sg"), "its webhooks may never have been set up")
	})
}

func TestReceiverLiveness(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var r receiverLiveness
	at := func(n int) map[string][]byte {
		raw, err := json.Marshal(fmt.Sprint("heartbeat ", n))
		require.NoError(t, err)
		return map[string][]byte{"a": raw}
	}
	r.observe(at(1), now)
	require.True(t, r.since.IsZero(), "the heartbeat may be old")
	r.observe(at(2), now.Add(10*time.Second))
	require.Equal(t, now.Add(10*time.Second), r.since)
	r.observe(at(2), now.Add(20*time.Second))
	r.observe(at(3), now.Add(30*time.Second))
	require.Equal(t, now.Add(10*time.Second), r.since)
	r.observe(at(3), now.Add(60*time.Second))
	require.True(t, r.since.IsZero())
	r.observe(at(4), now.Add(70*time.Second))
	require.Equal(t, now.Add(70*time.Second), r.since)
}

// The reports that a worker counted still count after it has left.
func TestFlowsOutlivePeer(t *testing.T) {
	t.Parallel()
	f := NewFlows()
	now := bucket(time.Now())
	f.Merge("a", map[string]map[int64]Flow{"sg": {now - 1: {Accepted: 5, Reported: 300}}})
	f.Merge("b", map[string]map[int64]Flow{"sg": {now - flowKept - 5: {Accepted: 7}}})
	f.Merge("a", nil)
	require.Equal(t, Flow{Accepted: 5, Reported: 300}, f.between("sg", now-10, now))
	require.Len(t, f.others, 1, "old counts are dropped")
}

// silenceFixture is a detector that is not running, with providers that report.
type silenceFixture struct {
	flows     *Flows
	providers *Set
	store     *silenceStore
	silence   *SilenceDetector
}

func newSilenceFixture(names ...string) *silenceFixture {
	var specs []Spec
	for _, n := range names {
		info := models.Provider{Name: n, Concurrency: 1, Events: models.EventsWebhook}
		specs = append(specs, Spec{Adapter: idleAdapter{}, Provider: info})
	}
	cfg := defaultConfig()
	set, err := NewSet(specs, cfg, alone{})
	if err != nil {
		panic(err)
	}
	f := &silenceFixture{
		flows:     NewFlows(),
		providers: set,
		store:     &silenceStore{transients: map[string]map[string][]byte{}},
	}
	f.silence = NewSilenceDetector(cfg, f.store, set, f.flows, func(context.Context) bool { return false })
	return f
}

// silenceStore keeps what a detector reads, in memory.
type silenceStore struct {
	transients map[string]map[string][]byte // by kind
	inbox      []models.Inbox
}

func (s *silenceStore) Transients(_ context.Context, kind string) (map[string][]byte, error) {
	return s.transients[kind], nil
}

func (s *silenceStore) Shards() int { return 1 }

func (s *silenceStore) Pending(_ context.Context, _ int, from, to time.Time) iter.Seq2[models.Inbox, error] {
	return func(yield func(models.Inbox, error) bool) {
		for _, in := range s.inbox {
			if at := in.Received(); !at.Before(from) && at.Before(to) && !yield(in, nil) {
				return
			}
		}
	}
}

// TestReportTime checks how long after an attempt a provider is taken to have reported.
func TestReportTime(t *testing.T) {
	t.Parallel()
	attempt := time.Now()
	at := func(d time.Duration) time.Time { return attempt.Add(d) }
	require.Equal(t, 40*time.Second, reportTime(attempt, at(time.Second), at(40*time.Second)), "its posts come late")
	require.Equal(t, time.Second, reportTime(attempt, at(time.Second), at(2*time.Hour)), "the receiver was down")
	require.Zero(t, reportTime(attempt, at(-time.Second), at(-time.Second)))
}
