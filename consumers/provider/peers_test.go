package provider

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// What comes back from being left alone, for whatever reason, gets one mail at a time
// until one is answered, also at workers that only heard of it.
func TestComesBackWithAProbe(t *testing.T) {
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
	for name, ill := range map[string]func(h *Health){
		"hanging": trips(models.Unknown, tripUnknown), "down": trips(models.Unavailable, tripRow), "shut": trips(models.AccountClass, 1),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg := defaultConfig()
				found, heard := NewHealth("sg", 30*time.Second, cfg), NewHealth("sg", 30*time.Second, cfg)
				ill(found)
				ail := found.Finding()
				require.NotNil(t, ail)
				heard.Merge("w", ail)
				_, until := heard.Usable(time.Now())
				require.LessOrEqual(t, time.Until(until), 2*cfg.BreakerOpen+2*cfg.Heartbeat, "it is believed for a moment")
				for _, h := range []*Health{heard, NewHealth("sg", 30*time.Second, cfg)} {
					if h != heard {
						ill(h)
					}
					ok, until := h.Usable(time.Now())
					require.False(t, ok)
					time.Sleep(time.Until(until) - time.Millisecond)
					ok, _ = h.Usable(time.Now())
					require.False(t, ok)
					time.Sleep(2 * time.Millisecond)
					heard.Merge("w", ail) // it goes on to say so
					probe, ok := h.Begin("a.test", 1)
					require.True(t, ok)
					for range 10 {
						_, ok := h.Begin("a.test", 1)
						require.False(t, ok, "while a probe is under way")
					}
					require.Equal(t, 1, h.CallSize(1000, time.Now()))
					probe([]models.Part{{Class: models.Accepted, Recipients: models.SetOf(1)}}, time.Second)
					heard.Merge("w", ail)
					for range 2 {
						_, ok = h.Begin("a.test", 1)
						require.True(t, ok)
					}
					require.Less(t, h.CallSize(1000, time.Now()), 100, "and it comes back slowly")
				}
			})
		})
	}
}

// A worker that closed its own breaker does not obey one that has no mail to find out
// with.
func TestIdleWorkerKeepsNobodyAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := defaultConfig()
		idle, busy := NewHealth("sg", 30*time.Second, cfg), NewHealth("sg", 30*time.Second, cfg)
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
		require.Equal(t, telemetry.HalfOpen, idle.Finding().State)
	})
}

// A worker that is gone did not say that the provider is well again.
func TestTellerThatIsGone(t *testing.T) {
	t.Parallel()
	cfg := defaultConfig()
	h := NewHealth("sg", time.Second, cfg)
	h.Merge("w", &Finding{State: telemetry.Tripped, Left: time.Minute})
	h.Forget("w")
	_, ok := h.Begin("a.test", 1)
	require.True(t, ok)
	_, ok = h.Begin("a.test", 1)
	require.False(t, ok, "until the first is answered")
}

// What is planned for later does not use up what other workers say now.
func TestLookingAheadForgetsNothing(t *testing.T) {
	t.Parallel()
	cfg := defaultConfig()
	for _, a := range []Finding{{State: telemetry.Tripped, Left: 5 * time.Second}, {State: telemetry.Slowed, Left: time.Hour}, {State: telemetry.Tripped, Left: time.Hour, Silent: true}} {
		h := NewHealth("sg", time.Second, cfg)
		h.Merge("w", &a)
		h.probation = probation{}
		ok, _ := h.Usable(time.Now().Add(24 * time.Hour))
		require.True(t, ok, "by then it is over")
		ok, _ = h.Usable(time.Now())
		require.False(t, ok)
		require.False(t, h.breaker.proving)
	}
}

// What a provider said, and silence, do not go with the worker that told of it; and
// nobody judges a provider once more by the mail for which it was left alone, however
// it goes on with who found that out.
func TestWhatIsOfTheProviderStays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := defaultConfig()
		for _, a := range []Finding{{State: telemetry.Slowed, Left: time.Hour}, {State: telemetry.Tripped, Left: time.Hour, Silent: true}} {
			h := NewHealth("sg", time.Second, cfg)
			h.Merge("w", &a)
			h.Forget("w")
			h.Forget("w")
			ok, until := h.Usable(time.Now())
			require.False(t, ok)
			require.Equal(t, time.Hour, time.Until(until))
			time.Sleep(time.Hour)
			ok, _ = h.Usable(time.Now())
			require.True(t, ok)
			require.Empty(t, h.peers)
		}
		h := NewHealth("sg", time.Second, cfg)
		h.Merge("w", &Finding{State: telemetry.Tripped, Left: time.Minute, Silent: true})
		until := time.Now().Add(time.Minute)
		time.Sleep(time.Minute)
		h.Merge("w", &Finding{State: telemetry.HalfOpen})
		h.Suspend(time.Now().Add(time.Second), "something else")
		h.Merge("w", nil)
		require.Equal(t, until, h.SilentUntil())
	})
}

// A provider that says when to come back is heeded with every answer that says so, for
// as long as it says.
func TestComeBackLater(t *testing.T) {
	t.Parallel()
	for class, waits := range map[models.Class][]time.Duration{models.Throttled: {time.Minute, 5 * time.Hour}, models.Unavailable: {time.Minute, mostDown}} {
		for _, wait := range waits {
			cfg := defaultConfig()
			h, other := NewHealth("sg", time.Second, cfg), NewHealth("sg", time.Second, cfg)
			done, ok := h.Begin("a.test", 1)
			require.True(t, ok)
			at := time.Now().Add(wait)
			done([]models.Part{{Class: class, Recipients: models.SetOf(1), RetryAt: at}}, time.Millisecond)
			other.Merge("w", h.Finding())
			for _, h := range []*Health{h, other} {
				ok, until := h.Usable(time.Now())
				require.False(t, ok)
				require.WithinDuration(t, at, until, time.Second)
				require.Equal(t, telemetry.Slowed, h.Report().State)
			}
		}
	}
}
