package provider

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// A call that was allowed and not made, because another worker was faster or the store
// failed, says nothing about the provider.
func TestCallNotMadeSaysNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig()
		h := newHealth("sg", time.Second, cfg)
		call := func(parts ...models.Part) {
			done, ok := h.Begin("a.test", 1)
			require.True(t, ok)
			done(parts, time.Millisecond)
		}
		down, up := models.Part{
			Class:      models.Unavailable,
			Recipients: models.SetOf(1),
		}, models.Part{
			Class:      models.Accepted,
			Recipients: models.SetOf(1),
		}
		for range 4 {
			call(down)
			call()
			call(notCalled())
			late := notCalled()
			late.Reason = models.NotComposed
			call(late)
		}
		call(down)
		ok, _ := h.usable(time.Now())
		require.False(t, ok, "five in a row")

		time.Sleep(cfg.BreakerOpen + time.Millisecond)
		for range 10 {
			call()
			call(notCalled())
		}
		require.Equal(t, telemetry.Probing, h.state())
		call(up)
		require.Equal(t, telemetry.Healthy, h.state())
	})
}

// A provider that hangs is suspended however long its time-out is: a call counts when it
// ends.
func TestLongTimeoutsSuspend(t *testing.T) {
	t.Parallel()
	for _, timeout := range []time.Duration{2 * time.Second, 30 * time.Second, 5 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			cfg := testConfig()
			h := newHealth("sg", timeout, cfg)
			for range 5 {
				done, ok := h.Begin("a.test", 1)
				require.True(t, ok)
				time.AfterFunc(
					timeout,
					func() { done([]models.Part{{Class: models.Unknown, Recipients: models.SetOf(1)}}, timeout) },
				)
			}
			time.Sleep(timeout + time.Millisecond)
			ok, _ := h.usable(time.Now())
			require.False(t, ok, timeout)
		})
	}
}

// After a suspension for silence a provider gets a few recipients at a time until it
// reports something, also from workers that learned of the silence from a peer.
func TestProbationAfterSilence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig()
		found, peer := newHealth("sg", time.Second, cfg), newHealth("sg", time.Second, cfg)
		found.suspend(telemetry.Silence, time.Now().Add(time.Minute), "it reported nothing")
		peer.Merge("w", found.Finding())
		time.Sleep(time.Minute + time.Millisecond)
		peer.Merge("w", found.Finding())
		for _, h := range []*Health{found, peer} {
			taken := func(n int) (sum int) {
				for sum < 10_000 {
					done, ok := h.Begin("a.test", n)
					if !ok {
						return sum
					}
					sum += n
					done([]models.Part{{Class: models.Accepted, Recipients: models.SetOf(1)}}, time.Millisecond)
				}
				return sum
			}
			require.Zero(t, taken(1_000), "a call of that size waits")
			require.Equal(t, probationSize, taken(probeSize))
			ok, until := h.usable(time.Now())
			require.False(t, ok)
			time.Sleep(time.Until(until))
			require.Equal(t, probationSize, taken(probeSize), "as much again")
			require.Equal(t, probeSize, h.callSize(1000, time.Now()))
			h.EndProbation()
			require.Equal(t, 10_000, taken(1_000))
		}
	})
}
