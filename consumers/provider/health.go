package provider

import (
	"slices"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// Health decides from the results of calls whether a provider is usable.
type Health struct {
	name      string
	cfg       *Config
	mu        sync.Mutex
	breaker   breaker
	mine      bool       // this worker found out itself that the breaker must not be closed
	why       string     // reason of the suspension
	suspended suspension // the provider refused its key or quota, or reported nothing about its mail
	silent    bool       // suspended for silence
	silentTo  time.Time  // end of the newest suspension for silence
	slow      suspension // the provider asked to wait
	probation probation
	back      time.Time                // when another suspension than the breaker's last ended
	peers     map[string]*peerReport   // reports of peers, by worker, while they suspend the provider
	onChange  func()                   // called when this worker's view changes
	isSlow    func(time.Duration) bool // whether a call of this length is slow compared to other providers
	probe     int                      // number of the newest probe command carried out

	senders, peerSenders refusedSenders // domains it refuses, as this worker found out, and as peers report
}

// suspension is a period without calls.
type suspension struct{ since, until time.Time }

func (a *suspension) from(now, until time.Time) {
	if !now.Before(a.until) {
		a.since = now
	}
	a.until = until
}

// NewHealth returns the health of a provider whose calls take at most timeout. Its
// breaker counts over a period longer than the longest call.
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

// Usable reports whether mail that other providers take, too, may go to the provider now,
// and if not, when to try again.
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

// SilentUntil returns the end of the newest suspension for silence, by any worker; zero:
// there was none.
func (h *Health) SilentUntil() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.silentTo
}

// UsableFor is Usable for mail from a sender's domain. If alone, no other provider takes
// the mail, and probes are more frequent.
func (h *Health) UsableFor(domain string, now time.Time, alone bool) (bool, time.Time) {
	h.mu.Lock()
	ok, until := h.allows(now, alone)
	h.mu.Unlock()
	if t := h.refusedUntil(domain, now); !t.IsZero() {
		return false, models.LaterOf(t, until)
	}
	return ok, until
}

// refusedUntil returns until when the provider refuses mail from a sender's domain; zero:
// it does not.
func (h *Health) refusedUntil(domain string, now time.Time) time.Time {
	return models.LaterOf(h.senders.refused(domain, now), h.peerSenders.refused(domain, now))
}

// Probe carries out the probe command of a number, once. It ends every suspension, so
// that the next mail probes the provider. Reports of peers from before they carried out
// the command are ignored from then on. A provider suspended for silence is on probation.
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

// probation limits the mail of a provider that was silent until it reports something: to
// a few mails, renewed after a while. It takes until their reports are overdue to find out
// that they are lost.
type probation struct {
	on     bool
	left   int
	renews time.Time
}

// probationSize is twice the mail that is needed to detect silence.
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

// reserve takes n recipients off what is left, and reports whether that was enough.
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

// EndProbation ends the probation, because the provider reports again.
func (h *Health) EndProbation() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.probation.on {
		h.probation, h.back = probation{}, time.Now()
	}
}

// CallSize returns how many recipients, up to most, the next call may have: one until a
// probe was answered, then gradually more.
func (h *Health) CallSize(most int, now time.Time) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.breaker.proving {
		return 1
	}
	return min(most, max(probeSize, int(h.recovered(now)*float64(most))))
}

// recovered returns how far a provider has recovered from a suspension, from 0 to 1.
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

// Begin asks for permission to make one call with n recipients for a sender's domain. If
// ok, done must be called with the parts of the answer and the call's duration, or without
// parts if no call was made. Later calls of done do nothing.
func (h *Health) Begin(domain string, n int) (done func(parts []models.Part, took time.Duration), ok bool) {
	now := time.Now()
	if !h.refusedUntil(domain, now).IsZero() {
		return nil, false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if ok, _ := h.allows(now, true); !ok || !h.probation.reserve(n, now, h.cfg.SilenceLeast) {
		return nil, false // that changed since the call was planned
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

// settle passes the result of a call to the breaker.
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
			"provider suspended: calls are failing",
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

// judge returns what an answer says about the provider. Only answers that any mail would
// have got count against it.
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
				return saysNothing, "" // a mistake of ours
			}
			if p.RetryAt.After(now) { // maybe the answer of a proxy before the provider
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

// A provider is suspended at most for so long because its provider says that it is
// asked too often, and because it says that it is down: then it is asked again.
const (
	mostAway = 24 * time.Hour
	mostDown = time.Hour
)

// Suspend suspends the provider because it refuses its key or quota.
func (h *Health) Suspend(until time.Time, why string) {
	h.suspend(until, why, false)
	h.cfg.Logger.Error("provider refused by its provider", "provider", h.name, "why", why, "until", until.UTC())
}

// SuspendSilent suspends a provider that accepts mail and reports nothing about it.
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

// refuse suspends the mail of one sender's domain.
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

// slowDown suspends the provider until the time it asked for.
func (h *Health) slowDown(until time.Time, why string) {
	now := time.Now()
	h.mu.Lock()
	h.slow.from(now, models.LaterOf(h.slow.until, models.EarlierOf(until, now.Add(mostAway))))
	h.why = why
	h.mu.Unlock()
	h.onChange()
}

// Report returns the present health, as this worker and its peers find it.
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

// Own returns the health as this worker found it out itself.
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

// FailuresInRow returns how many consecutive calls of this worker have failed.
func (h *Health) FailuresInRow() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.breaker.row
}
