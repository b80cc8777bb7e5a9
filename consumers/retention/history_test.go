package retention

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/store/memory"
)

// failing is a store that cannot store transient values while it is down.
type failing struct {
	historyStore
	down atomic.Bool
}

func (s *failing) PutTransient(ctx context.Context, kind, name string, value []byte, ttl time.Duration) error {
	if s.down.Load() {
		return errors.New("down")
	}
	return s.historyStore.PutTransient(ctx, kind, name, value, ttl)
}

// hourOf returns what the history w/1 has stored of the hour of a time.
func hourOf(t *testing.T, s *memory.Store, at time.Time) telemetry.HistoryHour {
	t.Helper()
	stored, err := s.Transients(t.Context(), telemetry.HistoryKind(at))
	require.NoError(t, err)
	require.Len(t, stored, 1)
	hour, err := telemetry.DecodeHistory(stored["w/1"])
	require.NoError(t, err)
	return hour
}

// TestHistoryByTimeOfEvents: events count in the hour in which they happened. A history that could
// not be stored is stored later, and nothing counts twice.
func TestHistoryByTimeOfEvents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stored := memory.Open(t)
		store := &failing{historyStore: stored}
		h := NewHistory(store, "w/1")
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
			var sum telemetry.ProviderTally
			for _, ago := range []time.Duration{0, 2 * time.Hour} {
				for _, tally := range hourOf(t, stored, now.Add(-ago))["sg"] {
					sum.Add(tally)
				}
			}
			require.Equal(t, []int64{2, 1, 1, 0}, []int64{sum.Delivered, sum.Failed, sum.Deferred, sum.Calls})
			require.InEpsilon(t, float64(time.Hour), float64(sum.Delivery.Within(.5)), .2)
		}
		require.EqualValues(t, 1, hourOf(t, stored, now.Add(-2*time.Hour))["sg"][now.Minute()].Delivered)
		old, err := stored.Transients(t.Context(), telemetry.HistoryKind(now.Add(-telemetry.HistoryLate-time.Hour)))
		require.NoError(t, err)
		require.Empty(t, old)
	})
}

// puts counts the transient values that are stored.
type puts int

func (n *puts) PutTransient(context.Context, string, string, []byte, time.Duration) error {
	*n++
	return nil
}

// TestHistoryIsStoredWhenItChanges: an hour is stored once for its changes, and leaves memory when none can follow.
func TestHistoryIsStoredWhenItChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var stored puts
		h := NewHistory(&stored, "w/1")
		parts := []models.Part{{Class: models.Accepted, Recipients: models.SetOf(1)}}
		for want := puts(1); want <= 2; want++ {
			h.Called("sg", time.Second, parts)
			h.Called("sg", time.Second, parts)
			for range 3 {
				require.NoError(t, h.Flush(t.Context()))
				require.Equal(t, want, stored)
			}
		}
		time.Sleep(telemetry.HistoryLate + 2*time.Hour)
		require.Len(t, h.hours, 1)
		require.NoError(t, h.Flush(t.Context()))
		require.Empty(t, h.hours)
		require.EqualValues(t, 2, stored)
	})
}
