package provider

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// troubles are all that mail keeps away from a provider for.
var troubles = map[string]func(h *Health){
	"refused": func(h *Health) { h.Suspend(time.Now().Add(time.Hour), "the key was revoked") },
	"silent":  func(h *Health) { h.SuspendSilent(time.Now().Add(time.Hour), "nothing was heard") },
	"slowed":  func(h *Health) { h.slowDown(time.Now().Add(time.Hour), "too fast") },
	"down": func(h *Health) {
		for range tripRow {
			h.settle(h.breaker.begin(time.Now()), failedWhole, "it is down")
		}
	},
	"probed in vain": func(h *Health) {
		for range tripUnknown {
			h.settle(h.breaker.begin(time.Now()), failedUnknown, "no answer")
		}
		for range 10 {
			time.Sleep(time.Until(h.breaker.until))
			h.settle(h.breaker.begin(time.Now()), failedUnknown, "no answer")
		}
	},
	"while a probe hangs": func(h *Health) {
		for range tripRow {
			h.settle(h.breaker.begin(time.Now()), failedWhole, "it is down")
		}
		time.Sleep(time.Until(h.breaker.until))
		h.breaker.begin(time.Now())
	},
	"a sender refused": func(h *Health) { h.refuse("a.test", time.Now().Add(time.Hour), "not verified") },
	"heard": func(h *Health) {
		h.Merge(
			"w",
			&Finding{State: telemetry.Slowed, Left: time.Hour, Senders: map[string]time.Duration{"a.test": time.Hour}},
		)
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
				cfg := testConfig()
				h := NewHealth("sg", time.Second, cfg)
				usable := func() bool { ok, _ := h.UsableFor("a.test", time.Now(), false); return ok }
				ill(h)
				require.False(t, usable())
				h.Probe(7)
				require.True(t, usable())
				require.NotEqual(t, telemetry.Tripped, h.Report().State)
				if name != "a sender refused" {
					require.Equal(t, 1, h.CallSize(1000, time.Now()))
					require.Equal(t, telemetry.HalfOpen, h.Report().State)
				}
				done, ok := h.Begin("a.test", 1)
				require.True(t, ok)
				if name != "a sender refused" {
					require.False(t, usable(), "one at a time")
				}
				done([]models.Part{{Class: models.Accepted, Recipients: models.SetOf(1)}}, time.Millisecond)
				require.True(t, usable())
				require.Equal(t, telemetry.Healthy, h.Report().State)

				ill(h)
				h.Merge("w", nil)
				if name == "heard" {
					return
				}
				require.False(t, usable())
				h.Probe(7)
				h.Probe(6)
				require.False(t, usable(), "each order is obeyed once")
				require.Equal(t, 7, h.Finding().Probe)
			})
		})
	}
	t.Run("well", func(t *testing.T) {
		t.Parallel()
		cfg := testConfig()
		h := NewHealth("sg", time.Second, cfg)
		h.Probe(1)
		require.Equal(t, telemetry.Healthy, h.Report().State)
		require.Equal(t, 1000, h.CallSize(1000, time.Now()), "there is nothing to prove")
	})
}

// What others found out before they obeyed the order is not believed any more, though
// they go on to say so; what they find out afterwards is.
func TestFoundBeforeTheOrder(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	for name, before := range map[string]Finding{
		"state":   {State: telemetry.Slowed, Left: time.Hour},
		"silent":  {State: telemetry.Tripped, Left: time.Hour, Silent: true},
		"senders": {State: telemetry.Healthy, Senders: map[string]time.Duration{"a.test": time.Hour}},
	} {
		h := NewHealth("sg", time.Second, cfg)
		usable := func() bool { ok, _ := h.UsableFor("a.test", time.Now(), false); return ok }
		h.Merge("w", &before)
		require.False(t, usable(), name)
		h.Probe(3)
		for range 2 {
			h.Merge("w", &before)
			h.Restore("dead", &before)
			require.True(t, usable(), name)
		}
		after := before
		after.Probe = 3
		h.Merge("w", &after)
		require.False(t, usable(), name)
	}
}
