package consumers

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// A probe command reaches all workers, and mail that waited is sent. A worker that starts
// later ignores findings from before the command.
func TestProbeCommandReachesWorkers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
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
		usable := func(e *Engine) bool {
			ok, _ := e.providers.Get("sg").Health.Usable("a.test", time.Now(), false)
			return ok
		}
		var rejects []func([]models.Part, time.Duration)
		for _, e := range workers { // both begin their calls before either knows of a rejection
			require.Eventually(t, func() bool { return e.State().Share == 0.5 }, patience, 20*time.Millisecond)
			reject, ok := e.providers.Get("sg").Health.Begin("a.test", 1)
			require.True(t, ok)
			rejects = append(rejects, reject)
		}
		for _, reject := range rejects {
			reject([]models.Part{{Class: models.AccountClass, Recipients: models.SetOf(1)}}, time.Millisecond)
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
			require.Eventually(t, func() bool { return usable(e) }, patience, 20*time.Millisecond)
		}

		raw, err := json.Marshal(struct {
			provider.Finding
			At time.Time `json:"at"`
		}{provider.Finding{State: telemetry.Suspended, Source: telemetry.RetryAfter, Left: time.Hour}, time.Now()})
		require.NoError(t, err)
		require.NoError(t, r.store.PutTransient(t.Context(), "finding", "sg dead", raw, time.Hour))
		for _, stop := range stops {
			stop()
		}
		cfg.Worker = "late"
		r.engine = r.worker(cfg, sg)
		require.EqualValues(t, 3, r.done(r.batch(3, true, nil)).Summary().Success)
		require.True(t, usable(r.engine))
	})
}
