package provider

import (
	"slices"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// Health decides from the answers of calls whether a provider is usable.
type Health struct {
	name      string
	cfg       *Config
	mu        sync.Mutex
	breaker   breaker
	mine      bool       // that the breaker is not closed is by what this worker found out itself
	why       string     // mail keeps away
	suspended suspension // the provider refused the provider itself, or said nothing about its mail
	silent    bool       // the latter
	silentTo  time.Time  // Until when it was left alone last because it was silent
	slow      suspension // the provider asked to wait
	probation probation
	back      time.Time                // when mail was let through again last, after other trouble than the breaker's
	peers     map[string]*peerReport   // what other workers say, while it keeps mail away
	onChange  func()                   // tells them
	isSlow    func(time.Duration) bool // whether a call of this length is slow beside other providers
	probe     int                      // the newest order to try it again that was obeyed

	senders, peerSenders refusedSenders // whom it refuses, as this worker found out and as others say
}

// suspension is a time in which mail keeps away.
type suspension struct{ since, until time.Time }

func (a *suspension) from(now, until time.Time) {
	if !now.Before(a.until) {
		a.since = now
	}
	a.until = until
}

// NewHealth judges a provider whose calls take at most timeout. Its breaker looks
// back further than the longest call takes.
func NewHealth(name string, timeout time.Duration, cfg *Config) *Health {
	h := &Health{
		name:     name,
		cfg:      cfg,
		peers:    map[string]*peerReport{},
		onChange: func() {},
		isSlow:   func(time.Duration) bool { return false },
	}
	h.breaker = breaker{first: cfg.BreakerOpen, lookBack: max(20*time.Second, 3*timeout), since: time.Now()}
	return h
}

// Usable reports whether mail that can go elsewhere may be given to the provider now,
// and if not, when to ask again.
func (h *Health) Usable(now time.Time) (bool, time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.allows(now, false)
}

func (h *Health) allows(now time.Time, alone bool) (bool, time.Time) {
	switch {
	case now.Before(h.suspended.until):
		return false, h.suspended.until
	case now.Before(h.slow.until):
		return false, h.slow.until
	case !h.probation.allows(probeSize, now):
		return false, h.probation.renews
	}
	if until := h.peersUntil(now); now.Before(until) {
		return false, until
	}
	return h.breaker.allows(now, alone)
}

// SilentUntil is until when the provider was left alone last because it was silent, at
// whatever worker; zero: never.
func (h *Health) SilentUntil() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.silentTo
}

// UsableFor is usable for mail from a sender's domain. Mail that can go nowhere else
// is let through more often.
func (h *Health) UsableFor(domain string, now time.Time, alone bool) (bool, time.Time) {
	h.mu.Lock()
	ok, until := h.allows(now, alone)
	h.mu.Unlock()
	if t := h.refusedUntil(domain, now); !t.IsZero() {
		return false, models.LaterOf(t, until)
	}
	return ok, until
}

// refusedUntil is until when the provider refuses mail from a sender's domain; zero: it
// does not.
func (h *Health) refusedUntil(domain string, now time.Time) time.Time {
	return models.LaterOf(h.senders.refused(domain, now), h.peerSenders.refused(domain, now))
}

// Probe obeys the order of a number, once: whatever keeps mail away is forgotten,
// and the next mail shows how the provider is. What others found out before they
// obeyed it counts no more. A provider that was silent goes on trial, as at its time.
func (h *Health) Probe(order int) {
	now := time.Now()
	h.mu.Lock()
	if order <= h.probe {
		h.mu.Unlock()
		return
	}
	h.probe = order
	h.senders.forget()
	h.peerSenders.forget()
	own := now.Before(h.suspended.until) || now.Before(h.slow.until) || h.breaker.proving && h.mine
	told := now.Before(h.peersUntil(now))
	h.suspended.until, h.slow.until = models.EarlierOf(h.suspended.until, now), models.EarlierOf(h.slow.until, now)
	h.silentTo = models.EarlierOf(h.silentTo, now)
	h.probation.left, h.probation.renews = 0, time.Time{}
	clear(h.peers)
	ill := own || told || h.breaker.proving
	if ill {
		h.breaker.again(now)
		h.mine = own
	}
	h.mu.Unlock()
	h.onChange()
	if ill {
		h.cfg.Logger.Info("provider is tried again, as ordered", "provider", h.name, "order", order)
	}
}

