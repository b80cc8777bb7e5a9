package consumers

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// troubles are all that mail keeps away from a provider for.
var troubles = map[string]func(h *health){
	"refused": func(h *health) { h.shutOff(time.Now().Add(time.Hour), "the key was revoked") },
	"silent":  func(h *health) { h.fallenSilent(time.Now().Add(time.Hour), "nothing was heard") },
	"slowed":  func(h *health) { h.slowDown(time.Now().Add(time.Hour), "too fast") },
	"down": func(h *health) {
		for range tripRow {
			h.settle(h.breaker.begin(time.Now()), failedWhole, "it is down")
		}
	},
	"probed in vain": func(h *health) {
		for range tripUnknown {
			h.settle(h.breaker.begin(time.Now()), failedUnknown, "no answer")
		}
		for range 10 {
			time.Sleep(time.Until(h.breaker.until))
			h.settle(h.breaker.begin(time.Now()), failedUnknown, "no answer")
		}
	},
	"while a probe hangs": func(h *health) {
		for range tripRow {
			h.settle(h.breaker.begin(time.Now()), failedWhole, "it is down")
		}
		time.Sleep(time.Until(h.breaker.until))
		h.breaker.begin(time.Now())
	},
	"a sender refused": func(h *health) { h.refuse("a.test", time.Now().Add(time.Hour), "not verified") },
	"heard": func(h *health) {
		h.hear("w", &Ailment{State: telemetry.Slowed, Left: time.Hour, Senders: map[string]time.Duration{"a.test": time.Hour}})
	},
}

// Whatever mail keeps away from a provider for, an order has it tried at once, with one
// mail where it is not known how the provider is; and what is found out then holds.
func TestTriedAgain(t *testing.T) {
	t.Parallel()
	for name, ill := range troubles {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg := fast().withDefaults()
				h := newHealth("sg", time.Second, &cfg)
				usable := func() bool { ok, _ := h.usableFor("a.test", time.Now(), false); return ok }
				ill(h)
				require.False(t, usable())
				h.tryAgain(7)
				require.True(t, usable())
				require.NotEqual(t, telemetry.Tripped, h.report().State)
				if name != "a sender refused" {
					require.Equal(t, 1, h.callSize(1000, time.Now()))
					require.Equal(t, telemetry.HalfOpen, h.report().State)
				}
				done, ok := h.begin("a.test", 1)
				require.True(t, ok)
				if name != "a sender refused" {
					require.False(t, usable(), "one at a time")
				}
				done([]models.Part{{Class: models.Accepted, Recipients: models.SetOf(1)}}, time.Millisecond)
				require.True(t, usable())
				require.Equal(t, telemetry.Healthy, h.report().State)

				ill(h)
				h.hear("w", nil)
				if name == "heard" {
					return
				}
				require.False(t, usable())
				h.tryAgain(7)
				h.tryAgain(6)
				require.False(t, usable(), "each order is obeyed once")
				require.Equal(t, 7, h.ailment().Probe)
			})
		})
	}
	t.Run("well", func(t *testing.T) {
		t.Parallel()
		cfg := fast().withDefaults()
		h := newHealth("sg", time.Second, &cfg)
		h.tryAgain(1)
		require.Equal(t, telemetry.Healthy, h.report().State)
		require.Equal(t, 1000, h.callSize(1000, time.Now()), "there is nothing to prove")
	})
}

// What others found out before they obeyed the order is not believed any more, though
// they go on to say so; what they find out afterwards is.
func TestFoundBeforeTheOrder(t *testing.T) {
	t.Parallel()
	cfg := fast().withDefaults()
	for name, before := range map[string]Ailment{
		"state":   {State: telemetry.Slowed, Left: time.Hour},
		"silent":  {State: telemetry.Tripped, Left: time.Hour, Silent: true},
		"senders": {State: telemetry.Healthy, Senders: map[string]time.Duration{"a.test": time.Hour}},
	} {
		h := newHealth("sg", time.Second, &cfg)
		usable := func() bool { ok, _ := h.usableFor("a.test", time.Now(), false); return ok }
		h.hear("w", &before)
		require.False(t, usable(), name)
		h.tryAgain(3)
		for range 2 {
			h.hear("w", &before)
			h.recall("dead", &before)
			require.True(t, usable(), name)
		}
		after := before
		after.Probe = 3
		h.hear("w", &after)
		require.False(t, usable(), name)
	}
}

// An order reaches all workers, and mail that waited goes out; a worker that begins
// later does not remember what was before it.
func TestProbeOrdered(t *testing.T) {
	t.Parallel()
	cfg := fast()
	cfg.Hold = time.Hour
	renewed := make(chan struct{})
	sg := newScripted("sg", func(_ context.Context, c *models.Call) []models.Part {
		select {
		case <-renewed:
			return part(models.Accepted, c)
		default:
			return part(models.AccountClass, c)
		}
	})
	r := emptyRig(t, nil, "sg")
	var workers []*Engine
	var stops []func()
	for i := range 2 {
		cfg.Worker = fmt.Sprint("w", i)
		r.engine = r.worker(cfg, sg)
		workers, stops = append(workers, r.engine), append(stops, r.stop)
	}
	usable := func(e *Engine) bool { ok, _ := e.byName["sg"].health.usable(time.Now()); return ok }
	for _, e := range workers {
		require.Eventually(t, func() bool { e.crew.mu.Lock(); defer e.crew.mu.Unlock(); return e.crew.size == 2 }, patience, time.Millisecond)
		e.byName["sg"].health.shutOff(time.Now().Add(time.Hour), "the key was revoked")
	}
	b := r.batch(3, true, nil)
	r.looked(b)
	require.Zero(t, sg.count())
	require.EqualValues(t, 3, r.view(b).Summary().Untried)
	close(renewed)
	r.order(models.Command{Kind: models.ProviderProbe, Provider: "other"})
	require.False(t, usable(workers[0]))
	r.order(models.Command{Kind: models.ProviderProbe, Provider: "sg"})
	require.EqualValues(t, 3, r.done(b).Summary().Success)
	for _, e := range workers {
		require.Eventually(t, func() bool { return usable(e) }, patience, time.Millisecond)
	}

	require.NoError(t, r.store.PutTransient(t.Context(), ailingKind, "sg dead", packed(t, ailing{Ailment{State: telemetry.Slowed, Left: time.Hour}, time.Now()}), time.Hour))
	for _, stop := range stops {
		stop()
	}
	cfg.Worker = "late"
	r.engine = r.worker(cfg, sg)
	require.EqualValues(t, 3, r.done(r.batch(3, true, nil)).Summary().Success)
	require.True(t, usable(r.engine))
}
