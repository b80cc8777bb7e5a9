package intake

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Limits of the times of recipients.
const (
	maxOwnTimes = 1000 // different ones in a request
	maxOwnText  = 1000 // bytes of those of a recipient, as JSON
)

// ownTimes are the different times of the recipients of a request, in the order in which they appear. Their numbers
// count from 1: 0 are those of the batch.
type ownTimes struct {
	numbers map[string]int // by Times as JSON
	list    []ownTime
}

type ownTime struct {
	Times
	first    int // index of the first recipient that has them
	schedule models.Schedule
	wrong    []problem.FieldError // with pointers relative to the recipient
}

// report reports the mistakes for the recipient with an index.
func (o *ownTime) report(index int, m reporter) {
	for _, f := range o.wrong {
		m.Wrong(pointerTo(index)+f.Pointer, f.Code, "%s", f.Detail)
	}
}

// HasOwnTimes reports whether any recipient has times of its own.
func (in *Intake) HasOwnTimes() bool { return len(in.own.list) > 0 }

// add returns the number of the times of a recipient. It reports mistakes.
func (o *ownTimes) add(m *Mistakes, index int, t *Times) int {
	names := t.names()
	if len(names) == 0 {
		return 0
	}
	raw, err := json.Marshal(t)
	if n := o.numbers[string(raw)]; n > 0 {
		return n
	}
	at := pointerTo(index) + "/" + names[0]
	switch {
	case err != nil || len(raw) > maxOwnText:
		m.Wrong(at, "too_long", "The times of the recipient have more than %d bytes.", maxOwnText)
		return 0
	case len(o.list) == maxOwnTimes:
		m.Wrong(at, "too_many", "The recipients of a batch may have at most %d different times.", maxOwnTimes)
		return 0
	}
	if o.numbers == nil {
		o.numbers = map[string]int{}
	}
	o.list = append(o.list, ownTime{Times: *t, first: index})
	o.numbers[string(raw)] = len(o.list)
	return len(o.list)
}

// report reports all mistakes, each where it appears first.
func (o *ownTimes) report(m *Mistakes) {
	for i := range o.list {
		o.list[i].report(o.list[i].first, &m.Mistakes)
	}
}

// ScheduleOf returns the times of a recipient with times of its own in the batch, and the mistakes in them.
func (in *Intake) ScheduleOf(own *Times, requested time.Time) (models.Schedule, []problem.FieldError, error) {
	defaults, err := in.cfg.sendDefaults()
	if err != nil {
		return models.Schedule{}, nil, err
	}
	s, wrong := in.cfg.scheduleOf(&in.Batch.Times, own, &defaults, requested)
	return s, wrong, nil
}

// scheduleOf returns the times of a recipient: those of a batch that names own in place of what the request names for
// the batch. It returns the mistakes in them.
func (c *Config) scheduleOf(
	batch, own *Times, defaults *models.SendDefaults, requested time.Time,
) (models.Schedule, []problem.FieldError) {
	all := Times{
		DeliverAt: cmp.Or(own.DeliverAt, batch.DeliverAt),
		ExpiresAt: cmp.Or(own.ExpiresAt, batch.ExpiresAt),
		TimeZone:  cmp.Or(own.TimeZone, batch.TimeZone),
		Window:    cmp.Or(own.Window, batch.Window),
	}
	var m problem.Mistakes
	s := c.schedule(&all, defaults, &m)
	if m.Found() == 0 {
		c.setTimes(&all, &s, requested, &m)
	}
	var e problem.Error
	_ = m.In(&e) // it lists the mistakes
	names := own.names()
	for i := range e.Fields {
		f := &e.Fields[i]
		if field, _, _ := strings.Cut(f.Pointer[1:], "/"); !slices.Contains(names, field) {
			f.Pointer = "/" + names[0] // it does not fit the others
		}
	}
	return s, e.Fields
}

// resolveTimes finds out what the times of the recipients are, and reports whether there are mistakes.
func (in *Intake) resolveTimes(requested time.Time) (wrong bool) {
	for i := range in.own.list {
		o := &in.own.list[i]
		o.schedule, o.wrong = in.cfg.scheduleOf(&in.Batch.Times, &o.Times, &in.defaults, requested)
		wrong = wrong || len(o.wrong) > 0
	}
	return wrong
}

// setOwnTimes sets the times of the recipients who have their own. A permissive request leaves out those with mistakes.
func (in *Intake) setOwnTimes(batch *models.Batch, requested time.Time) error {
	batch.Own = nil
	if !in.HasOwnTimes() || in.Mistakes.Mistakes.Found() > 0 {
		return nil
	}
	switch wrong := in.resolveTimes(requested); {
	case wrong && !in.Permissive():
		in.own.report(&in.Mistakes)
		return nil
	case wrong:
		err := in.leaveOut(func(at place, _ *models.Recipient) {
			if at.times > 0 {
				in.own.list[at.times-1].report(at.index, &in.Mistakes)
			}
		})
		if err := cmp.Or(err, in.countKept(batch)); err != nil {
			return err
		}
	}
	from := 0
	for n, r := range in.spool.cut().runs {
		if n > 0 && len(r.sizes) > 0 {
			batch.Own = append(batch.Own, models.OwnTimes{Schedule: in.own.list[n-1].schedule, From: from})
		}
		from += len(r.sizes)
	}
	return nil
}
