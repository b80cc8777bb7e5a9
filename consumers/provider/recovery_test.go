package provider

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// callOf makes a call that a provider answers in a class after a second.
func callOf(t *testing.T, h *Health, class models.Class) {
	t.Helper()
	done, ok := h.Begin("a.test", 1)
	require.True(t, ok)
	time.Sleep(time.Second)
	done([]models.Part{{Class: class, Recipients: models.SetOf(1)}}, time.Second)
}

// TestRecoveryIsNoticed: a recovery begins with the first call that is answered after calls that failed, or after the
// start of the worker. Peers learn of it, once, by their own clocks.
func TestRecoveryIsNoticed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, peer := newHealth("sg", 30*time.Second, defaultConfig()), newHealth("sg", 30*time.Second, defaultConfig())
		require.Empty(t, h.Recoveries())
		require.Nil(t, h.shared(time.Now()))
		began := time.Now()
		callOf(t, h, models.Accepted)
		require.Equal(t, []Recovery{{From: began, At: began}}, h.Recoveries())
		callOf(t, h, models.Accepted)
		require.Equal(t, []Recovery{{From: began, At: began}}, h.Recoveries(), "it took mail before")

		failed := time.Now()
		callOf(t, h, models.Unavailable)
		time.Sleep(time.Minute)
		again := time.Now()
		callOf(t, h, models.Accepted)
		got := h.Recoveries()
		require.Len(t, got, 1)
		require.True(t, got[0].From.Equal(failed) && got[0].At.Equal(again), "%+v", got)

		for range 2 {
			time.Sleep(time.Second)
			peer.mergeRecovery("w", h.shared(time.Now()))
		}
		seen := peer.Recoveries()
		require.Len(t, seen, 1)
		require.True(t, seen[0].At.Equal(again) && seen[0].From.Equal(failed), "%+v", seen)
		noticed := peer.recoveries.noticed
		require.Equal(t, time.Second, time.Since(noticed), "a repeated report changes nothing")
		peer.Forget("w")
		require.Len(t, peer.Recoveries(), 1, "it stays true when the peer has left")
	})
}

// TestPeersRecoveryEndsSuspension: a worker that suspended a provider for failed calls probes it when the provider has
// answered a peer since, and only then.
func TestPeersRecoveryEndsSuspension(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, peer := newHealth("sg", 30*time.Second, defaultConfig()), newHealth("sg", 30*time.Second, defaultConfig())
		callOf(t, peer, models.Accepted)
		for range tripUnknown {
			callOf(t, h, models.Unknown)
		}
		ok, until := h.usable(time.Now())
		require.False(t, ok)
		require.Greater(t, time.Until(until), time.Second)
		h.mergeRecovery("w", peer.shared(time.Now()))
		ok, _ = h.usable(time.Now())
		require.False(t, ok, "the provider answered before the calls failed")
		callOf(t, peer, models.Unavailable)
		callOf(t, peer, models.Accepted)
		h.mergeRecovery("w", peer.shared(time.Now()))
		ok, _ = h.usable(time.Now())
		require.True(t, ok)
		require.Equal(t, 1, h.callSize(1000, time.Now()), "one message probes it")
	})
}
