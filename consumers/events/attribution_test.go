package events

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
)

// TestImplausibleTime: if an event cannot have happened at its time, the time of its post
// counts.
func TestImplausibleTime(t *testing.T) {
	t.Parallel()
	attempt := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	posted := attempt.Add(2 * time.Hour)
	for _, at := range []time.Time{
		attempt,
		attempt.Add(-maxSkew),
		attempt.Add(time.Hour),
		posted,
		posted.Add(maxSkew),
	} {
		require.Equal(t, at, plausibleTime(at, attempt, posted))
	}
	for _, at := range []time.Time{
		{},
		time.Unix(0, 0),
		attempt.Add(-maxSkew - 1),
		posted.Add(maxSkew + 1),
		posted.AddDate(3000, 0, 0),
	} {
		require.Equal(t, posted, plausibleTime(at, attempt, posted))
	}
}

// Events about mail that the provider did not try to deliver are no reports.
func TestDropIsNoReport(t *testing.T) {
	t.Parallel()
	a := attributor{providers: newProviders(t, jsonAdapter{}), flows: provider.NewFlows()}
	now := time.Now()
	of := &models.Entry{At: now.Add(-time.Minute)}
	reported := func() (n int64) {
		for _, f := range a.flows.Snapshot()["sg"] {
			n += f.Reported
		}
		return n
	}
	for _, kind := range []models.EventKind{models.Dropped, models.Rejected, models.Processed, models.Opened} {
		a.countEvent(&models.Event{Provider: "sg", Kind: kind, At: now}, of, now)
	}
	require.Zero(t, reported())
	for _, kind := range []models.EventKind{models.Delivered, models.Bounced, models.Blocked, models.Deferred} {
		a.countEvent(&models.Event{Provider: "sg", Kind: kind, At: now}, of, now)
	}
	require.EqualValues(t, 4, reported())
}
