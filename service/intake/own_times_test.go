package intake

import (
	"fmt"
	"maps"
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
		b.AllowDuplicates = rapid.Bool().Draw(rt, "duplicates")
		for field, value := range map[string]string{"from": "a@b.de", "subject": "s", "text": "t"} {
			b.SetText(field, value)
		}
		times := rapid.IntRange(1, 6).Draw(rt, "times")
		want, seen := map[string][]string{}, map[string]bool{} // names by times; addresses
		for i := range rapid.IntRange(1, 2500).Draw(rt, "recipients") {
			email := fmt.Sprintf("r%d@example.com", (i*7)%2000)
			r := &Recipient{Email: email, Name: strconv.Itoa(i)}
			hours := ""
			if n := i * i % times; n > 0 {
				hours = day.Add(time.Duration(n) * time.Hour).Format(time.RFC3339)
				r.Times = &Times{Texts: map[string]string{DeliverAt: hours}}
			}
			require.NoError(rt, b.Add(r))
			if !seen[email] || b.AllowDuplicates {
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

// TestOpenChunksAreBounded: however many times and however large recipients are, the chunks that are filled side by side
// have a bounded number of bytes.
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
	type fields struct {
		texts  map[string]string
		window *Window
		none   bool
	}
	set := func(b *Builder, f fields) {
		for name, text := range f.texts {
			b.SetText(name, text)
		}
		if f.window != nil || f.none {
			b.SetWindow(f.window)
		}
	}
	for _, batch := range []fields{
		{},
		{texts: map[string]string{DeliverAt: "2026-02-01T09:00", TimeZone: "Europe/Vienna"}, window: window},
		{texts: map[string]string{ExpiresAt: "2026-02-02T09:00:00Z"}, window: abroad},
	} {
		for _, own := range []fields{
			{texts: map[string]string{TimeZone: "America/New_York"}},
			{texts: map[string]string{DeliverAt: "2026-02-01T18:00:00+01:00"}},
			{texts: map[string]string{DeliverAt: "2026-01-20T18:00", TimeZone: "Australia/Lord_Howe"}, none: true},
			{texts: map[string]string{TimeZone: "Asia/Kolkata"}, window: window},
			{texts: map[string]string{ExpiresAt: "2026-02-01T20:00:00Z"}, window: abroad},
			{none: true},
		} {
			one, whole := newBuilder(t), newBuilder(t)
			set(one, batch)
			set(whole, batch)
			set(whole, own)
			var want models.Batch
			whole.setSchedule(&want)
			refused := whole.SetTimes(&want, now) != nil
			got, wrong := one.scheduleOf(&Times{Texts: own.texts, Window: own.window, AnyTime: own.none}, now)
			require.Equal(t, refused, len(wrong) > 0, "%v in %v", own, batch)
			require.Equal(t, want.Schedule(), got, "%v in %v", own, batch)
		}
	}
}

// builderOf returns a builder with recipients who have times; nil: those of the batch.
func builderOf(t *testing.T, permissive bool, all ...*Times) *Builder {
	t.Helper()
	b := newBuilder(t)
	if permissive {
		b.Permit()
	}
	for i, times := range all {
		r := &Recipient{Email: fmt.Sprintf("r%d@example.com", i)}
		if times != nil {
			r.Times = &Times{Texts: maps.Clone(times.Texts), Window: times.Window}
		}
		require.NoError(t, b.Add(r))
	}
	return b
}

// TestMistakesInTimes: each mistake is told at the field of the recipient that it is about. A permissive request leaves
// out all recipients with it, and no other.
func TestMistakesInTimes(t *testing.T) {
	t.Parallel()
	now := time.Now()
	in := func(d time.Duration) string { return now.Add(d).UTC().Format(time.RFC3339) }
	day := 24 * time.Hour
	text := func(pairs ...string) *Times {
		out := new(Times)
		for i := 0; i < len(pairs); i += 2 {
			out.SetText(pairs[i], pairs[i+1])
		}
		return out
	}
	never := Window{From: "09:00", To: "09:01", Zone: "UTC", Strict: true, Weekdays: []string{now.UTC().AddDate(0, 0, 4).
		Weekday().String()}}
	never.Weekdays[0] = strings.ToLower(never.Weekdays[0])
	for _, c := range []struct {
		times *Times
		want  string
	}{
		{text(DeliverAt, "tomorrow"), "/to/1/deliver_at invalid_value"},
		{text(DeliverAt, ""), "/to/1/deliver_at invalid_value"},
		{text(DeliverAt, "2099-01-01T09:00"), "/to/1/deliver_at invalid_value"},
		{text(DeliverAt, in(-2*time.Hour)), "/to/1/deliver_at invalid_value"},
		{text(DeliverAt, in(366*day)), "/to/1/deliver_at invalid_value"},
		{text(DeliverAt, in(4*day)), "/to/1/deliver_at invalid_value"}, // the batch expires before
		{text(ExpiresAt, in(-time.Hour)), "/to/1/expires_at invalid_value"},
		{text(ExpiresAt, in(day)), "/to/1/expires_at invalid_value"}, // before the time of the batch
		{text(TimeZone, "Moon/North"), "/to/1/time_zone invalid_value"},
		{&Times{Window: &Window{From: "9", To: "17:00", Zone: "UTC"}}, "/to/1/send_window/from invalid_value"},
		{&Times{Window: &Window{From: "09:00", To: "17:00"}}, "/to/1/send_window/time_zone required"},
		{&Times{Window: &never}, "/to/1/send_window invalid_value"},
		{text(TimeZone, strings.Repeat("x", 2000)), "/to/1/time_zone too_long"},
	} {
		for _, permissive := range []bool{false, true} {
			b := builderOf(t, permissive, nil, c.times, text(TimeZone, "UTC"), c.times)
			b.SetText(DeliverAt, in(2*day))
			b.SetText(ExpiresAt, in(3*day))
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
	b := newBuilder(t)
	at := time.Now().AddDate(0, 0, 1)
	for i := range 2 * (maxOwnTimes + 1) {
		text := at.Add(time.Duration(i%(maxOwnTimes+1)) * time.Minute).Format(time.RFC3339)
		r := &Recipient{Email: fmt.Sprintf("r%d@example.com", i), Times: &Times{Texts: map[string]string{DeliverAt: text}}}
		require.NoError(t, b.Add(r))
	}
	_, err := b.Check()
	require.Equal(t, []string{"/to/1000/deliver_at too_many", "/to/2001/deliver_at too_many"}, wrongs(t, err))
}
