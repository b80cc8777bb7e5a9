package consumers

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// TestUrgentFirstAfterOutage: when a provider comes back after all were down, urgent mail is sent
// first, however much bulk mail waits.
func TestUrgentFirstAfterOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var up atomic.Bool
		var mu sync.Mutex
		var order []models.ID // batches in the order in which they were accepted
		answer := func(_ context.Context, c *models.Call) []models.Part {
			if !up.Load() {
				return part(models.Unavailable, c)
			}
			time.Sleep(20 * time.Millisecond)
			mu.Lock()
			order = append(order, c.Batch)
			mu.Unlock()
			return part(models.Accepted, c)
		}
		cfg := fast()
		cfg.Delays = []time.Duration{100 * time.Millisecond}
		r := newRig(t, cfg, nil, newScripted("sg", answer), newScripted("mg", answer))
		var bulk []*models.Batch
		for range 300 {
			bulk = append(bulk, r.batch(1, true, nil))
		}
		urgent := map[models.ID]bool{}
		for range 5 {
			urgent[r.batch(1, true, func(b *models.Batch, _ []models.Recipient) { b.Lane = models.Urgent }).ID] = true
		}
		tripped := func(p *provider.Provider) bool {
			return p.Health.Report(time.Now(), control.ProviderMode{}).State != telemetry.Healthy
		}
		require.Eventually(
			t,
			func() bool { return tripped(r.engine.providers.All()[0]) && tripped(r.engine.providers.All()[1]) },
			patience,
			time.Millisecond,
		)
		up.Store(true)
		for _, b := range bulk {
			r.done(b)
		}
		mu.Lock()
		defer mu.Unlock()
		last := 0
		for i, id := range order {
			if urgent[id] {
				last = i
			}
		}
		require.Less(t, last, len(order)/2, "the last urgent mail")
	})
}
