package consumers

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// TestQueueAgeIsReported: a worker reports the age of a stuck queue in its metrics and in the
// store.
func TestQueueAgeIsReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		let := sync.OnceFunc(func() { close(release) })
		p := newScripted("sg", func(_ context.Context, c *models.Call) []models.Part {
			<-release
			return part(models.Accepted, c)
		})
		r := emptyRig(t, nil, "sg")
		cfg := fast()
		reg := prometheus.NewPedanticRegistry()
		cfg.QueuePoll, cfg.Metrics = 10*time.Millisecond, reg
		providers := []provider.Spec{
			{
				Adapter: p,
				Provider: models.Provider{
					Name:        "sg",
					Weight:      1,
					Concurrency: 1,
					ChunkLimit:  1000,
					Timeout:     time.Minute,
					Events:      models.EventsNone,
				},
			},
		}
		e := r.start(cfg, providers)
		t.Cleanup(let) // before the worker is waited for
		var batches []*models.Batch
		for range 30 {
			batches = append(batches, r.batch(1, true, nil))
		}
		waits := func() time.Duration {
			depths, err := r.broker.Depths(t.Context())
			require.NoError(t, err)
			oldest := time.Duration(0)
			for i := range depths {
				if age, known := e.ages.Oldest(&depths[i], time.Now()); known {
					oldest = max(oldest, age)
				}
			}
			return oldest
		}
		shown := func(lane string) float64 {
			all, err := reg.Gather()
			require.NoError(t, err)
			families := map[string]*dto.MetricFamily{}
			for _, f := range all {
				families[f.GetName()] = f
			}
			return value(families, "safedelivr_queue_oldest_seconds", "provider", "sg", lane)
		}
		require.Eventually(
			t,
			func() bool { return waits() > 300*time.Millisecond && shown("bulk") > .3 },
			patience,
			5*time.Millisecond,
			"it grows",
		)
		require.Zero(t, shown("urgent"))
		let()
		for _, b := range batches {
			r.done(b)
		}
		require.Eventually(t, func() bool { return r.idle() && waits() == 0 }, patience, 5*time.Millisecond, "nothing waits")
		require.Eventually(t, func() bool {
			raw, err := r.store.Transients(t.Context(), telemetry.QueuesReport)
			return err == nil && len(raw) == 1
		}, patience, 5*time.Millisecond)
	})
}