// probation is what a provider that was silent may have until it reports something: a
// few mails, renewed after a while. To find out that it swallows them still takes
// until their reports are overdue.
type probation struct {
	on     bool
	left   int
	renews time.Time
}

// probationSize is enough to tell silence by, twice.
const probationSize = 2 * silenceLeast

// allows reports whether a call of n recipients may be made.
func (t *probation) allows(n int, now time.Time) bool {
	if !t.on {
		return true
	}
	if !now.Before(t.renews) {
		return n <= probationSize
	}
	return n <= t.left
}

// reserve takes n recipients off what is left, and reports whether it may.
func (t *probation) reserve(n int, now time.Time, renewal time.Duration) bool {
	if !t.allows(n, now) {
		return false
	}
	if t.on && !now.Before(t.renews) {
		t.left, t.renews = probationSize, now.Add(renewal)
	}
	t.left -= n
	return true
}

// EndProbation ends the trial: the provider reports again.
func (h *Health) EndProbation() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.probation.on {
		h.probation, h.back = probation{}, time.Now()
	}
}

// CallSize is how many of most recipients the next call may have: one until the
// provider has proved that it takes mail again, then ever more.
func (h *Health) CallSize(most int, now time.Time) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.breaker.proving {
		return 1
	}
	return min(most, max(probeSize, int(h.recovered(now)*float64(most))))
}

// recovered grows from 0 to 1 while a provider comes back from trouble.
func (h *Health) recovered(now time.Time) float64 {
	if h.probation.on || h.breaker.proving {
		return 0
	}
	from := models.LaterOf(models.LaterOf(h.breaker.closed, h.back), models.LaterOf(h.suspended.until, h.slow.until))
	if from.IsZero() {
		return 1
	}
	return min(1, max(0, float64(now.Sub(from))/float64(2*h.cfg.BreakerOpen)))
}

