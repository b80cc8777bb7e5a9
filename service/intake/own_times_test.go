package intake

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/safedelivr/safedelivr/models"
)

// TestChunksByTimes: a chunk has recipients with the same times only, in the order of the request. Those without own
// times come first. Repeated addresses have the times of the first one.
func TestChunksByTimes(t *testing.T) {
	t.Parallel()
	day := time.Now().UTC().AddDate(0, 0, 10).Truncate(24 * time.Hour)
	rapid.Check(t, func(rt *rapid.T) {
		b := New(t.Context(), &Config{MaxRecipients: 10_000, MaxContent: 1000, ExpireAfter: time.Hour, SpoolDir: t.TempDir()})
		defer b.Close()
		b.Batch = Batch{From: "a@b.de", Subject: "s", Text: "t", AllowDuplicates: rapid.Bool().Draw(rt, "duplicates")}
		times := rapid.IntRange(1, 6).Draw(rt, "times")
		want, seen := map[string][]string{}, map[string]bool{} // names by times; addresses
		for i := range rapid.IntRange(1, 2500).Draw(rt, "recipients") {
			email := fmt.Sprintf("r%d@example.com", (i*7)%2000)
			r := &Recipient{Email: email, Name: strconv.Itoa(i)}
			hours := ""
			if n := i * i % times; n > 0 {
				hours = day.Add(time.Duration(n) * time.Hour).Format(time.RFC3339)
				r.Times = Times{DeliverAt: hours}
			}
			require.NoError(rt, b.add(r))
			if !seen[email] || b.Batch.AllowDuplicates {
				want[hours] = append(want[hours], r.Name)
			}
			seen[email] = true
		}
		batch, err := b.Check()
		require.NoError(rt, err)
		require.NoError(rt, b.SetTimes(&batch, time.Now()))
		got, total := map[int][]string{}, 0
		require.NoError(rt, b.Chunks(func(n int, rs []models.Recipient) error {
			require.Len(rt, rs, batch.ChunkSize(n))
			for i := range rs {
				got[n] = append(got[n], rs[i].Name)
			}
			total += len(rs)
			return nil
		}))
		require.Equal(rt, batch.Recipients, total)
		require.Len(rt, got, batch.Chunks)
		ordered := map[string][]string{}
		for n := range batch.Chunks {
			hours := ""
			if s := batch.ScheduleOf(n); !s.DeliverAt.IsZero() {
				hours = s.DeliverAt.Format(time.RFC3339)
				require.Equal(rt, s.DeliverAt.Add(time.Hour), s.ExpiresAt)
			}
			ordered[hours] = append(ordered[hours], got[n]...)
		}
		require.Equal(rt, want, ordered)
	})
}

// TestOpenChunksAreBounded: however many times and however large recipients are, the chunks that are filled side by
// side have a bounded number of bytes.
func TestOpenChunksAreBounded(t *testing.T) {
	t.Parallel()
	var c cut
	for i := range 20_000 {
		c.add(i*31%1000, 100+i%64<<10)
		require.LessOrEqual(t, c.open, maxOpen)
		if i%101 > 0 {
			continue
		}
		open := 0
		for k := range c.runs {
			if r := &c.runs[k]; !r.complete {
				open += r.bytes
				require.LessOrEqual(t, r.bytes, models.MaxChunkBytes)
			}
		}
		require.Equal(t, open, c.open)
	}
	n := 0
	for _, size := range c.sizes() {
		n += size
	}
	require.Equal(t, c.count, n)
}

// TestTimesOfRecipient: a recipient has the times of a batch that names them in place of those of the request.
func TestTimesOfRecipient(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 5, 12, 0, 0, 0, time.UTC)
	window := &Window{From: "09:00", To: "17:00"}
	abroad := &Window{From: "10:00", To: "12:00", Zone: "Asia/Tokyo", Strict: true}
	for _, batch := range []Times{
		{},
		{DeliverAt: "2026-02-01T09:00", TimeZone: "Europe/Vienna", Window: window},
		{ExpiresAt: "2026-02-02T09:00:00Z", Window: abroad},
	} {
		for _, own := range []Times{
			{TimeZone: "America/New_York"},
			{DeliverAt: "2026-02-01T18:00:00+01:00"},
			{DeliverAt: "2026-01-20T18:00", TimeZone: "Australia/Lord_Howe", Window: &Window{None: true}},
			{TimeZone: "Asia/Kolkata", Window: window},
			{ExpiresAt: "2026-02-01T20:00:00Z", Window: abroad},
			{Window: &Window{None: true}},
		} {
			one, whole := newIntake(t), newIntake(t)
			one.Batch.Times, whole.Batch.Times = batch, batch
			for _, name := range own.names() {
				if name == SendWindow {
					whole.Batch.Window = own.Window
				} else {
					*whole.Batch.Times.Time(name) = *own.Time(name)
				}
			}
			s := whole.cfg.schedule(&whole.Batch.Times, &models.SendDefaults{}, whole)
			want := models.Batch{DeliverAt: s.DeliverAt, ExpiresAt: s.ExpiresAt, Window: s.Window}
			refused := whole.SetTimes(&want, now) != nil
			got, wrong, err := one.ScheduleOf(&own, now)
			require.NoError(t, err)
			require.Equal(t, refused, len(wrong) > 0, "%v in %v", own, batch)
			require.Equal(t, want.Schedule(), got, "%v in %v", own, batch)
		}
	}
}

