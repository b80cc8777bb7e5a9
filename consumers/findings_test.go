package consumers

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/cluster"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// A worker that starts restores the findings of earlier workers, whether they stopped or
// died. Findings about the provider itself hold for the rest of their time, others for a
// moment.
func TestFindingsAreRestored(t *testing.T) {
	t.Parallel()
	suspend := func(source string) func(h *provider.Health) {
		return func(h *provider.Health) { h.Suspend(source, time.Now().Add(time.Hour), "so it is") }
	}
	is := func(h *provider.Health) telemetry.Health { return h.Report(time.Now(), control.ProviderSwitch{}) }
	for source, c := range map[string]struct {
		trouble func(h *provider.Health)
		atMost  time.Duration
	}{
		telemetry.Silence:  {suspend(telemetry.Silence), time.Hour},
		telemetry.Rejected: {suspend(telemetry.Rejected), 11 * time.Second},
		telemetry.CallsFailed: {func(h *provider.Health) {
			for is(h).State == telemetry.Healthy {
				answer(h, "a.test", models.Part{Class: models.Unknown, Text: "no answer"})
			}
		}, 11 * time.Second},
		telemetry.RetryAfter: {func(h *provider.Health) {
			answer(h, "a.test", models.Part{Class: models.Throttled, RetryAt: time.Now().Add(time.Hour), Text: "too fast"})
		}, time.Hour},
	} {
		t.Run(source, func(t *testing.T) {
			t.Parallel()
			p, q := newScripted("sg", always(models.Accepted)), newScripted("mg", always(models.Accepted))
			r := emptyRig(t, nil, "sg", "mg")
			cfg := fast()
			cfg.BreakerOpen = 5 * time.Second
			r.engine = r.worker(cfg, p, q)
			c.trouble(r.engine.providers.Get("sg").Health)
			r.stop()
			r.engine = r.worker(cfg, p, q)
			h := r.engine.providers.Get("sg").Health
			r.done(r.batch(3, true, nil)) // it runs
			require.Equal(t, telemetry.Suspended, is(h).State)
			require.Equal(t, source, is(h).Source)
			require.NotEmpty(t, is(h).Why)
			ok, until := h.Usable(time.Now())
			require.False(t, ok)
			require.LessOrEqual(t, time.Until(until), c.atMost)
			require.Zero(t, p.count())
			require.Equal(t, 1, q.count())
		})
	}
	t.Run("it is healthy again", func(t *testing.T) {
		t.Parallel()
		p := newScripted("sg", always(models.Accepted))
		r := emptyRig(t, nil, "sg")
		r.engine = r.worker(fast(), p)
		a := r.engine.providers.Get("sg")
		a.Health.Suspend(telemetry.Rejected, time.Now().Add(50*time.Millisecond), "for a moment")
		known := func() bool {
			all, err := r.store.Transients(t.Context(), cluster.FindingKind)
			require.NoError(t, err)
			return len(all) == 1
		}
		require.Eventually(t, known, patience, time.Millisecond)
		r.done(r.batch(1, true, nil)) // the probe
		require.Eventually(t, func() bool { return !known() }, patience, time.Millisecond)
	})
	t.Run("senders", func(t *testing.T) {
		t.Parallel()
		r := emptyRig(t, nil, "sg")
		cfg := fast()
		cfg.Hold = time.Hour
		r.engine = r.worker(cfg, newScripted("sg", always(models.Accepted)))
		answer(
			r.engine.providers.Get("sg").Health,
			"b.c",
			models.Part{Class: models.AccountClass, Reason: models.SenderNotVerified},
		)
		r.stop()
		r.engine = r.worker(cfg, newScripted("sg", always(models.Accepted)))
		require.Eventually(
			t,
			func() bool { return len(is(r.engine.providers.Get("sg").Health).Senders) == 1 },
			patience,
			time.Millisecond,
		)
		require.Equal(t, []string{"b.c"}, is(r.engine.providers.Get("sg").Health).Senders)
	})
}

