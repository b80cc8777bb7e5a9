package provider

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// troubles has each way in which a provider stops getting mail.
var troubles = map[string]func(h *Health){
	"rejected": func(h *Health) { h.suspend(telemetry.Rejected, time.Now().Add(time.Hour), "the key was revoked") },
	"silent":   func(h *Health) { h.suspend(telemetry.Silence, time.Now().Add(time.Hour), "it reported nothing") },
	"waiting":  func(h *Health) { h.wait(time.Now().Add(time.Hour), "too fast") },
	"down":     func(h *Health) { h.fail(failedWhole, tripRow) },
	"probed without success": func(h *Health) {
		h.fail(failedUnknown, tripUnknown)
		for range 10 {
			_, until := h.usable(time.Now())
			time.Sleep(time.Until(until))
			h.fail(failedUnknown, 1)
		}
	},
	"while a probe hangs": func(h *Health) {
		h.fail(failedWhole, tripRow)
		_, until := h.usable(time.Now())
		time.Sleep(time.Until(until))
		h.Begin("b.test", 1)
	},
	"a sender refused": func(h *Health) { h.refuse("a.test", time.Now().Add(time.Hour), "not verified") },
	"reported by a peer": func(h *Health) {
		h.Merge("w", &Finding{
			State:   telemetry.Suspended,
			Source:  telemetry.RetryAfter,
			Left:    time.Hour,
			Senders: map[string]time.Duration{"a.test": time.Hour},
		})
	},
}

// fail makes n calls fail.
func (h *Health) fail(says callSays, n int) {
	for range n {
		h.mu.Lock()
		round, _ := h.machine.begin(1, time.Minute, time.Now())
		h.mu.Unlock()
		h.end(round, says, "it is down", false, false)
	}
}

// A probe command ends every suspension at once. The provider then gets one message, and
// what that shows holds.
func TestProbeCommandEndsSuspension(t *testing.T) {
	t.Parallel()
	for name, trouble := range troubles {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg := testConfig()
				h := newHealth("sg", time.Second, cfg)
				usable := func() bool { ok, _ := h.Usable("a.test", time.Now(), false); return ok }
				trouble(h)
				require.False(t, usable())
				h.Probe(7)
				require.True(t, usable())
				require.NotEqual(t, telemetry.Suspended, h.state())
				if name != "a sender refused" {
					require.Equal(t, 1, h.callSize(1000, time.Now()))
					require.Equal(t, telemetry.Probing, h.state())
				}
				done, ok := h.Begin("a.test", 1)
				require.True(t, ok)
				if name != "a sender refused" {
					require.False(t, usable(), "one at a time")
				}
				done([]models.Part{{Class: models.Accepted, Recipients: models.SetOf(1)}}, time.Millisecond)
				require.True(t, usable())
				after := telemetry.Healthy
				if name == "silent" {
					after = telemetry.Probation
				}
				require.Equal(t, after, h.state())

				trouble(h)
				h.Merge("w", nil)
				if name == "reported by a peer" {
					return
				}
				require.False(t, usable())
				h.Probe(7)
				h.Probe(6)
				require.False(t, usable(), "each command is carried out once")
				require.Equal(t, 7, h.Finding().Probe)
			})
		})
	}
	t.Run("healthy", func(t *testing.T) {
		t.Parallel()
		cfg := testConfig()
		h := newHealth("sg", time.Second, cfg)
		h.Probe(1)
		require.Equal(t, telemetry.Healthy, h.state())
		require.Equal(t, 1000, h.callSize(1000, time.Now()), "no probe is required")
	})
}

// Findings that peers made before they carried out a probe command are ignored. Later ones
// are trusted.
func TestFindingsBeforeProbeCommandAreIgnored(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	for name, before := range map[string]Finding{
		"state":   {State: telemetry.Suspended, Source: telemetry.RetryAfter, Left: time.Hour},
		"silent":  {State: telemetry.Suspended, Source: telemetry.Silence, Left: time.Hour},
		"senders": {State: telemetry.Healthy, Senders: map[string]time.Duration{"a.test": time.Hour}},
	} {
		h := newHealth("sg", time.Second, cfg)
		usable := func() bool { ok, _ := h.Usable("a.test", time.Now(), false); return ok }
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
