package provider

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// TestCallLimit: calls have no more recipients than the provider took, also those of a peer, until it is asked for more
// a day later. Larger calls that began before change nothing, and neither does a message with too many bytes.
func TestCallLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, peer := newHealth("mg", time.Second, defaultConfig()), newHealth("mg", time.Second, defaultConfig())
		refuse := func(p models.Part) {
			done, ok := h.Begin("a.test", 1000)
			require.True(t, ok)
			p.Class, p.Recipients = models.RejectedHereClass, models.SetTo(1000)
			done([]models.Part{p}, time.Millisecond)
		}
		refuse(models.Part{Status: 413, Reason: models.TooLarge, Fewer: 500})
		refuse(models.Part{Fewer: 500, Text: "no call was made"})
		require.Equal(t, 1000, h.callSize(1000, time.Now()))
		require.Nil(t, h.Finding())

		refuse(models.Part{Status: 403, Fewer: 10})
		refuse(models.Part{Status: 403, Fewer: 500})
		require.Equal(t, "healthy", h.state())
		peer.Merge("w", h.Finding())
		for _, is := range []*Health{h, peer} {
			require.Equal(t, 10, is.callSize(1000, time.Now()))
			require.Zero(t, is.TooManyUntil(10, time.Now()))
			require.Equal(t, time.Now().Add(callLimitFor), is.TooManyUntil(11, time.Now()))
		}
		require.Equal(t, callLimitFor, h.Finding().Longest())
		time.Sleep(callLimitFor)
		for _, is := range []*Health{h, peer} {
			require.Equal(t, 1000, is.callSize(1000, time.Now()))
			require.Zero(t, is.TooManyUntil(11, time.Now()))
		}
		require.Nil(t, h.Finding())
		refuse(models.Part{Status: 403, Fewer: 20})
		require.Equal(t, 20, h.callSize(1000, time.Now()), "it takes more by now")
		h.Probe(1)
		require.Equal(t, 1000, h.callSize(1000, time.Now()))
	})
}
