package policy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

// TestMailWaitsForItsTime: no call is made before the time of a batch and outside of its window, also no retry. A
// cancellation and the expiry end mail before that.
func TestMailWaitsForItsTime(t *testing.T) {
	t.Parallel()
	p := New(Config{MaxRetries: 10, Delays: []time.Duration{time.Second}}, []models.Provider{{Name: "a"}, {Name: "b"}})
	noon := time.Date(2026, 1, 5, 12, 0, 0, 0, time.UTC) // a Monday
	refused := []models.Fact{
		{Key: models.OutcomeKey(1), Outcome: &models.Outcome{Attempt: 1, At: noon, Parts: []models.Part{
			{Class: models.Unavailable, Recipients: models.SetOf(1)}}}},
	}
	first := []models.Entry{
		{Number: 1, Kind: models.Attempt, At: noon, Recipients: models.SetOf(1), Provider: "a", CallEnds: noon},
	}
	plan := func(b *models.Batch, entries []models.Entry, facts []models.Fact, now time.Time) Step {
		b.Content.From.Email = "a@b.c"
		steps := p.Plan(models.Resolve(1, entries, facts), b, &Commands{Rules: control.NewFollower(nil).Rules()}, now)
		require.Len(t, steps, 1)
		return steps[0]
	}
	week := noon.AddDate(0, 0, 7)
	later := &models.Batch{DeliverAt: noon.Add(time.Hour), ExpiresAt: week}
	st := plan(later, nil, nil, noon)
	require.True(t, st.Scheduled())
	require.Equal(t, noon.Add(time.Hour), st.Until)
	require.Equal(t, models.WaitSchedule, st.Waits.Code)
	require.Equal(t, Call, plan(later, nil, nil, noon.Add(time.Hour)).Do)
	require.Equal(t, End, plan(later, nil, nil, week).Do)

	morning := &models.Batch{
		Window:    &models.SendWindow{From: 8 * 60, To: 10 * 60, Zone: "UTC", Strict: true},
		ExpiresAt: noon.Add(time.Hour),
	}
	st = plan(morning, first, refused, noon.Add(time.Minute))
	require.True(t, st.Scheduled())
	require.Equal(t, morning.ExpiresAt, st.Until, "it expires before the window opens")
	require.Contains(t, st.Waits.Text, "08:00 to 10:00 (UTC)")
	require.Equal(t, models.Expired, plan(morning, first, refused, noon.Add(time.Hour)).Reason)
	morning.Window.To = 13 * 60
	require.Equal(t, Call, plan(morning, first, refused, noon.Add(time.Minute)).Do)
}
