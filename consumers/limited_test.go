package consumers

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/policy"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/sqlite/sqlitetest"
)

// TestOverTheLimitGoesElsewhere: what one provider refused, and could go on through
// a provider that is over its limit or through one that is idle, does not wait for
// the limit.
func TestOverTheLimitGoesElsewhere(t *testing.T) {
	t.Parallel()
	for name, wish := range map[string][]string{"by weight": nil, "in the batch's order": {"a", "b", "c"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
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
	}
}

// TestNeverTriedComesFirst: a provider that refused, and may be tried again by now,
// comes after those that never were.
func TestNeverTriedComesFirst(t *testing.T) {
	t.Parallel()
	store, broker := sqlitetest.Open(t), inproctest.New(t, "a", "b", "c")
	var providers []provider.Spec
	for _, name := range []string{"a", "b", "c"} {
		providers = append(
			providers,
			provider.Spec{Adapter: newScripted(name, nil), Provider: models.Provider{Name: name, Weight: 1}},
		)
	}
	e, err := New(store, broker, providers, fast())
	require.NoError(t, err)
	now := time.Now()
	before := now.Add(-time.Minute)
	for range 6 {
		first := e.dispatch.Order(
			&policy.Step{
				Options: []policy.Option{{Provider: "c"}, {Provider: "a", NotBefore: before}, {Provider: "b", NotBefore: before}},
			},
			now,
		)
		require.Len(t, first, 1)
		require.Equal(t, "c", first[0].Name)
	}
	again := e.dispatch.Order(
		&policy.Step{
			Options: []policy.Option{
				{Provider: "a", NotBefore: now.Add(time.Minute)},
				{Provider: "b", NotBefore: before},
				{Provider: "c", NotBefore: before},
			},
		},
		now,
	)
	require.Len(t, again, 1)
	require.Equal(t, "b", again[0].Name)
}
