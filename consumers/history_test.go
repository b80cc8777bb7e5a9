package consumers

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/consumers/retention"
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

// failing is a store that cannot store transient values while it is down.
type failing struct {
	models.Store
	down atomic.Bool
}

func (s *failing) PutTransient(ctx context.Context, kind, name string, value []byte, ttl time.Duration) error {
	if s.down.Load() {
		return errors.New("down")
	}
	return s.Store.PutTransient(ctx, kind, name, value, ttl)
}

// TestHistoryByTimeOfEvents: events count in the hour in which they happened. A history that could
// not be stored is stored later, and nothing counts twice.
func TestHistoryByTimeOfEvents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := emptyRig(t, nil, "sg")
		store := &failing{Store: r.store}
		h := retention.NewHistory(store, "w/1")
		now := time.Now().UTC()
		attempt := &models.Entry{At: now.Add(-3 * time.Hour)}
		event := func(kind models.EventKind, at time.Time) {
			h.Event(&models.Event{Provider: "sg", Kind: kind, At: at}, attempt)
		}
		event(models.Delivered, now.Add(-2*time.Hour))
		event(models.Delivered, now.Add(time.Hour)) // a fast clock
		event(models.Bounced, now)
		event(models.Deferred, now)
		event(models.Opened, now)
		event(models.Delivered, now.Add(-telemetry.HistoryLate-time.Hour))
		store.down.Store(true)
		require.Error(t, h.Flush(t.Context()))
		store.down.Store(false)
		for range 2 {
			require.NoError(t, h.Flush(t.Context()))
			sum, writers := historyOf(t, r.store, "sg")
			require.Equal(t, 2, writers, "an hour each")
			require.Equal(t, []int64{2, 1, 1, 0}, []int64{sum.Delivered, sum.Failed, sum.Deferred, sum.Calls})
			require.InEpsilon(t, float64(time.Hour), float64(sum.Delivery.Within(.5)), .2)
		}
		then, err := r.store.Transients(t.Context(), telemetry.HistoryKind(now.Add(-2*time.Hour)))
		require.NoError(t, err)
		hour, err := telemetry.DecodeHistory(then["w/1"])
		require.NoError(t, err)
		require.EqualValues(t, 1, hour["sg"][now.Minute()].Delivered)
	})
}

// TestDeliveryTime: the time from a call to its delivery is as exact as the provider's clock allows,
// and never negative.
func TestDeliveryTime(t *testing.T) {
	t.Parallel()
	call := time.Date(2026, 1, 31, 12, 0, 0, 700_000_000, time.UTC)
	at := func(d time.Duration) time.Time { return call.Add(d) }
	for name, c := range map[string]struct {
		event, heard time.Time
		want         time.Duration
	}{
		"to a millisecond":            {at(time.Second + time.Millisecond), at(time.Minute), time.Second + time.Millisecond},
		"to a second":                 {at(300 * time.Millisecond), at(time.Minute), 800 * time.Millisecond},
		"to a second, heard at once":  {at(300 * time.Millisecond), at(400 * time.Millisecond), 350 * time.Millisecond},
		"in the second of the call":   {at(-700 * time.Millisecond), at(time.Minute), 150 * time.Millisecond},
		"by a clock that is ahead":    {at(time.Hour + 1), at(2 * time.Second), 2 * time.Second},
		"by a clock that lags behind": {at(-time.Hour + 1), at(2 * time.Second), 0},
	} {
		require.Equal(t, c.want, telemetry.DeliveryTime(c.event, call, c.heard), name)
	}
}
