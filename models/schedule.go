package models

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
)

// SendWindow is when the mail of a batch is handed over: while a clock in Zone shows a time
// between From and To, on some days of the week. Near its expiry the mail of a window that is
// not strict may leave outside of it: see margins.
type SendWindow struct {
	From   TimeOfDay `json:"from"`
	To     TimeOfDay `json:"to"`                 // not later than From: on the day after
	Days   []Weekday `json:"weekdays,omitempty"` // on which it begins; empty: every day
	Zone   string    `json:"time_zone"`          // IANA name
	Strict bool      `json:"strict,omitempty"`   // nothing leaves outside of the window, and what is left expires
}

// TimeOfDay is a time on a clock, in minutes after midnight, up to 24:00.
type TimeOfDay int

// MarshalText implements encoding.TextMarshaler: "09:30".
func (t TimeOfDay) MarshalText() ([]byte, error) {
	return fmt.Appendf(nil, "%02d:%02d", t/60, t%60), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (t *TimeOfDay) UnmarshalText(text []byte) error {
	if string(text) == "24:00" {
		*t = 24 * 60
		return nil
	}
	at, err := time.Parse("15:04", string(text))
	*t = TimeOfDay(at.Hour()*60 + at.Minute())
	if err != nil || len(text) != len("15:04") {
		return fmt.Errorf("%w: %q is not a time of day", ErrInvalid, text)
	}
	return nil
}

// Weekday is a day of the week.
type Weekday time.Weekday

// MarshalText implements encoding.TextMarshaler: "monday".
func (d Weekday) MarshalText() ([]byte, error) {
	return []byte(strings.ToLower(time.Weekday(d).String())), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Weekday) UnmarshalText(text []byte) error {
	for w := time.Sunday; w <= time.Saturday; w++ {
		if strings.ToLower(w.String()) == string(text) {
			*d = Weekday(w)
			return nil
		}
	}
	return fmt.Errorf("%w: %q is not a day of the week", ErrInvalid, text)
}

// A margin is how much earlier and later than its window mail leaves that expires within Left.
type margin struct {
	Left, Widened time.Duration
}

// margins are the margins of a window that is not strict, from the first to the last.
var margins = [...]margin{{24 * time.Hour, time.Hour}, {6 * time.Hour, 3 * time.Hour}}

// anyTime is how long before its expiry mail leaves at any time, unless its window is strict.
const anyTime = time.Hour

// SendDefaults are what a batch of a user has if its request names nothing else.
type SendDefaults struct {
	Zone   string      `json:"time_zone,omitempty"`   // IANA name, of times without an offset; empty: none
	Window *SendWindow `json:"send_window,omitempty"` // nil: mail may leave at any time
}

// Schedule has the times of a batch.
type Schedule struct {
	DeliverAt time.Time   `json:"deliver_at,omitzero"` // zero: at once
	Window    *SendWindow `json:"send_window,omitempty"`
	ExpiresAt time.Time   `json:"expires_at"`
}

// Schedule returns the times of a batch.
func (b *Batch) Schedule() Schedule { return Schedule{b.DeliverAt, b.Window, b.ExpiresAt} }

// Rescheduled returns the batch with other times; nil: with its own. The times of recipients who have their own do not
// change.
func (b *Batch) Rescheduled(s *Schedule) *Batch {
	if s == nil || b.fixed {
		return b
	}
	return b.with(s)
}

func (b *Batch) with(s *Schedule) *Batch {
	out := *b
	out.DeliverAt, out.Window, out.ExpiresAt = s.DeliverAt, s.Window, s.ExpiresAt
	return &out
}

// OwnTimes are the times of recipients who have others than their batch. Their chunks have no other recipients.
type OwnTimes struct {
	Schedule
	From int `json:"from"` // number of the first chunk; the last one comes before those of the next OwnTimes
}

// OwnFrom returns the number of the first chunk whose recipients have times of their own. The recipients of all chunks
// before it have those of the batch.
func (b *Batch) OwnFrom() int {
	if len(b.Own) == 0 {
		return b.Chunks
	}
	return b.Own[0].From
}

// own returns the own times of the recipients of a chunk; nil: they have those of the batch.
func (b *Batch) own(chunk int) *Schedule {
	i, found := slices.BinarySearchFunc(b.Own, chunk, func(o OwnTimes, chunk int) int { return o.From - chunk })
	if !found {
		i--
	}
	if i < 0 {
		return nil
	}
	return &b.Own[i].Schedule
}

// OfChunk returns the batch as it is for the recipients of a chunk: with their times.
func (b *Batch) OfChunk(chunk int) *Batch {
	own := b.own(chunk)
	if own == nil {
		return b
	}
	out := b.with(own)
	out.fixed = true
	return out
}

// ScheduleOf returns the times of the recipients of a chunk.
func (b *Batch) ScheduleOf(chunk int) Schedule {
	if own := b.own(chunk); own != nil {
		return *own
	}
	return b.Schedule()
}

// Schedules returns the times of the recipients: those of the batch, unless all have their own, and the own ones.
func (b *Batch) Schedules() []Schedule {
	out := make([]Schedule, 0, len(b.Own)+1)
	if len(b.Own) == 0 || b.OwnFrom() > 0 {
		out = append(out, b.Schedule())
	}
	for i := range b.Own {
		out = append(out, b.Own[i].Schedule)
	}
	return out
}

// Begins returns the time before which no mail of the batch is handed over; zero: it may be handed over at once.
func (b *Batch) Begins() time.Time {
	if len(b.Own) == 0 {
		return b.DeliverAt
	}
	all := b.Schedules()
	first := all[0].DeliverAt
	for _, s := range all[1:] {
		first = EarlierOf(first, s.DeliverAt)
	}
	return first
}

// NextDue returns the first deliver_at of recipients that is after now; zero: there is none.
func (b *Batch) NextDue(now time.Time) (next time.Time) {
	for _, s := range b.Schedules() {
		if at := s.DeliverAt; at.After(now) && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next
}

// NextChange returns the earliest time after now at which a time of the batch matters: mail may leave, because its time
// has come or its window opens, or it expires. It is rounded up to a millisecond, as the agenda keeps it. Zero: there
// is none.
func (b *Batch) NextChange(now time.Time) (next time.Time) {
	for _, s := range b.Schedules() {
		for _, at := range [...]time.Time{s.MayLeave(now, false), s.ExpiresAt} {
			if at.After(now) && (next.IsZero() || at.Before(next)) {
				next = at
			}
		}
	}
	if whole := next.Truncate(time.Millisecond); whole.Before(next) {
		next = whole.Add(time.Millisecond)
	}
	return next
}

// A Due says that mail of a batch is due at a time, as far as is known: the batch may not exist, or its times may have
// been changed.
type Due struct {
	At    time.Time // a deliver_at, with millisecond precision
	Batch ID
	After time.Time // other mail of the batch is due then, which is earlier; zero: none is known
}

// Dues returns an entry for each deliver_at of recipients that is after now.
func (b *Batch) Dues(now time.Time) (out []Due) {
	var own []time.Time // they never change
	for i := range b.Own {
		own = append(own, b.Own[i].DeliverAt.UTC().Truncate(time.Millisecond))
	}
	slices.SortFunc(own, time.Time.Compare)
	times := map[time.Time]bool{}
	for _, s := range b.Schedules() {
		if at := s.DeliverAt.UTC().Truncate(time.Millisecond); at.After(now) && !times[at] {
			times[at] = true
			d := Due{At: at, Batch: b.ID}
			if n, _ := slices.BinarySearchFunc(own, at, time.Time.Compare); n > 0 && !own[n-1].IsZero() {
				d.After = own[n-1]
			}
			out = append(out, d)
		}
	}
	return out
}

// ID returns the ID of an entry. It carries At, so that entries are in the order of time, and names no mail. Its other
// bits distinguish batches: those of the batch that are random, and the last 20 of the millisecond of its acceptance.
func (d *Due) ID() ID {
	id := d.Batch.Chunk(int(d.Batch.Time().UnixMilli() & chunkMask))
	id.setTime(d.At)
	return id
}

// Ends returns when the last recipient expires.
func (b *Batch) Ends() (last time.Time) {
	for _, s := range b.Schedules() {
		last = LaterOf(last, s.ExpiresAt)
	}
	return last
}

// Leaves returns when the first and the last recipient may be handed over, now at the earliest.
func (b *Batch) Leaves(now time.Time) (first, last time.Time) {
	for i, s := range b.Schedules() {
		at := s.MayLeave(now, false)
		if i == 0 || at.Before(first) {
			first = at
		}
		last = LaterOf(last, at)
	}
	return first, last
}

// Equal reports whether two schedules are the same.
func (s Schedule) Equal(o Schedule) bool {
	return s.DeliverAt.Equal(o.DeliverAt) && s.ExpiresAt.Equal(o.ExpiresAt) && reflect.DeepEqual(s.Window, o.Window)
}

// MayLeave returns when the mail of a batch may be handed over: see Schedule.MayLeave.
func (b *Batch) MayLeave(now time.Time, released bool) time.Time {
	return b.Schedule().MayLeave(now, released)
}

// MayLeave returns when mail may be handed over, now at the earliest. It does not look at the expiry, which may be
// earlier. Mail that was released manually does not wait for a window.
func (s Schedule) MayLeave(now time.Time, released bool) time.Time {
	t := LaterOf(now, s.DeliverAt)
	w := s.Window
	if w == nil || released {
		return t
	}
	zone, err := time.LoadLocation(w.Zone)
	if err != nil {
		return t // the zone was known when the batch was accepted; better at another hour than never
	}
	if w.Strict || s.ExpiresAt.IsZero() {
		return w.next(t, zone, 0)
	}
	widened := time.Duration(0)
	for _, m := range margins {
		closer := s.ExpiresAt.Add(-m.Left)
		if at := w.next(t, zone, widened); at.Before(closer) {
			return at
		}
		t, widened = LaterOf(t, closer), m.Widened
	}
	return EarlierOf(w.next(t, zone, widened), LaterOf(t, s.ExpiresAt.Add(-anyTime)))
}

// next returns when the window, widened at both ends, is open for the first time from t on. Between
// changes of the clock the time on it passes as everywhere, so that next looks at one change
// after the other.
func (w *SendWindow) next(t time.Time, zone *time.Location, widened time.Duration) time.Time {
	for {
		local := t.In(zone)
		_, change := local.ZoneBounds()
		wait, ok := w.wait(local, widened)
		if at := t.Add(wait); ok && (change.IsZero() || at.Before(change)) {
			return at
		}
		if change.IsZero() { // a window is open once a week
			return t
		}
		t = change
	}
}

// wait returns how long it takes until the window is open if no clock is changed.
func (w *SendWindow) wait(local time.Time, widened time.Duration) (wait time.Duration, ok bool) {
	length := time.Duration(w.To-w.From) * time.Minute
	if length <= 0 {
		length += 24 * time.Hour
	}
	midnight := time.Duration(local.Hour())*time.Hour + time.Duration(local.Minute())*time.Minute +
		time.Duration(local.Second())*time.Second + time.Duration(local.Nanosecond())
	for day := -2; day <= 8; day++ { // a widened window may begin and end on other days
		if !w.on(Weekday((int(local.Weekday()) + day + 14) % 7)) {
			continue
		}
		begins := time.Duration(day)*24*time.Hour + time.Duration(w.From)*time.Minute - widened - midnight
		if begins+length+2*widened <= 0 {
			continue
		}
		if begins = max(begins, 0); !ok || begins < wait {
			wait, ok = begins, true
		}
	}
	return wait, ok
}

// on reports whether the window begins on a day of the week.
func (w *SendWindow) on(day Weekday) bool { return len(w.Days) == 0 || slices.Contains(w.Days, day) }

// String describes the window for people: "09:00 to 17:00 on Monday, Tuesday (Europe/Vienna)".
func (w *SendWindow) String() string {
	var on strings.Builder
	for i, d := range w.Days {
		on.WriteString([]string{" on ", ", "}[min(i, 1)] + time.Weekday(d).String())
	}
	from, _ := w.From.MarshalText() // never an error
	to, _ := w.To.MarshalText()
	return fmt.Sprintf("%s to %s%s (%s)", from, to, on.String(), w.Zone)
}
