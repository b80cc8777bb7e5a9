package provider

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// After a suspension from any source, a provider gets one message at a time until it answers one. That holds for
// workers that learned of it from a peer, too.
func TestProbeAfterSuspension(t *testing.T) {
	t.Parallel()
	trips := func(class models.Class, n int) func(h *Health) {
		return func(h *Health) {
			for range n {
				if done, ok := h.Begin("a.test", 1); ok {
					done([]models.Part{{Class: class, Recipients: models.SetOf(1)}}, time.Second)
				}
			}
		}
	}
	for name, suspend := range map[string]func(h *Health){
		"hanging":  trips(models.Unknown, tripUnknown),
		"down":     trips(models.Unavailable, tripRow),
		"rejected": trips(models.AccountClass, 1),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg := defaultConfig()
				found, peer := newHealth("sg", 30*time.Second, cfg), newHealth("sg", 30*time.Second, cfg)
				suspend(found)
				finding := found.Finding()
				require.NotNil(t, finding)
				peer.Merge("w", finding)
				_, until := peer.usable(time.Now())
				require.LessOrEqual(t, time.Until(until), 2*cfg.BreakerOpen+2*cfg.Heartbeat, "it is trusted for a moment")
				for _, h := range []*Health{peer, newHealth("sg", 30*time.Second, cfg)} {
					if h != peer {
						suspend(h)
					}
					ok, until := h.usable(time.Now())
					require.False(t, ok)
					time.Sleep(time.Until(until) - time.Millisecond)
					ok, _ = h.usable(time.Now())
					require.False(t, ok)
					time.Sleep(2 * time.Millisecond)
					peer.Merge("w", finding) // the peer reports it again
					probe, ok := h.Begin("a.test", 1)
					require.True(t, ok)
					for range 10 {
						_, ok := h.Begin("a.test", 1)
						require.False(t, ok, "while a probe runs")
					}
					require.Equal(t, 1, h.callSize(1000, time.Now()))
					probe([]models.Part{{Class: models.Accepted, Recipients: models.SetOf(1)}}, time.Second)
					peer.Merge("w", finding)
					for range 2 {
						_, ok = h.Begin("a.test", 1)
						require.True(t, ok)
					}
					require.Less(t, h.callSize(1000, time.Now()), 100, "it recovers gradually")
				}
			})
		})
	}
}

// A peer that has no mail to probe with does not keep a worker from a provider that has
// answered that worker's probe.
func TestIdlePeerDoesNotSuspend(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := defaultConfig()
		idle, busy := newHealth("sg", 30*time.Second, cfg), newHealth("sg", 30*time.Second, cfg)
		for range tripRow {
			for _, h := range []*Health{idle, busy} {
				done, ok := h.Begin("a.test", 1)
				require.True(t, ok)
				done([]models.Part{{Class: models.Unavailable, Recipients: models.SetOf(1)}}, time.Second)
			}
		}
		late := 0
		for range 300 {
			busy.Merge("idle", idle.Finding())
			time.Sleep(200 * time.Millisecond)
			if done, ok := busy.Begin("a.test", 1); ok {
				done([]models.Part{{Class: models.Accepted, Recipients: models.SetOf(1)}}, time.Second)
			} else {
				late++
			}
		}
		require.LessOrEqual(t, time.Duration(late)*200*time.Millisecond, 2*(cfg.BreakerOpen+2*cfg.Heartbeat))
		require.Equal(t, telemetry.Probing, idle.Finding().State)
	})
}

// A peer that left did not report the provider healthy, so it is probed.
func TestPeerThatLeftRequiresProbe(t *testing.T) {
	t.Parallel()
	cfg := defaultConfig()
	h := newHealth("sg", time.Second, cfg)
	h.Merge("w", &Finding{State: telemetry.Suspended, Source: telemetry.CallsFailed, Left: time.Minute})
	h.Forget("w")
	_, ok := h.Begin("a.test", 1)
	require.True(t, ok)
	_, ok = h.Begin("a.test", 1)
	require.False(t, ok, "until the first is answered")
}

// A finding about the provider itself outlives the peer that reported it. The mail that suspended a provider does not
// suspend it a second time, also if the peer reports it later.
func TestFindingAboutProviderOutlivesPeer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := defaultConfig()
		for _, a := range []Finding{
			{State: telemetry.Suspended, Source: telemetry.RetryAfter, Left: time.Hour},
			{State: telemetry.Suspended, Source: telemetry.Silence, Left: time.Hour},
		} {
			h := newHealth("sg", time.Second, cfg)
			h.Merge("w", &a)
			h.Forget("w")
			h.Forget("w")
			ok, until := h.usable(time.Now())
			require.False(t, ok)
			require.Equal(t, time.Hour, time.Until(until))
			time.Sleep(time.Hour)
			ok, _ = h.usable(time.Now())
			require.True(t, ok)
			_, ok = h.Begin("a.test", 1)
			require.True(t, ok)
			require.Empty(t, h.machine.peers)
		}
		h := newHealth("sg", time.Second, cfg)
		h.Merge("w", &Finding{State: telemetry.Suspended, Source: telemetry.Silence, Left: time.Minute})
		until := time.Now().Add(time.Minute)
		time.Sleep(time.Minute)
		h.Merge("w", &Finding{State: telemetry.Probing, Source: telemetry.Silence})
		h.suspend(telemetry.Rejected, time.Now().Add(time.Second), "something else")
		h.Merge("w", nil)
		require.Equal(t, until, h.SilentUntil())
	})
}

// A provider that asks to wait gets no mail for as long as it asked, with any answer that
// names a time.
func TestRetryAfterIsHeeded(t *testing.T) {
	t.Parallel()
	for class, waits := range map[models.Class][]time.Duration{
		models.Throttled:   {time.Minute, 5 * time.Hour},
		models.Unavailable: {time.Minute, mostDown},
	} {
		for _, wait := range waits {
			cfg := defaultConfig()
			h, other := newHealth("sg", time.Second, cfg), newHealth("sg", time.Second, cfg)
			done, ok := h.Begin("a.test", 1)
			require.True(t, ok)
			at := time.Now().Add(wait)
			done([]models.Part{{Class: class, Recipients: models.SetOf(1), RetryAt: at}}, time.Millisecond)
			other.Merge("w", h.Finding())
			for _, h := range []*Health{h, other} {
				ok, until := h.usable(time.Now())
				require.False(t, ok)
				require.WithinDuration(t, at, until, time.Second)
				require.Equal(t, telemetry.RetryAfter, h.Report(time.Now(), control.ProviderMode{}).Source)
			}
		}
	}
}

// Calls to a provider grow gradually after a peer has reported it healthy again. They stay
// large while it only refuses a sender.
func TestCallsGrowAfterPeerReport(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := defaultConfig()
		h := newHealth("sg", time.Second, cfg)
		h.Merge("w", &Finding{State: telemetry.Healthy, Senders: map[string]time.Duration{"a.test": time.Hour}})
		require.Equal(t, 1000, h.callSize(1000, time.Now()))
		h.Merge("w", &Finding{State: telemetry.Suspended, Source: telemetry.CallsFailed, Left: time.Minute})
		h.Merge("w", nil)
		require.Equal(t, probeSize, h.callSize(1000, time.Now()))
		time.Sleep(cfg.BreakerOpen)
		require.Equal(t, 500, h.callSize(1000, time.Now()))
		time.Sleep(cfg.BreakerOpen)
		require.Equal(t, 1000, h.callSize(1000, time.Now()))
	})
}
