package consumers

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
)

// counted is a broker that counts messages.
type counted struct {
	models.Broker
	n atomic.Int64
}

func (b *counted) Publish(ctx context.Context, ms ...models.Message) error {
	b.n.Add(int64(len(ms)))
	return b.Broker.Publish(ctx, ms...)
}

// TestCostOfManyCalls: if all calls of a chunk are refused and rerouted, the reads and messages
// grow with the number of calls, and not with its square.
func TestCostOfManyCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sg, mg := newScripted("sg", always(models.RejectedHereClass)), newScripted("mg", always(models.Accepted))
		var s reads
		r := emptyRig(t, func(store models.Store) models.Store { s.Store = store; return &s }, "sg", "mg")
		b := &counted{Broker: r.broker}
		r.broker = b
		cfg := fast()
		cfg.Recheck, cfg.AgendaPoll = time.Hour, time.Hour // the agenda reads nothing
		var providers []provider.Spec
		for _, p := range []*scripted{sg, mg} {
			providers = append(
				providers,
				provider.Spec{Adapter: p, Provider: models.Provider{Name: p.name, Weight: 1, Concurrency: 32, ChunkLimit: 10,
					Timeout: time.Second, Events: models.EventsNone}},
			)
		}
		r.engine = r.start(cfg, providers)
		batch := r.batch(400, true, func(b *models.Batch, _ []models.Recipient) { b.Providers = []string{"sg", "mg"} })
		require.Eventually(t, func() bool { return mg.count() == 40 && r.idle() }, patience, 20*time.Millisecond)
		v := r.done(batch)
		r.stop()
		calls := int64(sg.count() + mg.count())
		require.LessOrEqual(t, s.n.Load(), 8*calls, "read, for %d calls", calls)
		require.LessOrEqual(t, b.n.Load(), 2*calls, "published, for %d calls", calls)
		for i := 1; i <= len(v.Logs); i++ {
			require.Equal(t, 1, mg.copiesOf(batch.ID.Log(i)))
		}
	})
}
