package provider

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// TestWholeCallsKeepTheRate: a call that is not divided may have more recipients than can be saved up. Over time such
// calls keep the rate, and other calls of that size are not made.
func TestWholeCallsKeepTheRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const perSecond, size, seconds = 4, 12, 60
		p := newProvider(
			Spec{Adapter: idleAdapter{}, Provider: models.Provider{Name: "sg", Rate: perSecond, Concurrency: 1}},
			defaultConfig(),
			alone{},
		)
		began, sent := time.Now(), 0
		for time.Since(began) < seconds*time.Second {
			if wait := p.Take(models.Bulk, Load{Recipients: size, Whole: true}); wait > 0 {
				time.Sleep(wait)
				continue
			}
			require.True(t, p.Pass(t.Context(), Load{Recipients: size, Whole: true}, time.Now().Add(time.Hour)))
			sent += size
			require.LessOrEqual(t, float64(sent), perSecond*time.Since(began).Seconds()+size)
		}
		require.GreaterOrEqual(t, sent, perSecond*seconds*9/10, "the rate is used")
		time.Sleep(time.Minute)
		require.Greater(t, p.Take(models.Bulk, Load{Recipients: size}), mostWait, "its share has shrunk")
	})
}
