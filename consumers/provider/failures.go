package provider

import (
	"cmp"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

const (
	// failuresKept is how many ended times of failing calls are kept: the longest.
	failuresKept = 50
	// failuresQuiet is how long after a line about failing calls the next one is not logged,
	// if they failed only for a moment.
	failuresQuiet = time.Minute
	// failuresAgain is how often failing calls are logged while they last.
	failuresAgain = 10 * time.Minute
)

// failures counts the calls that failed since a call succeeded.
type failures struct {
	telemetry.FailedCalls                         // no call has failed since then if Calls is 0
	why                   string                  // the answer to the newest of them
	past                  []telemetry.FailedCalls // that ended
	recovered             time.Time               // end of the last ones

	begun  time.Time // when a line was last logged that they begin
	logged time.Time // when the newest line about these calls was logged; zero: there is none
	source string    // the suspension that it reported; empty: none
}

// failed counts a call that began at a time and failed. A call that began before the call
// that succeeded says nothing about the time since.
func (f *failures) failed(began time.Time, why string, now time.Time) {
	if f.Calls == 0 && began.Before(f.recovered) {
		return
	}
	if f.Calls++; f.Calls == 1 {
		f.From, f.Known = began.UTC(), now.UTC()
	}
	f.From, f.Last, f.why = models.EarlierOf(f.From, began.UTC()), now.UTC(), why
}

// succeeded ends the failures, if a call began after the first of them was known and
// succeeded. A call that had begun before says nothing about the time since.
func (f *failures) succeeded(began, now time.Time) (ended telemetry.FailedCalls, logged bool) {
	if f.Calls == 0 || began.Before(f.Known) {
		return telemetry.FailedCalls{}, false
	}
	ended, logged = f.FailedCalls, !f.logged.IsZero()
	ended.To = now.UTC()
	f.past = append(f.past, ended)
	if len(f.past) > failuresKept {
		shortest := slices.MinFunc(f.past, func(a, b telemetry.FailedCalls) int {
			return cmp.Compare(a.To.Sub(a.From), b.To.Sub(b.From))
		})
		k := slices.Index(f.past, shortest)
		f.past = slices.Delete(f.past, k, k+1)
	}
	f.recovered = now
	f.FailedCalls, f.why, f.logged, f.source = telemetry.FailedCalls{}, "", time.Time{}, ""
	return ended, logged
}

// due reports whether to log a line about the failures: when they begin, when the provider is suspended for another
// reason, and now and then. source is the suspension, or empty.
func (f *failures) due(source string, now time.Time) bool {
	switch {
	case !f.logged.IsZero():
		if now.Sub(f.logged) < failuresAgain && (source == f.source || source != telemetry.Rejected) {
			return false
		}
	case source == "" && now.Sub(f.begun) < failuresQuiet:
		return false
	default:
		f.begun = now
	}
	f.logged, f.source = now, source
	return true
}

// count counts a call that began at a time. ended has the failures that it ended, if Calls is
// not 0; logged says whether there was a line about them.
func (f *failures) count(says callSays, began time.Time, why string, now time.Time) (
	ended telemetry.FailedCalls, logged bool,
) {
	switch says {
	case saysNothing:
	case answered:
		return f.succeeded(began, now)
	case failedWhole, failedUnknown, failedSuspended:
		f.failed(began, why, now)
	}
	return telemetry.FailedCalls{}, false
}

// list returns the failures that ended, and those that last.
func (f *failures) list() []telemetry.FailedCalls {
	out := slices.Clone(f.past)
	if f.Calls > 0 {
		out = append(out, f.FailedCalls)
	}
	return out
}

// FailedCalls returns when calls of this worker failed: the longest times that ended, and the
// one that lasts.
func (h *Health) FailedCalls() []telemetry.FailedCalls {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.machine.failures.list()
}

// countCall counts a call that began at a time, and logs when calls begin to fail, when they
// succeed again, and now and then in between. It reports whether calls succeed again.
func (h *Health) countCall(says callSays, began time.Time, why string) (recovered bool) {
	now := time.Now()
	h.mu.Lock()
	f := &h.machine.failures
	before := f.Calls
	ended, log := f.count(says, began, why, now)
	if says == answered {
		h.recoveries.answered(began, &ended, now)
	}
	since := f.FailedCalls
	h.mu.Unlock()
	if ended.Calls > 0 || before == 0 && since.Calls > 0 {
		h.onChange()
	}
	if log {
		h.cfg.Logger.Info("provider recovered: calls succeed again",
			"provider", h.name, "failed_calls", ended.Calls, "since", ended.From, "took", ended.To.Sub(ended.From))
	}
	return ended.Calls > 0
}

// logFailures logs that calls fail, if that is due.
func (h *Health) logFailures() {
	now := time.Now()
	h.mu.Lock()
	f, is := &h.machine.failures, h.machine.own(now)
	if is.State != telemetry.Suspended {
		is.Source = ""
	}
	first := f.logged.IsZero()
	due := f.Calls > 0 && f.due(is.Source, now)
	since, why := f.FailedCalls, f.why
	h.mu.Unlock()
	if !due {
		return
	}
	log, message := h.cfg.Logger.Warn, "provider is failing"
	switch {
	case is.Source == telemetry.Rejected:
		log, message = h.cfg.Logger.Error, "provider suspended: it rejects its credentials or quota"
	case !first:
		message = "provider is still failing"
	}
	fields := []any{"provider", h.name, "why", why, "failed_calls", since.Calls, "since", since.From}
	if is.State == telemetry.Suspended {
		fields = append(fields, "until", is.Until)
	}
	log(message, fields...)
}