// intakeOf returns a request with recipients who have times; empty: those of the batch.
func intakeOf(t *testing.T, permissive bool, all ...Times) *Intake {
	t.Helper()
	b := newIntake(t)
	if permissive {
		b.Permit()
	}
	for i, times := range all {
		require.NoError(t, b.add(&Recipient{Email: fmt.Sprintf("r%d@example.com", i), Times: times}))
	}
	return b
}

// TestMistakesInTimes: each mistake is reported at the field of the recipient that it is about. A permissive request
// leaves out all recipients with it, and no other.
func TestMistakesInTimes(t *testing.T) {
	t.Parallel()
	now := time.Now()
	in := func(d time.Duration) string { return now.Add(d).UTC().Format(time.RFC3339) }
	day := 24 * time.Hour
	text := func(name, value string) (out Times) {
		*out.Time(name) = value
		return out
	}
	never := Window{From: "09:00", To: "09:01", Zone: "UTC", Strict: true, Weekdays: []string{now.UTC().AddDate(0, 0, 4).
		Weekday().String()}}
	never.Weekdays[0] = strings.ToLower(never.Weekdays[0])
	for _, c := range []struct {
		times Times
		want  string
	}{
		{text(DeliverAt, "tomorrow"), "/to/1/deliver_at invalid_value"},
		{text(DeliverAt, "2099-01-01T09:00"), "/to/1/deliver_at invalid_value"},
		{text(DeliverAt, in(-2*time.Hour)), "/to/1/deliver_at invalid_value"},
		{text(DeliverAt, in(366*day)), "/to/1/deliver_at invalid_value"},
		{text(DeliverAt, in(4*day)), "/to/1/deliver_at invalid_value"}, // the batch expires before
		{text(ExpiresAt, in(-time.Hour)), "/to/1/expires_at invalid_value"},
		{text(ExpiresAt, in(day)), "/to/1/expires_at invalid_value"}, // before the time of the batch
		{text(TimeZone, "Moon/North"), "/to/1/time_zone invalid_value"},
		{Times{Window: &Window{From: "9", To: "17:00", Zone: "UTC"}}, "/to/1/send_window/from invalid_value"},
		{Times{Window: &Window{From: "09:00", To: "17:00"}}, "/to/1/send_window/time_zone required"},
		{Times{Window: &never}, "/to/1/send_window invalid_value"},
		{text(TimeZone, strings.Repeat("x", 2000)), "/to/1/time_zone too_long"},
	} {
		for _, permissive := range []bool{false, true} {
			b := intakeOf(t, permissive, Times{}, c.times, text(TimeZone, "UTC"), c.times)
			b.Batch.DeliverAt, b.Batch.ExpiresAt = in(2*day), in(3*day)
			batch, err := b.Check()
			if !permissive {
				require.Contains(t, wrongs(t, err), c.want)
				continue
			}
			require.NoError(t, err)
			require.NoError(t, b.SetTimes(&batch, now))
			require.Equal(t, 2, batch.Recipients, c.want)
			require.Equal(t, 2, batch.Rejected)
			first, err := b.FirstRejected()
			require.NoError(t, err)
			var places []string
			for _, r := range first {
				places = append(places, r.Pointer+" "+r.Code)
			}
			require.Equal(t, []string{c.want, strings.Replace(c.want, "/1/", "/3/", 1)}, places)
			require.Len(t, batch.Own, 1)
			require.Equal(t, 1, batch.Own[0].From)
		}
	}
}

// TestTooManyTimes: a batch has a bounded number of different times.
func TestTooManyTimes(t *testing.T) {
	t.Parallel()
	b := newIntake(t)
	at := time.Now().AddDate(0, 0, 1)
	for i := range 2 * (maxOwnTimes + 1) {
		text := at.Add(time.Duration(i%(maxOwnTimes+1)) * time.Minute).Format(time.RFC3339)
		r := &Recipient{Email: fmt.Sprintf("r%d@example.com", i), Times: Times{DeliverAt: text}}
		require.NoError(t, b.add(r))
	}
	_, err := b.Check()
	require.Equal(t, []string{"/to/1000/deliver_at too_many", "/to/2001/deliver_at too_many"}, wrongs(t, err))
}
