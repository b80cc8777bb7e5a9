package consumers

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// historyOf returns the sum of a provider's stored history, and the number of its reports.
func historyOf(t *testing.T, store models.Store, provider string) (sum telemetry.ProviderTally, writers int) {
	t.Helper()
	now := time.Now()
	for h := range 26 {
		reports, err := store.Transients(t.Context(), telemetry.HistoryKind(now.Add(-time.Duration(h)*time.Hour)))
		require.NoError(t, err)
		for _, raw := range reports {
			hour, err := telemetry.DecodeHistory(raw)
			require.NoError(t, err)
			writers++
			for minute, tally := range hour[provider] {
				require.GreaterOrEqual(t, minute, 0)
				require.Less(t, minute, 60)
				sum.Add(tally)
			}
		}
	}
	return sum, writers
}

// TestHistoryOutlivesWorkers: the history is in the store when a worker has stopped. After a
// restart the worker adds to it.
func TestHistoryOutlivesWorkers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sg := newScripted("sg", always(models.Accepted))
		mg := newScripted("mg", always(models.Unavailable))
		r := emptyRig(t, nil, "sg", "mg")
		cfg := fast()
		cfg.Worker = "one"
		for life := int64(1); life <= 2; life++ {
			ctx, cancel := context.WithCancel(t.Context())
			e, err := New(r.store, r.broker, []provider.Spec{
				{
					Adapter: sg,
					Provider: models.Provider{
						Name:        "sg",
						Weight:      1,
						Concurrency: 4,
						ChunkLimit:  1000,
						Timeout:     time.Second,
						Events:      models.EventsNone,
					},
				},
				{
					Adapter: mg,
					Provider: models.Provider{
						Name:        "mg",
						Weight:      1,
						Concurrency: 4,
						ChunkLimit:  1000,
						Timeout:     time.Second,
						Events:      models.EventsNone,
					},
				}}, cfg)
			require.NoError(t, err)
			done := make(chan error, 1)
			go func() { done <- e.Run(ctx, time.Second) }()
			r.done(r.batch(10, true, func(b *models.Batch, _ []models.Recipient) { b.Providers = []string{"mg", "sg"} }))
			cancel()
			require.NoError(t, <-done)
			sum, _ := historyOf(t, r.store, "sg")
			require.Equal(t, 10*life, sum.Accepted)
			require.Equal(t, life, sum.Calls)
			require.NotZero(t, sum.Answers.Within(.5))
			other, _ := historyOf(t, r.store, "mg")
			require.GreaterOrEqual(t, other.Refused, int64(10))
		}
		_, writers := historyOf(t, r.store, "sg")
		require.GreaterOrEqual(t, writers, 2, "a report for each start")
	})
}
