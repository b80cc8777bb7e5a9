package consumers

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// A call that was let through and not made, because another worker was quicker or
// the store was away, is no answer: it closes no breaker, and keeps none closed.
func TestWhatWasNotCalledTellsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := fast().withDefaults()
		h := newHealth("sg", &cfg)
		call := func(parts ...models.Part) {
			done, ok := h.begin("a.test")
			require.True(t, ok)
			done(parts, time.Millisecond)
		}
		down, up := models.Part{Class: models.Unavailable, Recipients: models.SetOf(1)}, models.Part{Class: models.Accepted, Recipients: models.SetOf(1)}
		for range 4 {
			call(down)
			call()
			call(notCalled(models.SetOf(1), "too late"))
		}
		call(down)
		ok, _ := h.usable(time.Now())
		require.False(t, ok, "five in a row")

		time.Sleep(cfg.BreakerOpen + time.Millisecond)
		for range 10 {
			call()
			call(notCalled(models.SetOf(1), "too late"))
		}
		require.Equal(t, "half-open", h.breaker.State().String())
		call(up)
		call(up)
		require.Equal(t, "closed", h.breaker.State().String())
	})
}
