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
	"github.com/safedelivr/safedelivr/models/telemetry"
)

func TestSilence(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	hour := ago(time.Hour)
	usable := func(e *silenceFixture, name string) bool {
		ok, _ := e.providers.Get(name).Health.Usable(time.Now())
		return ok
	}
	for _, c := range []struct {
		name  string
		door  time.Time
		given func(e *silenceFixture)
		want  bool // still usable
	}{
		{"talks", hour, func(e *silenceFixture) { e.flows.Add("sg", ago(2*time.Minute), 100, 100) }, true},
		{"quiet", hour, func(*silenceFixture) {}, true},
		{"little mail", hour, func(e *silenceFixture) { e.flows.Add("sg", ago(2*time.Minute), silenceLeast-1, 0) }, true},
		{"too early to say", hour, func(e *silenceFixture) { e.flows.Add("sg", ago(30*time.Second), 100, 0) }, true},
		{"silent", hour, func(e *silenceFixture) { e.flows.Add("sg", ago(2*time.Minute), 100, 0) }, false},
		{"silent, as all workers saw it", hour, func(e *silenceFixture) {
			e.flows.Merge("other", map[string]map[int64]Flow{"sg": {Bucket(ago(2 * time.Minute)): {Accepted: 100}}})
		}, false},
		{"another worker heard", hour, func(e *silenceFixture) {
			e.flows.Add("sg", ago(2*time.Minute), 100, 0)
			e.flows.Merge("other", map[string]map[int64]Flow{"sg": {Bucket(ago(2 * time.Minute)): {Reported: 90}}})
		}, true},
		{"next to nothing is heard of newer mail, either", hour, func(e *silenceFixture) {
			e.flows.Add("sg", ago(2*time.Minute), 1000, 0)
			e.flows.Add("sg", ago(10*time.Second), 1000, 1)
		}, false},
		{"left alone since that mail", hour, func(e *silenceFixture) {
			e.flows.Add("sg", ago(2*time.Minute), 1000, 0)
			e.providers.Get("sg").Health.SuspendSilent(ago(time.Minute), "it was silent")
			e.providers.Get("sg").Health.EndProbation()
		}, true},
		{"a post waits in our own inbox", hour, func(e *silenceFixture) {
			e.flows.Add("sg", ago(2*time.Minute), 1000, 0)
			in := models.Inbox{ID: models.NewInboxID(ago(90 * time.Second)), Provider: "sg", Posts: []models.Post{{Body: []byte("[]")}}}
			e.store.inbox = append(e.store.inbox, in)
		}, true},
		{"talks again", hour, func(e *silenceFixture) {
			e.flows.Add("sg", ago(2*time.Minute), 100, 0)
			e.flows.Add("sg", ago(10*time.Second), 0, 3)
		}, true},
		{"gone silent", hour, func(e *silenceFixture) {
			e.flows.Add("sg", ago(5*time.Minute), 20_000, 19_990)
			for k := range silenceSteps {
				e.flows.Add("sg", ago(2*time.Minute+time.Duration(k)*flowBucket), 10, 0)
			}
		}, false},
		{"much has gone silent", hour, func(e *silenceFixture) {
			e.flows.Add("sg", ago(5*time.Minute), 20_000, 19_990)
			e.flows.Add("sg", ago(2*time.Minute), silenceMany, 3)
		}, false},
		{"gone silent with one batch", hour, func(e *silenceFixture) {
			e.flows.Add("sg", ago(5*time.Minute), 1000, 990)
			e.flows.Add("sg", ago(2*time.Minute), silenceMany-1, 0)
		}, true},
		{"little has gone silent", hour, func(e *silenceFixture) {
			e.flows.Add("sg", ago(5*time.Minute), 1000, 990)
			for k := range silenceLeast - 1 {
				e.flows.Add("sg", ago(90*time.Second+time.Duration(k)*flowBucket), 1, 0)
			}
		}, true},
		{"some of it was heard", hour, func(e *silenceFixture) {
			for k := range 12 {
				e.flows.Add("sg", ago(90*time.Second+time.Duration(k)*flowBucket), 100, 3)
			}
		}, true},
		{"the door was shut meanwhile", ago(90 * time.Second), func(e *silenceFixture) { e.flows.Add("sg", ago(2*time.Minute), 100, 0) }, true},
		{"all are silent", hour, func(e *silenceFixture) {
			e.flows.Add("sg", ago(2*time.Minute), 100, 0)
			e.flows.Add("mg", ago(2*time.Minute), 100, 0)
		}, true},
		{"the other is down", hour, func(e *silenceFixture) {
			e.flows.Add("sg", ago(2*time.Minute), 100, 0)
			e.providers.Get("mg").Health.Suspend(now.Add(time.Hour), "key")
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
			e.silence.judgeSilence(t.Context(), e.providers.Get("sg"), now, c.door)
			require.Equal(t, c.want, usable(e, "sg"))
			if !c.want {
				require.Equal(t, telemetry.Tripped, e.providers.Get("sg").Health.Report().State)
				require.Contains(t, e.providers.Get("sg").Health.Report().Why, "reported nothing")
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
	t.Run("never heard of", func(t *testing.T) {
		t.Parallel()
		e := newSilenceFixture("sg", "mg")
		e.flows.Add("sg", ago(5*time.Minute), 100, 0)
		e.silence.judgeSilence(t.Context(), e.providers.Get("sg"), now, hour)
		require.True(t, usable(e, "sg"), "its webhooks may never have been set up")
	})
}

func TestDoorWatch(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var d receiverLiveness
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

// What a worker heard counts when it is gone, as long as what others gave counts.
func TestGoneWorkersWereHeard(t *testing.T) {
	t.Parallel()
	f := NewFlows()
	now := Bucket(time.Now())
	f.Merge("a", map[string]map[int64]Flow{"sg": {now - 1: {Accepted: 5, Reported: 300}}})
	f.Merge("b", map[string]map[int64]Flow{"sg": {now - flowKept - 5: {Accepted: 7}}})
	f.Merge("a", nil)
	require.Equal(t, Flow{Accepted: 5, Reported: 300}, f.Between("sg", now-10, now))
	require.Len(t, f.others, 1, "what is old is let go of")
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
