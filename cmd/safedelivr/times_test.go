package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestRescheduleBatch requires that the new times of a batch are printed, and that flags are named in mistakes.
func TestRescheduleBatch(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	day := time.Now().AddDate(0, 0, 2).Format("2006-01-02")
	id := d.batch("deliver_at", day+"T08:00", "time_zone", "UTC").String()
	line := "batch reschedule " + id + " --time-zone UTC"
	out, _ := d.run(line + " --deliver-at " + day + "T12:00 --dry-run --send-window none")
	require.Contains(t, out, "dry run, nothing was done; recipients: 1;")
	require.Contains(t, out, "\nsent at "+day+"T12:00:00Z; expires at ")
	out, _ = d.run(line + " --send-window 07:00-11:00 --weekdays monday --expires-at " + day + "T09:00")
	require.Contains(t, out,
		"sent at "+day+"T08:00:00Z; only from 07:00 to 11:00 on Monday (UTC); expires at "+day+"T09:00")
	out, _ = d.run("batch show " + id)
	require.Contains(t, out, "sent at "+day+"T08:00:00Z; only from")
	out, _ = d.run(line + " --send-window none --deliver-at now --why hurry")
	require.Contains(t, out, "batch.reschedule "+id+": done; recipients: 1; in flight: 0\nsent at ")
	out, _ = d.run("audit")
	require.Contains(t, out, "hurry")
	for flags, want := range map[string]string{
		" --deliver-at " + day + "T12:00": "has begun",
		" --send-window 9":                "--send-window 9: like 09:00-17:00, or none",
		" --send-window 9-10":             "--send-window: from must be a time of day",
		"":                                "Name deliver_at",
	} {
		require.Contains(t, d.fails(line+flags), want, flags)
	}
}

// TestUserDefaults requires that what is not given stays as it is, and that a batch gets the defaults.
func TestUserDefaults(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	for _, c := range [][2]string{
		{"", "time zone: none; sent from: any time"},
		{" --time-zone UTC", "time zone: UTC; sent from: any time"},
		{
			" --send-window 09:00-17:00 --weekdays monday,friday",
			"time zone: UTC; sent from: 09:00 to 17:00 on Monday, Friday (UTC)",
		},
		{" --time-zone none", "time zone: none; sent from: 09:00 to 17:00 on Monday, Friday (UTC)"},
		{"", "time zone: none; sent from: 09:00 to 17:00 on Monday, Friday (UTC)"},
	} {
		out, _ := d.run("user defaults ada" + c[0])
		require.Equal(t, c[1]+"\n", out)
	}
	out, _ := d.run("batch show " + d.batch().String())
	require.Contains(t, out, "only from 09:00 to 17:00")
	out, _ = d.run("user defaults ada --send-window none --why holidays")
	require.Equal(t, "time zone: none; sent from: any time\n", out)
	require.Contains(t, d.fails("user defaults eve"), "there is no user eve")
	require.Contains(t, d.fails("user defaults ada --time-zone Mars"), "--time-zone: There is no such time zone")
}
