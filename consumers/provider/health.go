package provider

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// Health decides from the results of calls, the reports of peers and the commands of
// operators whether a provider may take mail.
type Health struct {
	name     string
	cfg      *Config
	onChange func()                   // called when this worker's view changes
	isSlow   func(time.Duration) bool // whether a call of this length is slow compared to other providers

	mu                   sync.Mutex
	machine              machine
	recoveries           recoveries
	senders, peerSenders refusedSenders // domains it refuses, as this worker found out, and as peers report
	size, peerSize       callLimit      // of the recipients of a call, as found out here, and as peers report
}

// newHealth returns the health of a provider whose calls take at most timeout. Calls are
// counted over a period longer than the longest call.
func newHealth(name string, timeout time.Duration, cfg *Config) *Health {
	return &Health{
		name:     name,
		cfg:      cfg,
		onChange: func() {},
		isSlow:   func(time.Duration) bool { return false },
		machine:  newMachine(cfg.BreakerOpen, max(20*time.Second, 3*timeout), time.Now()),
	}
}

// Usable reports whether mail from a sender's domain may go to the provider now, and if
// not, when to try again. If sole, no other provider takes the mail, and probes are more
// frequent.
func (h *Health) Usable(domain string, now time.Time, sole bool) (bool, time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	ok, until := h.machine.usable(now, sole)
	if t := h.refusedUntil(domain, now); !t.IsZero() {
		return false, models.LaterOf(t, until)
	}
	return ok, until
}

// usable is Usable for mail from a domain that the provider does not refuse, and that other
// providers take, too.
func (h *Health) usable(now time.Time) (bool, time.Time) { return h.Usable("", now, false) }

// refusedUntil returns until when the provider refuses mail from a sender's domain; zero:
// it does not.
func (h *Health) refusedUntil(domain string, now time.Time) time.Time {
	return models.LaterOf(h.senders.refused(domain, now), h.peerSenders.refused(domain, now))
}

// SilentUntil returns the end of the newest suspension for silence, by any worker; zero:
// there was none.
func (h *Health) SilentUntil() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.machine.silentUntil
}

// callSize returns how many recipients, up to most, the next call may have: one until a
// probe was answered, then gradually more.
func (h *Health) callSize(most int, now time.Time) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.machine.callSize(h.peerSize.of(h.size.of(most, now), now), 2*h.cfg.BreakerOpen, now)
}

// Report returns the present health, as this worker, its peers and operators find it.
func (h *Health) Report(now time.Time, operator control.ProviderMode) telemetry.Health {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := h.machine.health(now).Commanded(operator.Mode, operator.Since, operator.Why)
	domains := h.senders.left(now)
	if more := h.peerSenders.left(now); domains == nil {
		domains = more
	} else {
		maps.Copy(domains, more)
	}
	out.Senders = slices.Sorted(maps.Keys(domains))
	return out
}

// Finding returns what peers should know, or nil while the provider is usable as far as
// this worker found out itself.
func (h *Health) Finding() *Finding {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	own := h.machine.own(now)
	out := &Finding{State: telemetry.Healthy, Senders: h.senders.left(now), Probe: h.machine.command}
	out.Most, out.MostLeft = h.size.left(now)
	if own.State == telemetry.Suspended || own.State == telemetry.Probing {
		out.State, out.Source, out.Why, out.Left = own.State, own.Source, own.Why, max(0, own.Until.Sub(now))
	} else if len(out.Senders) == 0 && out.Most == 0 {
		return nil
	}
	return out
}

// Begin asks for permission to make one call with n recipients for a sender's domain. If
// ok, done must be called with the parts of the answer and the call's duration, or without
// parts if no call was made. Later calls of done do nothing.
func (h *Health) Begin(domain string, n int) (done func(parts []models.Part, took time.Duration), ok bool) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.refusedUntil(domain, now).IsZero() {
		return nil, false
	}
	round, ok := h.machine.begin(n, h.cfg.Silence, now)
	if !ok {
		return nil, false // that changed since the call was planned
	}
	ended := false
	return func(parts []models.Part, took time.Duration) {
		if ended {
			return
		}
		ended = true
		says, why := h.judge(parts, domain)
		recovered := h.countCall(says, now, why) // now: when the call began
		slow := says == answered && h.isSlow(took)
		if slow {
			says, why = failedWhole, "answers take "+took.Round(100*time.Millisecond).String()
		}
		h.end(round, says, why, slow, recovered)
		h.logFailures()
	}, true
}

// end passes the result of a call to the machine. Failures and their end are logged
// elsewhere.
func (h *Health) end(round int, says callSays, why string, slow, recovered bool) {
	now := time.Now()
	h.mu.Lock()
	changed := h.machine.end(round, says, why, now)
	is := h.machine.own(now)
	h.mu.Unlock()
	switch {
	case !changed:
		return
	case is.State == telemetry.Suspended && slow:
		h.cfg.Logger.Warn("provider suspended: calls are slow", "provider", h.name, "why", is.Why, "until", is.Until)
	case is.State == telemetry.Suspended, recovered:
	default:
		h.cfg.Logger.Info("provider recovered: a probe was answered", "provider", h.name)
	}
	h.onChange()
}

