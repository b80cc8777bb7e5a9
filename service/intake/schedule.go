package intake

import (
	"cmp"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Limits of the times of a batch.
const (
	// maxAhead is how far ahead a batch may be scheduled.
	maxAhead = 365 * 24 * time.Hour
	// maxExpiry is how long after it may leave for the first time a batch may expire, unless the
	// default is longer.
	maxExpiry = 30 * 24 * time.Hour
	// maxLate is how long before a request the time that it names may be.
	maxLate = time.Hour
)

// Fields of a batch about times.
const (
	DeliverAt  = "deliver_at"
	ExpiresAt  = "expires_at"
	TimeZone   = "time_zone"
	SendWindow = "send_window"
)

// Window is the window of a request, as it was given.
type Window struct {
	From, To, Zone string
	Weekdays       []string
	Strict         bool
}

// WindowOf returns a window as a request names it.
func WindowOf(w *models.SendWindow) *Window {
	if w == nil {
		return nil
	}
	text := func(t models.TimeOfDay) string {
		raw, _ := t.MarshalText() // never an error
		return string(raw)
	}
	out := &Window{From: text(w.From), To: text(w.To), Zone: w.Zone, Strict: w.Strict}
	for _, d := range w.Days {
		raw, _ := d.MarshalText() // never an error
		out.Weekdays = append(out.Weekdays, string(raw))
	}
	return out
}

// SetWindow sets when the mail may leave; nil: at any time.
func (b *Builder) SetWindow(w *Window) {
	b.set[SendWindow] = true
	b.window = w
}

// Change returns the times of a batch after a request that names some of them. A batch whose time is moved, but not its
// expiry, expires as long after its time as before. now is that of the request.
func (b *Builder) Change(batch *models.Batch, now time.Time) (models.Schedule, error) {
	if b.Found() == 0 && !b.set[DeliverAt] && !b.set[ExpiresAt] && !b.set[SendWindow] {
		b.Wrong("", "required", "Name deliver_at, expires_at or send_window.")
	}
	if err := b.readDefaults(); err != nil {
		return models.Schedule{}, err
	}
	var named models.Batch
	b.setSchedule(&named)
	if err := b.errUnchanged(); err != nil {
		return models.Schedule{}, err
	}
	out := *batch
	if b.set[DeliverAt] {
		out.DeliverAt = named.DeliverAt
		from := models.LaterOf(batch.DeliverAt, batch.Created())
		out.ExpiresAt = models.LaterOf(out.DeliverAt, batch.Created()).Add(batch.ExpiresAt.Sub(from))
	}
	if b.set[ExpiresAt] {
		out.ExpiresAt = named.ExpiresAt
	}
	if b.set[SendWindow] {
		out.Window = named.Window
	}
	if out.Schedule().Equal(batch.Schedule()) { // a repeat, whatever the time is now
		return out.Schedule(), nil
	}
	b.checkTimes(&out, now, batch.Created())
	return out.Schedule(), b.errUnchanged()
}

// errUnchanged returns the error that lists the mistakes in a change of a batch.
func (b *Builder) errUnchanged() error {
	return b.In(problem.New(problem.Invalid, "invalid_request", "The batch was not changed: see errors."))
}

// readDefaults reads what a batch has if its request names nothing else.
func (b *Builder) readDefaults() (err error) {
	if b.cfg.Defaults != nil {
		b.defaults, err = b.cfg.Defaults()
	}
	return err
}

// SendDefaults returns the time zone and the window of the request as defaults for others, or the error that lists the
// mistakes in them.
func (b *Builder) SendDefaults() (models.SendDefaults, error) {
	out := models.SendDefaults{Zone: b.texts[TimeZone]}
	b.zone("/"+TimeZone, out.Zone)
	if b.window != nil {
		out.Window = b.sendWindow(b.window)
	}
	return out, b.In(problem.New(problem.Invalid, "invalid_request", "Nothing was changed: see errors."))
}

// timeZone returns the time zone that the request names, or the default.
func (b *Builder) timeZone() string { return cmp.Or(b.texts[TimeZone], b.defaults.Zone) }

// setSchedule sets the times of the batch that the request names, or the default window.
func (b *Builder) setSchedule(batch *models.Batch) {
	zone := b.zone("/"+TimeZone, b.timeZone())
	batch.DeliverAt = b.time(DeliverAt, zone)
	batch.ExpiresAt = b.time(ExpiresAt, zone)
	switch {
	case b.window != nil:
		batch.Window = b.sendWindow(b.window)
	case !b.set[SendWindow]:
		batch.Window = b.defaults.Window
	}
}

// sendWindow checks a window.
func (b *Builder) sendWindow(in *Window) *models.SendWindow {
	const at = "/" + SendWindow
	w := models.SendWindow{Zone: cmp.Or(in.Zone, b.timeZone()), Strict: in.Strict}
	valid := true
	for _, f := range []struct {
		name, text string
		value      *models.TimeOfDay
	}{{"from", in.From, &w.From}, {"to", in.To, &w.To}} {
		if f.value.UnmarshalText([]byte(f.text)) != nil {
			b.Wrong(at+"/"+f.name, "invalid_value", "%s must be a time of day, from 00:00 to 24:00.", f.name)
			valid = false
		}
	}
	if valid && (w.From == w.To || w.From == 24*60) {
		b.Wrong(at+"/to", "invalid_value", "The window is empty. Every time of the day is 00:00 to 24:00.")
	}
	for _, name := range in.Weekdays {
		var d models.Weekday
		if d.UnmarshalText([]byte(name)) != nil || len(w.Days) == 7 {
			b.Wrong(at+"/weekdays", "invalid_value", "weekdays has names of days, each once: monday to sunday.")
			break
		}
		w.Days = append(w.Days, d)
	}
	if w.Zone == "" {
		b.Wrong(at+"/time_zone", "required", "Add the time zone of the window, like Europe/Vienna.")
	} else if in.Zone != "" {
		b.zone(at+"/time_zone", in.Zone)
	}
	return &w
}

// zone returns a time zone of a request; nil if it names none.
func (b *Builder) zone(at, name string) *time.Location {
	if name == "" {
		return nil
	}
	zone, err := time.LoadLocation(name)
	if err != nil || name == "Local" {
		b.Wrong(at, "invalid_value", "There is no such time zone. Name one of the IANA database, like Europe/Vienna.")
		return time.UTC
	}
	return zone
}

// time returns the time in a field, or the zero time if the request has none. A time without
// an offset is one of the time zone.
func (b *Builder) time(field string, zone *time.Location) time.Time {
	text := b.texts[field]
	if !b.set[field] {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339, text)
	if err == nil {
		return at.UTC().Truncate(time.Millisecond)
	}
	for _, layout := range []string{"2006-01-02T15:04:05", "2006-01-02T15:04"} {
		local, err := time.Parse(layout, strings.Replace(text, " ", "T", 1))
		switch {
		case err != nil:
		case zone == nil:
			b.Wrong("/"+field, "invalid_value",
				"%s has no offset. Add one, like 2026-01-31T12:00:00Z, or add time_zone.", field)
			return time.Time{}
		default:
			return onClock(local, zone)
		}
	}
	b.Wrong("/"+field, "invalid_value",
		"%s must be an RFC 3339 time, like 2026-01-31T12:00:00Z or 2026-01-31T12:00:00 with a time_zone.", field)
	return time.Time{}
}

// onClock returns when a clock in a zone shows a date and a time, which are given as UTC. If it
// shows them twice, onClock returns the first time; if it jumps over them, the time of the jump.
func onClock(local time.Time, zone *time.Location) time.Time {
	before := local.Add(-24 * time.Hour).In(zone)
	after := local.Add(24 * time.Hour).In(zone)
	for _, near := range []time.Time{before, after} {
		_, offset := near.Zone()
		at := local.Add(-time.Duration(offset) * time.Second)
		if _, there := at.In(zone).Zone(); there == offset {
			return at
		}
	}
	_, jump := before.ZoneBounds()
	return jump.UTC()
}

// SetTimes checks the times of a batch that was first requested at a time, and sets the expiry if the request has none,
// and the times of recipients who have their own. All retries of a request get the same times.
func (b *Builder) SetTimes(batch *models.Batch, requested time.Time) error {
	if !b.set[ExpiresAt] {
		first := models.LaterOf(requested, batch.DeliverAt)
		batch.ExpiresAt = first.Add(b.cfg.ExpireAfter).UTC().Truncate(time.Millisecond)
	}
	b.checkTimes(batch, requested, requested)
	if err := b.setOwnTimes(batch, requested); err != nil {
		return err
	}
	return b.Err()
}

// checkTimes checks the times of a batch that was accepted at a time, as a request at a time names them.
func (b *Builder) checkTimes(batch *models.Batch, requested, accepted time.Time) {
	if at := batch.DeliverAt; b.set[DeliverAt] && (at.Before(requested.Add(-maxLate)) || at.Sub(requested) > maxAhead) {
		b.Wrong("/"+DeliverAt, "invalid_value", "deliver_at must be in the future, at most %d days from now.",
			maxAhead/(24*time.Hour))
		return
	}
	first := models.LaterOf(requested, batch.DeliverAt)
	most := max(maxExpiry, b.cfg.ExpireAfter)
	if !batch.ExpiresAt.After(first) || batch.ExpiresAt.Sub(first) > most {
		b.Wrong("/"+ExpiresAt, "invalid_value",
			"expires_at must be in the future and after deliver_at, at most %d days later.", int(most/(24*time.Hour)))
	}
	if k := b.cfg.Kept; !batch.DeliverAt.IsZero() && k > 0 && batch.ExpiresAt.Sub(accepted) > k {
		b.Wrong("/"+DeliverAt, "invalid_value",
			"The batch must expire within %d days from its acceptance: batches are not kept longer.", int(k/(24*time.Hour)))
	}
	if batch.Window != nil && !batch.MayLeave(first, false).Before(batch.ExpiresAt) {
		b.Wrong("/"+SendWindow, "invalid_value", "The mail expires before the window opens.")
	}
}
