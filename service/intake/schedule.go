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
	// maxExpiry is how long after it may leave for the first time a batch may expire, unless the default is longer.
	maxExpiry = 30 * 24 * time.Hour
	// maxLate is how long before a request the time that it names may be.
	maxLate = time.Hour
)

// reporter takes mistakes in a request.
type reporter interface {
	Wrong(pointer, code, detail string, args ...any)
}

// errUnchanged returns the error that lists the mistakes in a change.
func errUnchanged(m *problem.Mistakes) error {
	return m.In(problem.New(problem.Invalid, "invalid_request", "Nothing was changed: see errors."))
}

// Change returns the times of a batch after a request at a time that names some of them. A batch whose time is moved,
// but not its expiry, expires as long after its time as before.
func (c *Config) Change(t *Times, batch *models.Batch, now time.Time) (models.Schedule, error) {
	var m problem.Mistakes
	if t.DeliverAt == "" && t.ExpiresAt == "" && t.Window == nil {
		m.Wrong("", "required", "Name deliver_at, expires_at or send_window.")
	}
	defaults, err := c.sendDefaults()
	if err != nil {
		return models.Schedule{}, err
	}
	named := c.schedule(t, &defaults, &m)
	if err := errUnchanged(&m); err != nil {
		return models.Schedule{}, err
	}
	was, out := batch.Schedule(), batch.Schedule()
	if t.DeliverAt != "" {
		out.DeliverAt = named.DeliverAt
		from := models.LaterOf(was.DeliverAt, batch.Created())
		out.ExpiresAt = models.LaterOf(out.DeliverAt, batch.Created()).Add(was.ExpiresAt.Sub(from))
	}
	if t.ExpiresAt != "" {
		out.ExpiresAt = named.ExpiresAt
	}
	if t.Window != nil {
		out.Window = named.Window
	}
	if out.Equal(was) { // a repeat, also after the time has passed
		return out, nil
	}
	c.checkTimes(t, &out, now, batch.Created(), &m)
	return out, errUnchanged(&m)
}

// SendDefaults returns a time zone and a window as defaults for batches, or the error that lists the mistakes in them.
func (t *Times) SendDefaults() (models.SendDefaults, error) {
	var m problem.Mistakes
	zoneOf("/"+TimeZone, t.TimeZone, &m)
	out := models.SendDefaults{Zone: t.TimeZone}
	if t.Window != nil && !t.Window.None {
		out.Window = t.Window.check(t.TimeZone, &m)
	}
	return out, errUnchanged(&m)
}

// schedule returns the times that a request names, or the default window. It reports mistakes.
func (c *Config) schedule(t *Times, defaults *models.SendDefaults, m reporter) (s models.Schedule) {
	name := cmp.Or(t.TimeZone, defaults.Zone)
	zone := zoneOf("/"+TimeZone, name, m)
	s.DeliverAt = timeIn(DeliverAt, t.DeliverAt, zone, m)
	s.ExpiresAt = timeIn(ExpiresAt, t.ExpiresAt, zone, m)
	switch w := t.Window; {
	case w == nil:
		s.Window = defaults.Window
	case !w.None:
		s.Window = w.check(name, m)
	}
	return s
}

// check returns the window of a request whose times are in a zone. It reports mistakes.
func (in *Window) check(zone string, m reporter) *models.SendWindow {
	const at = "/" + SendWindow
	w := models.SendWindow{Zone: cmp.Or(in.Zone, zone), Strict: in.Strict}
	valid := true
	for _, f := range []struct {
		name, text string
		value      *models.TimeOfDay
	}{{"from", in.From, &w.From}, {"to", in.To, &w.To}} {
		if f.value.UnmarshalText([]byte(f.text)) != nil {
			m.Wrong(at+"/"+f.name, "invalid_value", "%s must be a time of day, from 00:00 to 24:00.", f.name)
			valid = false
		}
	}
	if valid && (w.From == w.To || w.From == 24*60) {
		m.Wrong(at+"/to", "invalid_value", "The window is empty. Every time of the day is 00:00 to 24:00.")
	}
	for _, name := range in.Weekdays {
		var d models.Weekday
		if d.UnmarshalText([]byte(name)) != nil || len(w.Days) == 7 {
			m.Wrong(at+"/weekdays", "invalid_value", "weekdays has names of days, each once: monday to sunday.")
			break
		}
		w.Days = append(w.Days, d)
	}
	if w.Zone == "" {
		m.Wrong(at+"/time_zone", "required", "Add the time zone of the window, like Europe/Vienna.")
	} else if in.Zone != "" {
		zoneOf(at+"/time_zone", in.Zone, m)
	}
	return &w
}