// answer makes one call to a provider, with an answer of one part.
func answer(h *provider.Health, domain string, part models.Part) {
	if done, ok := h.Begin(domain, 1); ok {
		part.Recipients = models.SetOf(1)
		done([]models.Part{part}, time.Millisecond)
	}
}

func packed(t *testing.T, v any) []byte {
	t.Helper()
	raw, err := json.Marshal(v)
	require.NoError(t, err)
	return raw
}

// A finding is written once, not again while it does not change. A worker does not
// overwrite what another one found.
func TestFindingIsWrittenOnce(t *testing.T) {
	t.Parallel()
	r := emptyRig(t, nil, "sg")
	writes := &countedReports{Store: r.store}
	r.store = writes
	e, err := New(
		r.store,
		r.broker,
		[]provider.Spec{{Adapter: newScripted("sg", nil), Provider: models.Provider{Name: "sg", Weight: 1, Concurrency: 1}}},
		fast(),
	)
	require.NoError(t, err)
	t.Cleanup(e.dispatch.Stop)
	known := cluster.Persisted{}
	h := e.providers.Get("sg").Health
	h.Suspend(telemetry.Rejected, time.Now().Add(-time.Minute), "a probe is required")
	for range 10 {
		known["sg"] = cluster.SavedFinding{
			Finding: known["sg"].Finding,
			At:      known["sg"].At.Add(-time.Minute),
		} // it was a while ago
		require.NoError(t, e.cluster.Persist(t.Context(), known))
	}
	require.Equal(t, 1, writes.n)
	require.NoError(
		t,
		e.store.PutTransient(
			t.Context(),
			cluster.FindingKind,
			"sg other",
			packed(
				t,
				cluster.SavedFinding{
					Finding: provider.Finding{State: telemetry.Suspended, Source: telemetry.Silence, Left: time.Hour},
					At:      time.Now(),
				},
			),
			time.Hour,
		),
	)
	answer(h, "a.test", models.Part{Class: models.Accepted}) // it is healthy again
	require.NoError(t, e.cluster.Persist(t.Context(), known))
	all, err := e.store.Transients(t.Context(), cluster.FindingKind)
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.Contains(t, all, "sg other")
}

// countedReports counts the findings that are written.
type countedReports struct {
	models.Store
	n int
}

func (s *countedReports) PutTransient(ctx context.Context, kind, name string, value []byte, ttl time.Duration) error {
	if kind == cluster.FindingKind && value != nil {
		s.n++
	}
	return s.Store.PutTransient(ctx, kind, name, value, ttl)
}

// A finding whose time has passed is not restored, whatever the clocks say.
func TestExpiredFindingIsNotRestored(t *testing.T) {
	t.Parallel()
	r := emptyRig(t, nil, "sg")
	r.engine = r.worker(fast(), newScripted("sg", always(models.Accepted)))
	r.stop()
	e := r.engine
	for _, at := range []time.Time{time.Now().Add(-2 * time.Hour), time.Now().Add(24 * time.Hour)} {
		h := provider.NewHealth("sg", time.Second, e.cfg.provider())
		e.providers.Get("sg").Health = h
		require.NoError(
			t,
			e.store.PutTransient(
				t.Context(),
				cluster.FindingKind,
				"sg w",
				packed(
					t,
					cluster.SavedFinding{
						Finding: provider.Finding{State: telemetry.Suspended, Source: telemetry.RetryAfter, Left: time.Hour},
						At:      at,
					},
				),
				time.Hour,
			),
		)
		require.NoError(
			t,
			e.store.PutTransient(
				t.Context(),
				cluster.FindingKind,
				"gone w",
				packed(
					t,
					cluster.SavedFinding{
						Finding: provider.Finding{State: telemetry.Suspended, Source: telemetry.Rejected, Left: time.Hour},
						At:      at,
					},
				),
				time.Hour,
			),
		)
		require.NoError(t, e.cluster.Restore(t.Context()))
		_, until := h.Usable(time.Now())
		require.LessOrEqual(t, time.Until(until), time.Hour)
		require.Equal(t, at.After(time.Now()), time.Until(until) > 0)
	}
}
