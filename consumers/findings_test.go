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
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// A worker that begins knows how earlier ones found the providers, whether they stopped
// or died: what was silent stays away for what is left of its time, and anything else
// for a moment; then it gets one mail, until that is answered.
func TestRemembered(t *testing.T) {
	t.Parallel()
	silent := func(h *provider.Health) { h.SuspendSilent(time.Now().Add(time.Hour), "nothing was heard") }
	for name, c := range map[string]struct {
		ill    func(h *provider.Health)
		state  string
		atMost time.Duration
	}{
		"silent": {silent, telemetry.Tripped, time.Hour},
		"shut":   {func(h *provider.Health) { h.Suspend(time.Now().Add(time.Hour), "the key was revoked") }, telemetry.Shut, 11 * time.Second},
		"open": {func(h *provider.Health) {
			for h.Report().State == telemetry.Healthy {
				answer(h, "a.test", models.Part{Class: models.Unknown, Text: "no answer"})
			}
		}, telemetry.Tripped, 11 * time.Second},
		"slow": {func(h *provider.Health) {
			answer(h, "a.test", models.Part{Class: models.Throttled, RetryAt: time.Now().Add(time.Hour), Text: "too fast"})
		}, telemetry.Slowed, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, q := newScripted("sg", always(models.Accepted)), newScripted("mg", always(models.Accepted))
			r := emptyRig(t, nil, "sg", "mg")
			cfg := fast()
			cfg.BreakerOpen = 5 * time.Second
			r.engine = r.worker(cfg, p, q)
			c.ill(r.engine.providers.Get("sg").Health)
			r.stop()
			r.engine = r.worker(cfg, p, q)
			h := r.engine.providers.Get("sg").Health
			r.done(r.batch(3, true, nil)) // it runs
			require.Equal(t, c.state, h.Report().State)
			require.NotEmpty(t, h.Report().Why)
			ok, until := h.Usable(time.Now())
			require.False(t, ok)
			require.LessOrEqual(t, time.Until(until), c.atMost)
			require.Zero(t, p.count())
			require.Equal(t, 1, q.count())
		})
	}
	t.Run("it is well again", func(t *testing.T) {
		t.Parallel()
		p := newScripted("sg", always(models.Accepted))
		r := emptyRig(t, nil, "sg")
		r.engine = r.worker(fast(), p)
		a := r.engine.providers.Get("sg")
		a.Health.Suspend(time.Now().Add(50*time.Millisecond), "for a moment")
		known := func() bool {
			all, err := r.store.Transients(t.Context(), cluster.FindingKind)
			require.NoError(t, err)
			return len(all) == 1
		}
		require.Eventually(t, known, patience, time.Millisecond)
		r.done(r.batch(1, true, nil)) // proves it
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
			func() bool { return len(r.engine.providers.Get("sg").Health.Report().Senders) == 1 },
			patience,
			time.Millisecond,
		)
		require.Equal(t, []string{"b.c"}, r.engine.providers.Get("sg").Health.Report().Senders)
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

// A provider that nobody has mail for is not written down again and again; and what one
// worker finds does not hide what another found.
func TestRememberedOnce(t *testing.T) {
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
	h.Suspend(time.Now().Add(-time.Minute), "it is to prove itself")
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
					Finding: provider.Finding{State: telemetry.Tripped, Silent: true, Left: time.Hour},
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

// countedReports counts how often something is written about the providers.
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

// What is gone by is not waited for again, whatever the clocks say.
func TestRecall(t *testing.T) {
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
					cluster.SavedFinding{Finding: provider.Finding{State: telemetry.Slowed, Left: time.Hour, Why: "too fast"}, At: at},
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
				packed(t, cluster.SavedFinding{Finding: provider.Finding{State: telemetry.Shut, Left: time.Hour}, At: at}),
				time.Hour,
			),
		)
		require.NoError(t, e.cluster.Restore(t.Context()))
		_, until := h.Usable(time.Now())
		require.LessOrEqual(t, time.Until(until), time.Hour)
		require.Equal(t, at.After(time.Now()), time.Until(until) > 0)
	}
}