// zoneOf returns a time zone of a request; nil if it names none.
func zoneOf(at, name string, m reporter) *time.Location {
	if name == "" {
		return nil
	}
	zone, err := time.LoadLocation(name)
	if err != nil || name == "Local" {
		m.Wrong(at, "invalid_value", "There is no such time zone. Name one of the IANA database, like Europe/Vienna.")
		return time.UTC
	}
	return zone
}

// timeIn returns the time in a field, or the zero time if it is empty. A time without an offset is one of the time
// zone.
func timeIn(field, text string, zone *time.Location, m reporter) time.Time {
	if text == "" {
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
			m.Wrong("/"+field, "invalid_value",
				"%s has no offset. Add one, like 2026-01-31T12:00:00Z, or add time_zone.", field)
			return time.Time{}
		default:
			return onClock(local, zone)
		}
	}
	m.Wrong("/"+field, "invalid_value",
		"%s must be an RFC 3339 time, like 2026-01-31T12:00:00Z or 2026-01-31T12:00:00 with a time_zone.", field)
	return time.Time{}
}

// onClock returns when a clock in a zone shows a date and a time, which are given as UTC. If it shows them twice,
// onClock returns the first time; if it jumps over them, the time of the jump.
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

// SetTimes checks the times of a batch that was first requested at a time. It sets the expiry if the request has none,
// and the times of recipients who have their own. All retries of a request get the same times.
func (in *Intake) SetTimes(batch *models.Batch, requested time.Time) error {
	s := batch.Schedule()
	in.cfg.setTimes(&in.Batch.Times, &s, requested, &in.Mistakes)
	batch.ExpiresAt = s.ExpiresAt
	if err := in.setOwnTimes(batch, requested); err != nil {
		return err
	}
	return in.Err()
}

// setTimes sets the expiry if a request at a time names none, and checks the times.
func (c *Config) setTimes(t *Times, s *models.Schedule, requested time.Time, m reporter) {
	if t.ExpiresAt == "" {
		s.ExpiresAt = models.LaterOf(requested, s.DeliverAt).Add(c.ExpireAfter).UTC().Truncate(time.Millisecond)
	}
	c.checkTimes(t, s, requested, requested, m)
}

// checkTimes checks the times of a batch that was accepted at a time, as a request at a time names them.
func (c *Config) checkTimes(t *Times, s *models.Schedule, requested, accepted time.Time, m reporter) {
	if at := s.DeliverAt; t.DeliverAt != "" && (at.Before(requested.Add(-maxLate)) || at.Sub(requested) > maxAhead) {
		m.Wrong("/"+DeliverAt, "invalid_value", "deliver_at must be in the future, at most %d days from now.",
			maxAhead/(24*time.Hour))
		return
	}
	first := models.LaterOf(requested, s.DeliverAt)
	most := max(maxExpiry, c.ExpireAfter)
	if !s.ExpiresAt.After(first) || s.ExpiresAt.Sub(first) > most {
		m.Wrong("/"+ExpiresAt, "invalid_value",
			"expires_at must be in the future and after deliver_at, at most %d days later.", int(most/(24*time.Hour)))
	}
	if !s.DeliverAt.IsZero() && c.Kept > 0 && s.ExpiresAt.Sub(accepted) > c.Kept {
		m.Wrong("/"+DeliverAt, "invalid_value",
			"The batch must expire within %d days from its acceptance: batches are not kept longer.", int(c.Kept/(24*time.Hour)))
	}
	if s.Window != nil && !s.MayLeave(first, false).Before(s.ExpiresAt) {
		m.Wrong("/"+SendWindow, "invalid_value", "The mail expires before the window opens.")
	}
}