// Begin asks for permission to make one call with n recipients for a sender's
// domain. done must be called with its result and how long it took; without parts,
// no call was made. Only the first time counts.
func (h *Health) Begin(domain string, n int) (done func(parts []models.Part, took time.Duration), ok bool) {
	now := time.Now()
	if !h.refusedUntil(domain, now).IsZero() {
		return nil, false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if ok, _ := h.allows(now, true); !ok || !h.probation.reserve(n, now, h.cfg.SilenceLeast) {
		return nil, false // since the call was planned
	}
	turn, settled := h.breaker.begin(now), false
	return func(parts []models.Part, took time.Duration) {
		if settled {
			return
		}
		settled = true
		says, why := h.judge(parts, domain)
		if says == answered && h.isSlow(took) {
			says, why = failedWhole, "answers take "+took.Round(100*time.Millisecond).String()
		}
		h.settle(turn, says, why)
	}, true
}

// settle tells the breaker what a call said.
func (h *Health) settle(turn int, says callSays, why string) {
	now := time.Now()
	h.mu.Lock()
	probe := h.breaker.proving
	if says == failedWhole || says == failedUnknown {
		h.why = why
	}
	changed := h.breaker.end(turn, says, now)
	opened, until := h.breaker.proving, h.breaker.until
	if changed {
		h.mine = opened
	}
	h.mu.Unlock()
	if !changed {
		return
	}
	h.onChange()
	if opened {
		h.cfg.Logger.Warn(
			"provider is left alone: its calls fail",
			"provider",
			h.name,
			"why",
			why,
			"until",
			until.UTC(),
			"probe",
			probe,
		)
	} else {
		h.cfg.Logger.Info("provider takes mail again", "provider", h.name)
	}
}

// judge notes what an answer says about the provider. Only answers that any mail
// would have got count against it.
func (h *Health) judge(parts []models.Part, domain string) (says callSays, why string) {
	if len(parts) == 0 {
		return saysNothing, ""
	}
	now := time.Now()
	for i := range parts {
		p := &parts[i]
		if why = p.Text; why == "" {
			why = string(p.Class)
		}
		switch p.Class {
		case models.AccountClass:
			if p.Reason == models.SenderNotVerified {
				h.refuse(domain, now.Add(h.cfg.Hold), why)
				return answered, ""
			}
			h.Suspend(now.Add(h.cfg.Hold), why)
			return saysNothing, ""
		case models.Throttled:
			until := p.RetryAt
			if until.IsZero() || until.Before(now) {
				until = now.Add(h.cfg.FirstDelay)
			}
			h.slowDown(until, why)
			return saysNothing, ""
		case models.Unavailable, models.Unknown:
			if p.Reason == models.StartByPassed {
				return saysNothing, "" // our own fault
			}
			if p.RetryAt.After(now) { // maybe said by what stands before the provider
				h.slowDown(models.EarlierOf(p.RetryAt, now.Add(mostDown)), why)
			}
			if p.Class == models.Unknown {
				return failedUnknown, why
			}
			return failedWhole, why
		}
	}
	return answered, ""
}

// A provider is left alone at most for so long because its provider says that it is
// asked too often, and because it says that it is down: then it is asked again.
const (
	mostAway = 24 * time.Hour
	mostDown = time.Hour
)

// Suspend keeps mail away because the provider refuses the provider itself.
func (h *Health) Suspend(until time.Time, why string) {
	h.suspend(until, why, false)
	h.cfg.Logger.Error("provider refused by its provider", "provider", h.name, "why", why, "until", until.UTC())
}

// SuspendSilent keeps mail away from a provider that takes it and reports nothing.
func (h *Health) SuspendSilent(until time.Time, why string) {
	h.suspend(until, why, true)
	h.cfg.Logger.Error("provider takes mail and is silent about it", "provider", h.name, "why", why, "until", until.UTC())
}

func (h *Health) suspend(until time.Time, why string, silent bool) {
	now := time.Now()
	h.mu.Lock()
	h.suspended.from(now, until)
	h.why, h.silent, h.mine = why, silent, true
	if silent {
		h.probation, h.silentTo = probation{on: true}, models.LaterOf(h.silentTo, until)
	}
	h.breaker.prove(now)
	h.mu.Unlock()
	h.onChange()
}

// refuse keeps the mail of one sender's domain away.
func (h *Health) refuse(domain string, until time.Time, why string) {
	if !h.senders.refuse(domain, time.Now(), until) {
		return
	}
	h.onChange()
	h.cfg.Logger.Error(
		"sender refused by a provider",
		"provider",
		h.name,
		"domain",
		domain,
		"why",
		why,
		"until",
		until.UTC(),
	)
}

// slowDown keeps mail away until the provider wants more.
func (h *Health) slowDown(until time.Time, why string) {
	now := time.Now()
	h.mu.Lock()
	h.slow.from(now, models.LaterOf(h.slow.until, models.EarlierOf(until, now.Add(mostAway))))
	h.why = why
	h.mu.Unlock()
	h.onChange()
}

// Report is the present health, as this worker and the others find it.
func (h *Health) Report() telemetry.Health {
	now := time.Now()
	out := h.Own(now)
	out.Senders = append(h.senders.list(now), h.peerSenders.list(now)...)
	slices.Sort(out.Senders)
	out.Senders = slices.Compact(out.Senders)
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range h.peers {
		if now.Before(t.until) && !t.over && out.State == telemetry.Healthy {
			out.State, out.Why, out.Until = t.State, t.Why, t.until.UTC()
		}
	}
	if out.State == telemetry.Healthy && h.breaker.proving {
		out.State = telemetry.HalfOpen
	}
	return out
}

// Own is the health that this worker found out itself.
func (h *Health) Own(now time.Time) telemetry.Health {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case now.Before(h.suspended.until):
		state := telemetry.Shut
		if h.silent {
			state = telemetry.Tripped
		}
		return telemetry.Health{State: state, Since: h.suspended.since.UTC(), Why: h.why, Until: h.suspended.until.UTC()}
	case now.Before(h.slow.until):
		return telemetry.Health{State: telemetry.Slowed, Since: h.slow.since.UTC(), Why: h.why, Until: h.slow.until.UTC()}
	case now.Before(h.breaker.until):
		return telemetry.Health{
			State: telemetry.Tripped,
			Since: h.breaker.since.UTC(),
			Why:   h.why,
			Until: h.breaker.until.UTC(),
		}
	case h.breaker.proving && h.mine:
		return telemetry.Health{
			State: telemetry.HalfOpen,
			Since: models.LaterOf(h.breaker.until, h.suspended.until).UTC(),
			Why:   h.why,
		}
	}
	return telemetry.Health{
		State: telemetry.Healthy,
		Since: models.LaterOf(h.breaker.since, models.LaterOf(h.suspended.until, h.slow.until)).UTC(),
	}
}

// FailuresInRow returns how many calls of this worker have failed in a row.
func (h *Health) FailuresInRow() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.breaker.row
}
