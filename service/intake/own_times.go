package intake

import (
	"encoding/json"
	"errors"
	"slices"
	"strconv"
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

// Times are times of a recipient in place of those of the batch, as a request names them.
type Times struct {
	Texts   map[string]string // deliver_at, expires_at and time_zone
	Window  *Window
	AnyTime bool // the recipient has no window, whatever the batch has
}

// IsTimeText reports whether a recipient has a time with this name that is one string.
func IsTimeText(name string) bool { return name == DeliverAt || name == ExpiresAt || name == TimeZone }

// SetText sets a time that is one string.
func (t *Times) SetText(name, value string) {
	if t.Texts == nil {
		t.Texts = map[string]string{}
	}
	t.Texts[name] = value
}

// names returns the fields that are set.
func (t *Times) names() (out []string) {
	for _, name := range []string{DeliverAt, ExpiresAt, TimeZone} {
		if _, ok := t.Texts[name]; ok {
			out = append(out, name)
		}
	}
	if t.Window != nil || t.AnyTime {
		out = append(out, SendWindow)
	}
	return out
}

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

// HasOwnTimes reports whether any recipient has times of its own.
func (b *Builder) HasOwnTimes() bool { return len(b.own.list) > 0 }

// addTimes returns the number of the times of a recipient. It reports mistakes.
func (b *Builder) addTimes(here string, t *Times) int {
	names := t.names()
	if len(names) == 0 {
		return 0
	}
	raw, err := json.Marshal(t)
	if n := b.own.numbers[string(raw)]; n > 0 {
		return n
	}
	switch {
	case err != nil || len(raw) > maxOwnText:
		b.Wrong(here+"/"+names[0], "too_long", "The times of the recipient have more than %d bytes.", maxOwnText)
		return 0
	case len(b.own.list) == maxOwnTimes:
		b.Wrong(here+"/"+names[0], "too_many",
			"The recipients of a batch may have at most %d different times.", maxOwnTimes)
		return 0
	}
	if b.own.numbers == nil {
		b.own.numbers = map[string]int{}
	}
	b.own.list = append(b.own.list, ownTime{Times: *t, first: b.index - 1})
	b.own.numbers[string(raw)] = len(b.own.list)
	return len(b.own.list)
}

// ScheduleOf returns the times of a recipient with times of its own in the batch, and the mistakes in them.
func (b *Builder) ScheduleOf(t *Times, requested time.Time) (models.Schedule, []problem.FieldError, error) {
	if err := b.readDefaults(); err != nil {
		return models.Schedule{}, nil, err
	}
	s, wrong := b.scheduleOf(t, requested)
	return s, wrong, nil
}

// scheduleOf returns the times of a recipient: those of a batch that names t in place of what the request names for the
// batch. It returns the mistakes in them.
func (b *Builder) scheduleOf(t *Times, requested time.Time) (models.Schedule, []problem.FieldError) {
	one := Builder{
		cfg:      b.cfg,
		defaults: b.defaults,
		texts:    map[string]string{},
		set:      map[string]bool{SendWindow: b.set[SendWindow]},
		window:   b.window,
	}
	for _, name := range []string{DeliverAt, ExpiresAt, TimeZone} {
		text, ok := t.Texts[name]
		if !ok {
			text, ok = b.texts[name], b.set[name]
		}
		one.texts[name], one.set[name] = text, ok
	}
	if t.Window != nil || t.AnyTime {
		one.SetWindow(t.Window)
	}
	var batch models.Batch
	one.setSchedule(&batch)
	err := one.Err()
	if err == nil {
		err = one.SetTimes(&batch, requested)
	}
	var e *problem.Error
	if !errors.As(err, &e) {
		return batch.Schedule(), nil
	}
	own := t.names()
	for i := range e.Fields {
		f := &e.Fields[i]
		if field, _, _ := strings.Cut(f.Pointer[1:], "/"); !slices.Contains(own, field) {
			f.Pointer = "/" + own[0] // it does not fit the others
		}
	}
	return batch.Schedule(), e.Fields
}

// resolveTimes finds out what the times of the recipients are, and reports whether there are mistakes.
func (b *Builder) resolveTimes(requested time.Time) (wrong bool) {
	for i := range b.own.list {
		o := &b.own.list[i]
		o.schedule, o.wrong = b.scheduleOf(&o.Times, requested)
		wrong = wrong || len(o.wrong) > 0
	}
	return wrong
}

// reportTimes reports the mistakes in the times of recipients, each where it appears first.
func (b *Builder) reportTimes() {
	for i := range b.own.list {
		o := &b.own.list[i]
		for _, f := range o.wrong {
			b.Mistakes.Wrong("/to/"+strconv.Itoa(o.first)+f.Pointer, f.Code, "%s", f.Detail)
		}
	}
}

// setOwnTimes sets the times of the recipients who have their own. A permissive request leaves out those with mistakes.
func (b *Builder) setOwnTimes(batch *models.Batch, requested time.Time) error {
	batch.Own = nil
	if !b.HasOwnTimes() || b.Mistakes.Found() > 0 {
		return nil
	}
	switch wrong := b.resolveTimes(requested); {
	case wrong && !b.Permissive():
		b.reportTimes()
		return nil
	case wrong:
		if err := b.leaveOut(b.checkTimesOf); err != nil {
			return err
		}
		b.count(batch)
		if err := b.noneLeft(); err != nil {
			return err
		}
	}
	from := 0
	for n, r := range b.spool.cut().runs {
		if n > 0 && len(r.sizes) > 0 {
			batch.Own = append(batch.Own, models.OwnTimes{Schedule: b.own.list[n-1].schedule, From: from})
		}
		from += len(r.sizes)
	}
	return nil
}

// checkTimesOf reports the mistakes in the times of a recipient.
func (b *Builder) checkTimesOf(at place, _ *models.Recipient) {
	if at.times == 0 {
		return
	}
	for _, f := range b.own.list[at.times-1].wrong {
		b.Wrong("/to/"+strconv.Itoa(at.index)+f.Pointer, f.Code, "%s", f.Detail)
	}
}
