package consumers

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// A worker that begins knows how earlier ones found the accounts, whether they stopped
// or died: what was silent stays away for what is left of its time, and anything else
// for a moment; then it gets one mail, until that is answered.
func TestRemembered(t *testing.T) {
	t.Parallel()
	silent := func(h *health) { h.fallenSilent(time.Now().Add(time.Hour), "nothing was heard") }
	for name, c := range map[string]struct {
		ill    func(h *health)
		state  string
		atMost time.Duration
	}{
		"silent": {silent, models.Tripped, time.Hour},
		"shut":   {func(h *health) { h.shutOff(time.Now().Add(time.Hour), "the key was revoked") }, models.Shut, 11 * time.Second},
		"open": {func(h *health) {
			for range tripUnknown {
				h.settle(h.breaker.begin(), failedUnknown, "no answer")
			}
		}, models.Tripped, 11 * time.Second},
		"slow": {func(h *health) { h.slowDown(time.Now().Add(time.Hour), "too fast") }, models.Slowed, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, q := newScripted("sg", always(models.Accepted)), newScripted("mg", always(models.Accepted))
			r := emptyRig(t, nil, "sg", "mg")
			cfg := fast()
			cfg.BreakerOpen = 5 * time.Second
			r.engine = r.worker(cfg, p, q)
			c.ill(r.engine.byName["sg"].health)
			r.stop()
			r.engine = r.worker(cfg, p, q)
			h := r.engine.byName["sg"].health
			r.done(r.batch(3, true, nil)) // it runs
			require.Equal(t, c.state, h.report().State)
			require.NotEmpty(t, h.report().Why)
			ok, until := h.usable(time.Now())
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
		a := r.engine.byName["sg"]
		a.health.shutOff(time.Now().Add(50*time.Millisecond), "for a moment")
		known := func() bool {
			all, err := r.store.Reports(t.Context(), ailingKind)
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
		r.engine = r.worker(fast(), newScripted("sg", always(models.Accepted)))
		r.engine.byName["sg"].health.refuse("b.c", time.Now().Add(time.Hour), "not verified")
		r.stop()
		r.engine = r.worker(fast(), newScripted("sg", always(models.Accepted)))
		require.Eventually(t, func() bool { return len(r.engine.byName["sg"].health.report().Senders) == 1 }, patience, time.Millisecond)
		require.Equal(t, []string{"b.c"}, r.engine.byName["sg"].health.report().Senders)
	})
}

func packed(t *testing.T, v any) []byte {
	t.Helper()
	raw, err := json.Marshal(v)
	require.NoError(t, err)
	return raw
}

// What is gone by is not waited for again, whatever the clocks say.
func TestRecall(t *testing.T) {
	t.Parallel()
	r := emptyRig(t, nil, "sg")
	r.engine = r.worker(fast(), newScripted("sg", always(models.Accepted)))
	r.stop()
	e := r.engine
	for _, at := range []time.Time{time.Now().Add(-2 * time.Hour), time.Now().Add(24 * time.Hour)} {
		h := newHealth("sg", time.Second, &e.cfg)
		e.byName["sg"].health = h
		require.NoError(t, e.store.PutReport(t.Context(), ailingKind, "sg", packed(t, ailing{Ailment{State: models.Slowed, Left: time.Hour, Why: "too fast"}, at}), time.Hour))
		require.NoError(t, e.store.PutReport(t.Context(), ailingKind, "gone", packed(t, ailing{Ailment{State: models.Shut, Left: time.Hour}, at}), time.Hour))
		require.NoError(t, e.recall(t.Context()))
		_, until := h.usable(time.Now())
		require.LessOrEqual(t, time.Until(until), time.Hour)
		require.Equal(t, at.After(time.Now()), time.Until(until) > 0)
	}
}
