package consumers

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
)

// Refused mail that two other providers may take does not wait for the one that is over
// its limit.
func TestRefusedMailAvoidsLimitedProvider(t *testing.T) {
	t.Parallel()
	for name, wish := range map[string][]string{"by weight": nil, "in the batch's order": {"a", "b", "c"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				refuses, limited, idle := newScripted(
					"a",
					always(models.RejectedHereClass),
				), newScripted(
					"b",
					always(models.Accepted),
				), newScripted(
					"c",
					always(models.Accepted),
				)
				r := emptyRig(t, nil, "a", "b", "c")
				spec := func(p *scripted, rate float64) provider.Spec {
					return provider.Spec{
						Adapter: p,
						Provider: models.Provider{
							Name:        p.name,
							Weight:      1,
							Concurrency: 4,
							ChunkLimit:  1000,
							Timeout:     time.Second,
							Events:      models.EventsNone,
							Rate:        rate,
						},
					}
				}
				r.engine = r.start(fast(), []provider.Spec{spec(refuses, 0), spec(limited, 0.5), spec(idle, 0)})
				const n = 200
				batches := make([]*models.Batch, n)
				for i := range batches {
					batches[i] = r.batch(1, true, func(b *models.Batch, _ []models.Recipient) { b.Providers = wish })
				}
				for _, b := range batches {
					require.Equal(t, models.Success, r.done(b).Status(1).State)
				}
				require.Less(t, limited.count(), n/4)
				require.GreaterOrEqual(t, limited.count()+idle.count(), n)
			})
		})
	}
}