// Pauses are bounded: after that, the provider is asked again.
const (
	mostThrottled = 24 * time.Hour // if the provider says that it is asked too often
	mostDown      = time.Hour      // if the provider says that it is down
)

// judge returns what an answer says about the provider. Only answers that any mail would
// have got count against it.
func (h *Health) judge(parts []models.Part, domain string) (says callSays, why string) {
	if len(parts) == 0 {
		return saysNothing, ""
	}
	now := time.Now()
	for i := range parts {
		p := &parts[i]
		why = p.Words()
		switch p.Class {
		case models.AccountClass:
			if p.Reason == models.SenderNotVerified {
				h.refuse(domain, now.Add(h.cfg.Hold), why)
				return answered, ""
			}
			if p.RetryAt.After(now) { // it said until when, which holds for every worker
				h.wait(models.EarlierOf(p.RetryAt, now.Add(mostThrottled)), why)
			} else {
				h.suspend(telemetry.Rejected, now.Add(h.cfg.Hold), why)
			}
			return failedSuspended, why
		case models.Throttled:
			until := p.RetryAt
			if until.IsZero() || until.Before(now) {
				until = now.Add(h.cfg.FirstDelay)
			}
			h.wait(models.EarlierOf(until, now.Add(mostThrottled)), why)
			return failedSuspended, why
		case models.Unavailable, models.Unknown:
			if p.Reason.Uncalled() {
				return saysNothing, "" // this worker was late
			}
			if p.RetryAt.After(now) { // maybe the answer of a proxy before the provider
				h.wait(models.EarlierOf(p.RetryAt, now.Add(mostDown)), why)
			}
			if p.Class == models.Unknown {
				return failedUnknown, why
			}
			return failedWhole, why
		case models.RejectedHereClass:
			h.limitCalls(p)
		case models.Accepted, models.RejectedRecipient, models.RejectedRequest, models.Split:
		}
	}
	return answered, ""
}

// suspend suspends the provider until a time: it rejects its key or quota, or accepts mail
// and reports nothing about it.
func (h *Health) suspend(source string, until time.Time, why string) {
	now := time.Now()
	h.mu.Lock()
	h.machine.suspend(suspension{source: source, why: why, until: until}, now)
	h.mu.Unlock()
	h.onChange()
	if source == telemetry.Silence {
		h.cfg.Logger.Error("provider suspended: it accepts mail and reports nothing about it",
			"provider", h.name, "why", why, "until", until.UTC())
	}
}

// wait suspends the provider until the time it asked for.
func (h *Health) wait(until time.Time, why string) {
	now := time.Now()
	h.mu.Lock()
	until = models.LaterOf(until, h.machine.suspensions[telemetry.RetryAfter].until)
	h.machine.suspend(suspension{source: telemetry.RetryAfter, why: why, until: until}, now)
	h.mu.Unlock()
	h.onChange()
}

// refuse suspends the mail of one sender's domain.
func (h *Health) refuse(domain string, until time.Time, why string) {
	h.mu.Lock()
	changed := h.senders.refuse(domain, time.Now(), until)
	h.mu.Unlock()
	if !changed {
		return
	}
	h.onChange()
	h.cfg.Logger.Error(
		"sender suspended: the provider refuses its domain",
		"provider", h.name, "domain", domain, "why", why, "until", until.UTC(),
	)
}

// EndProbation ends the probation, because the provider reports again.
func (h *Health) EndProbation() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.machine.report(time.Now())
}

// Probe carries out the probe command of a number, once. It ends every suspension, so
// that the next mail probes the provider. Reports of peers from before they carried out
// the command are ignored from then on.
func (h *Health) Probe(command int) {
	h.mu.Lock()
	if command <= h.machine.command {
		h.mu.Unlock()
		return
	}
	h.senders.forget()
	h.peerSenders.forget()
	h.recoveries.noticed = time.Now() // mail that waits for it is handed over, and probes it
	h.size, h.peerSize = callLimit{}, callLimit{}
	changed := h.machine.probeNow(command, time.Now())
	h.mu.Unlock()
	h.onChange()
	if changed {
		h.cfg.Logger.Info("provider will be probed, as commanded", "provider", h.name, "command", command)
	}
}

// Merge takes in a peer's finding about the provider; nil: the provider is healthy.
func (h *Health) Merge(peer string, f *Finding) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if f != nil && f.Probe < h.machine.command {
		f = nil // the finding is older than the probe command
	}
	if f != nil {
		for domain, left := range f.Senders {
			h.peerSenders.refuse(domain, now, now.Add(left))
		}
		h.peerSize.learn(f.Most, now, now.Add(f.MostLeft))
	}
	if f == nil || f.State == telemetry.Healthy {
		h.machine.retract(peer, now)
		return
	}
	h.machine.merge(peer, f, f.trustFor(h.cfg), now)
}

// Restore merges the finding of a worker that may have left.
func (h *Health) Restore(peer string, f *Finding) {
	h.Merge(peer, f)
	h.mu.Lock()
	defer h.mu.Unlock()
	if r := h.machine.peers[peer]; r != nil {
		r.gone = true
	}
}

// Forget drops the report of a peer that has left.
func (h *Health) Forget(peer string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.machine.forget(peer, time.Now())
	h.recoveries.forget(peer)
}
