package models

import (
	"encoding/json"
	"math/rand/v2"
	"testing"
	"time"
	_ "time/tzdata" // the test needs it on every machine

	"github.com/stretchr/testify/require"
)

func at(t *testing.T, zone, local string) time.Time {
	t.Helper()
	z, err := time.LoadLocation(zone)
	require.NoError(t, err)
	out, err := time.ParseInLocation("2006-01-02 15:04", local, z)
	require.NoError(t, err)
	return out
}

func window(t *testing.T, text string) *SendWindow {
	t.Helper()
	var w SendWindow
	require.NoError(t, json.Unmarshal([]byte(text), &w))
	return &w
}

// TestWindowOpens: mail waits until a clock in the zone of the window shows a time inside of it, also over the nights
// in which the clock is changed.
func TestWindowOpens(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ window, zone, now, want string }{
		"inside": {
			`{"from": "09:00", "to": "17:00"}`,
			"Europe/Vienna", "2026-06-01 12:00", "2026-06-01 12:00",
		},
		"before": {
			`{"from": "09:00", "to": "17:00"}`,
			"Europe/Vienna", "2026-06-01 08:59", "2026-06-01 09:00",
		},
		"after": {
			`{"from": "09:00", "to": "17:00"}`,
			"Europe/Vienna", "2026-06-01 17:00", "2026-06-02 09:00",
		},
		"weekend": {
			`{"from": "09:00", "to": "17:00", "weekdays": ["monday", "friday"]}`,
			"Europe/Vienna", "2026-06-05 17:00", "2026-06-08 09:00",
		},
		"over midnight": {
			`{"from": "22:00", "to": "02:00"}`,
			"Europe/Vienna", "2026-06-01 01:59", "2026-06-01 01:59",
		},
		"night of Friday": {
			`{"from": "22:00", "to": "02:00", "weekdays": ["friday"]}`,
			"Europe/Vienna", "2026-06-06 01:00", "2026-06-06 01:00",
		},
		"night after Saturday": {
			`{"from": "22:00", "to": "02:00", "weekdays": ["friday"]}`,
			"Europe/Vienna", "2026-06-07 01:00", "2026-06-12 22:00",
		},
		"all day": {
			`{"from": "00:00", "to": "24:00", "weekdays": ["sunday"]}`,
			"Europe/Vienna", "2026-06-06 12:00", "2026-06-07 00:00",
		},
		// On 2026-03-29 the clock in Vienna goes from 02:00 to 03:00, on 2026-10-25 from 03:00 to 02:00.
		"spring, next morning": {
			`{"from": "09:00", "to": "17:00"}`,
			"Europe/Vienna", "2026-03-28 18:00", "2026-03-29 09:00",
		},
		"spring, hour skipped": {
			`{"from": "02:30", "to": "04:00"}`,
			"Europe/Vienna", "2026-03-29 01:00", "2026-03-29 03:00",
		},
		"spring, window skipped": {
			`{"from": "02:15", "to": "02:45"}`,
			"Europe/Vienna", "2026-03-29 01:00", "2026-03-30 02:15",
		},
		"autumn, next morning": {
			`{"from": "09:00", "to": "17:00"}`,
			"Europe/Vienna", "2026-10-24 18:00", "2026-10-25 09:00",
		},
		// In Lord Howe it is half an hour: on 2026-10-04 from 02:00 to 02:30, on 2026-04-05 from 02:00 to 01:30.
		"Lord Howe, spring": {
			`{"from": "02:10", "to": "03:00"}`,
			"Australia/Lord_Howe", "2026-10-04 01:00", "2026-10-04 02:30",
		},
		"Lord Howe, next day": {
			`{"from": "09:00", "to": "17:00"}`,
			"Australia/Lord_Howe", "2026-04-04 20:00", "2026-04-05 09:00",
		},
		"Nepal": {
			`{"from": "09:00", "to": "17:00"}`,
			"Asia/Kathmandu", "2026-04-04 20:00", "2026-04-05 09:00",
		},
	} {
		w := window(t, c.window)
		w.Zone, w.Strict = c.zone, true
		b := &Batch{Window: w}
		now := at(t, c.zone, c.now)
		require.WithinDuration(t, at(t, c.zone, c.want), b.MayLeave(now, false), 0, name)
		require.WithinDuration(t, now, b.MayLeave(now, true), 0, name)
	}
	// In the night in which the clock in Vienna goes back, it shows 02:00 to 03:00 twice, and the window is open twice.
	b := &Batch{Window: &SendWindow{From: 150, To: 165, Zone: "Europe/Vienna", Strict: true}}
	first := time.Date(2026, 10, 25, 0, 30, 0, 0, time.UTC)
	require.WithinDuration(t, first, b.MayLeave(first.Add(-time.Hour), false), 0)
	require.WithinDuration(t, first.Add(time.Hour), b.MayLeave(first.Add(15*time.Minute), false), 0)
}

