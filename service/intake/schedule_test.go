package intake

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/problem"
)

// TestTimesOnClocks: a local time is when a clock in its zone shows it: for the first time if it shows it twice, and
// when it jumps if it jumps over it.
func TestTimesOnClocks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ zone, local, want string }{
		{"Europe/Vienna", "2026-01-15T09:00", "2026-01-15T08:00:00Z"},
		{"Europe/Vienna", "2026-07-15T09:00", "2026-07-15T07:00:00Z"},
		{"Europe/Vienna", "2026-03-29T01:59:59", "2026-03-29T00:59:59Z"},
		{"Europe/Vienna", "2026-03-29T02:00", "2026-03-29T01:00:00Z"},
		{"Europe/Vienna", "2026-03-29T02:30", "2026-03-29T01:00:00Z"},
		{"Europe/Vienna", "2026-03-29T02:59:59", "2026-03-29T01:00:00Z"},
		{"Europe/Vienna", "2026-03-29T03:00", "2026-03-29T01:00:00Z"},
		{"Europe/Vienna", "2026-10-25T01:59:59", "2026-10-24T23:59:59Z"},
		{"Europe/Vienna", "2026-10-25T02:00", "2026-10-25T00:00:00Z"},
		{"Europe/Vienna", "2026-10-25T02:59:59", "2026-10-25T00:59:59Z"},
		{"Europe/Vienna", "2026-10-25T03:00", "2026-10-25T02:00:00Z"},
		{"America/New_York", "2026-03-08T02:30", "2026-03-08T07:00:00Z"},
		{"America/New_York", "2026-11-01T01:30", "2026-11-01T05:30:00Z"},
		{"America/New_York", "2026-11-01T02:00", "2026-11-01T07:00:00Z"},
		{"Australia/Lord_Howe", "2026-04-05T01:29", "2026-04-04T14:29:00Z"},
		{"Australia/Lord_Howe", "2026-04-05T01:30", "2026-04-04T14:30:00Z"},
		{"Australia/Lord_Howe", "2026-04-05T01:59", "2026-04-04T14:59:00Z"},
		{"Australia/Lord_Howe", "2026-04-05T02:00", "2026-04-04T15:30:00Z"},
		{"Australia/Lord_Howe", "2026-10-04T01:59", "2026-10-03T15:29:00Z"},
		{"Australia/Lord_Howe", "2026-10-04T02:15", "2026-10-03T15:30:00Z"},
		{"Australia/Lord_Howe", "2026-10-04T02:30", "2026-10-03T15:30:00Z"},
		{"Pacific/Apia", "2011-12-30T12:00", "2011-12-30T10:00:00Z"}, // the island had no such day
		{"Asia/Kathmandu", "2026-03-29T02:30", "2026-03-28T20:45:00Z"},
		{"UTC", "2026-03-29T02:30", "2026-03-29T02:30:00Z"},
	} {
		zone, err := time.LoadLocation(c.zone)
		require.NoError(t, err)
		var m problem.Mistakes
		require.Equal(t, c.want, timeIn(DeliverAt, c.local, zone, &m).Format(time.RFC3339), "%s in %s", c.local, c.zone)
		require.Zero(t, m.Found())
	}
}

// TestYearAhead: a batch may be scheduled for a year ahead, to the second.
func TestYearAhead(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for past, wrong := range map[time.Duration]bool{0: false, time.Second: true} {
		var m problem.Mistakes
		at := now.AddDate(0, 0, 365).Add(past)
		named := Times{DeliverAt: at.Format(time.RFC3339), ExpiresAt: at.Add(time.Hour).Format(time.RFC3339)}
		new(Config).checkTimes(&named, &models.Schedule{DeliverAt: at, ExpiresAt: at.Add(time.Hour)}, now, now, &m)
		require.Equal(t, wrong, m.Found() > 0, past)
	}
}