// TestWindowBySteps: what MayLeave computes is what looking at a clock every minute finds.
func TestWindowBySteps(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	zones := []string{
		"Europe/Vienna",
		"Australia/Lord_Howe",
		"America/St_Johns",
		"Africa/Casablanca",
		"Pacific/Apia",
		"UTC",
	}
	shows := func(w *SendWindow, local time.Time) bool {
		m, day := TimeOfDay(local.Hour()*60+local.Minute()), Weekday(local.Weekday())
		if w.From < w.To {
			return m >= w.From && m < w.To && w.on(day)
		}
		return m >= w.From && w.on(day) || m < w.To && w.on((day+6)%7)
	}
	for range 300 {
		w := &SendWindow{From: TimeOfDay(rnd.IntN(1440)), To: TimeOfDay(rnd.IntN(1441)), Zone: zones[rnd.IntN(len(zones))],
			Strict: true}
		if w.From == w.To {
			continue
		}
		for d := range Weekday(7) {
			if rnd.IntN(2) == 0 {
				w.Days = append(w.Days, d)
			}
		}
		zone, err := time.LoadLocation(w.Zone)
		require.NoError(t, err)
		now := time.Date(
			2011+rnd.IntN(16),
			time.Month(1+rnd.IntN(12)),
			1+rnd.IntN(31),
			rnd.IntN(24),
			rnd.IntN(60),
			0,
			0,
			time.UTC,
		)
		want := now
		for !shows(w, want.In(zone)) {
			want = want.Add(time.Minute)
		}
		require.WithinDuration(t, want, (&Batch{Window: w}).MayLeave(now, false), 0, "%s from %s", w, now)
	}
}

// TestWindowNearExpiry: the nearer its expiry, the further mail leaves its window, unless the window is strict.
func TestWindowNearExpiry(t *testing.T) {
	t.Parallel()
	expires := time.Date(2026, 6, 3, 7, 0, 0, 0, time.UTC) // a Wednesday
	leaves := func(text string, now time.Time) time.Time {
		w := window(t, text)
		w.Zone = "UTC"
		return (&Batch{Window: w, ExpiresAt: expires}).MayLeave(now, false)
	}
	day := func(d, hour int) time.Time { return time.Date(2026, 6, d, hour, 0, 0, 0, time.UTC) }
	const nine = `{"from": "09:00", "to": "17:00"}`
	for _, c := range []struct {
		window    string
		now, want time.Time
	}{
		{nine, day(1, 18), day(2, 8)},  // 23 hours are left: an hour earlier
		{nine, day(2, 17), day(2, 17)}, // 14 hours are left: an hour later
		{nine, day(2, 18), day(3, 6)},  // three hours earlier, with an hour left
		{`{"from": "09:00", "to": "17:00", "weekdays": ["sunday"]}`, day(1, 12), day(3, 6)}, // at any time
		{`{"from": "12:00", "to": "13:00", "weekdays": ["sunday"]}`, day(3, 6), day(3, 6)},  // at any time
		{`{"from": "09:00", "to": "17:00", "strict": true}`, day(2, 18), day(3, 9)},         // never: it expires
		{`{"from": "09:00", "to": "17:00", "strict": true}`, expires, day(3, 9)},            // never
		{`{"from": "02:00", "to": "03:00"}`, day(2, 12), day(3, 1)},                         // 6 hours are left: three earlier
	} {
		require.WithinDuration(t, c.want, leaves(c.window, c.now), 0, "%s from %s", c.window, c.now)
	}
	b := &Batch{DeliverAt: day(2, 12), ExpiresAt: expires}
	require.Equal(t, day(2, 12), b.MayLeave(day(1, 0), true), "a release does not pass the time of the batch")
	require.Equal(t, day(2, 13), b.MayLeave(day(2, 13), false))
}

// TestOwnTimes: the recipients of some chunks have times of their own, which a change of those of the batch leaves as
// they are. The batch begins with the first recipient and ends with the last.
func TestOwnTimes(t *testing.T) {
	t.Parallel()
	day := func(n int) time.Time { return time.Date(2026, 1, n, 0, 0, 0, 0, time.UTC) }
	times := func(n int) Schedule { return Schedule{DeliverAt: day(n), ExpiresAt: day(n + 1)} }
	b := &Batch{
		Chunks:    6,
		DeliverAt: day(10),
		ExpiresAt: day(11),
		Own:       []OwnTimes{{times(5), 2}, {times(20), 3}, {times(7), 5}},
	}
	moved := times(12)
	for n, want := range []int{10, 10, 5, 20, 20, 7} {
		require.Equal(t, times(want), b.ScheduleOf(n))
		require.Equal(t, times(want), b.OfChunk(n).Schedule())
		if want == 10 {
			want = 12
		}
		require.Equal(t, times(want), b.OfChunk(n).Rescheduled(&moved).Schedule())
		require.Equal(t, times(want), b.Rescheduled(&moved).OfChunk(n).Schedule())
	}
	require.Equal(t, 2, b.OwnFrom())
	require.Equal(t, day(5), b.Begins())
	require.Equal(t, day(21), b.Ends())
	first, last := b.Leaves(day(6))
	require.Equal(t, []time.Time{day(6), day(20)}, []time.Time{first, last})
	require.Equal(t, BatchScheduled, b.StateOf(Summary{Queued: 1}, day(4)))
	require.Equal(t, BatchQueued, b.StateOf(Summary{Queued: 1}, day(5)))

	b.Own = b.Own[1:2]
	require.Equal(t, day(10), b.Begins())
	require.Equal(t, day(12), b.Rescheduled(&moved).Begins())
	b.Own = []OwnTimes{{times(20), 0}, {times(21), 1}}
	require.Equal(t, day(20), b.Begins(), "no recipient has the time of the batch")
	require.Zero(t, (&Batch{Own: b.Own[1:], Chunks: 2}).Begins(), "the others are sent at once")
	b.Own = nil
	require.Equal(t, 6, b.OwnFrom())
	require.Same(t, b, b.OfChunk(5))
	require.Equal(t, day(11), b.Ends())
}
