package consumers

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/safedelivr/safedelivr/models"
)

// health decides from the answers of calls whether an account is usable.
type health struct {
	cfg     *Config
	timeout time.Duration // of a call
	breaker *gobreaker.TwoStepCircuitBreaker[any]

	mu        sync.Mutex
	shutUntil time.Time
	shutAs    string // Shut, or Tripped for silence
	slowUntil time.Time
	openedAt  time.Time
	since     time.Time
	halfSince time.Time // when the breaker became half-open last
	probes    int       // calls that run while it is
	trial     trial
	why       string
	back      time.Time                // when mail was let through again after trouble
	others    map[string]remote        // what other workers say, while it keeps mail away
	changes   func()                   // tells them
	slowest   func(time.Duration) bool // whether a call of this length is slow beside other accounts

	senders, heard senders // whom it refuses, as this worker found out and as others say
}

// remote is what another worker says of the account.
type remote struct {
	Ailment
	until time.Time
}

// newHealth judges an account whose calls take at most timeout. The breaker counts
// a call under the time at which it began, so that it looks back further than the
// longest call takes.
func newHealth(name string, timeout time.Duration, cfg *Config) *health {
	lookBack := max(20*time.Second, 3*timeout)
	h := &health{cfg: cfg, timeout: timeout, since: time.Now(), others: map[string]remote{}, changes: func() {}, slowest: func(time.Duration) bool { return false }}
	h.breaker = gobreaker.NewTwoStepCircuitBreaker[any](gobreaker.Settings{
		Name:         name,
		MaxRequests:  2,
		Interval:     lookBack,
		BucketPeriod: lookBack / 10,
		Timeout:      cfg.BreakerOpen,
		ReadyToTrip: func(c gobreaker.Counts) bool {
			return c.ConsecutiveFailures >= 5 || c.Requests >= 20 && c.TotalFailures*2 > c.Requests
		},
		OnStateChange: h.changed,
		IsSuccessful:  func(err error) bool { return err == nil },
		IsExcluded:    func(err error) bool { return errors.Is(err, errNotCalled) },
	})
	return h
}

func (h *health) changed(name string, from, to gobreaker.State) {
	h.mu.Lock()
	h.since = time.Now()
	switch to {
	case gobreaker.StateOpen:
		h.openedAt = h.since
	case gobreaker.StateHalfOpen:
		h.back, h.halfSince, h.probes = h.since, h.since, 0
	case gobreaker.StateClosed:
		h.back = h.since
	}
	why := h.why
	h.mu.Unlock()
	h.changes()
	h.cfg.Logger.Warn("account health changed", "account", name, "from", from.String(), "to", to.String(), "why", why)
}

// usable reports whether mail may be given to the account now, and if not, when
// to ask again.
func (h *health) usable(now time.Time) (bool, time.Time) {
	state := h.breaker.State()
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case now.Before(h.shutUntil):
		return false, h.shutUntil
	case now.Before(h.slowUntil):
		return false, h.slowUntil
	case state == gobreaker.StateOpen:
		return false, h.openedAt.Add(h.cfg.BreakerOpen)
	case !h.trial.allows(probeSize, now):
		return false, h.trial.renews
	case state == gobreaker.StateHalfOpen:
		return true, time.Time{} // this worker's own probes tell
	}
	for _, r := range h.others {
		if now.Before(r.until) {
			return false, r.until
		}
	}
	return true, time.Time{}
}

// usableFor is usable for mail from a sender's domain.
func (h *health) usableFor(domain string, now time.Time) (bool, time.Time) {
	ok, until := h.usable(now)
	if t := maxTime(h.senders.refused(domain, now), h.heard.refused(domain, now)); !t.IsZero() {
		return false, maxTime(t, until)
	}
	return ok, until
}

// hear takes in what another worker says of the account; nil: nothing bad.
func (h *health) hear(worker string, a *Ailment) {
	if a != nil {
		now := time.Now()
		for domain, left := range a.Senders {
			h.heard.refuse(domain, now, now.Add(left))
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if a == nil || a.State == models.Healthy {
		if _, ok := h.others[worker]; ok {
			delete(h.others, worker)
			h.back = time.Now()
		}
		return
	}
	h.others[worker] = remote{*a, time.Now().Add(a.Left)}
	if a.Silent {
		h.trial.on = true
	}
}

// ailment is what the other workers should know: nil while the account is
// usable as far as this worker found out itself.
func (h *health) ailment() *Ailment {
	now := time.Now()
	r := h.own(now)
	refused := h.senders.left(now)
	switch r.State {
	case models.Tripped, models.Shut, models.Slowed:
		h.mu.Lock()
		silent := now.Before(h.shutUntil) && h.shutAs == models.Tripped
		h.mu.Unlock()
		return &Ailment{State: r.State, Why: r.Why, Left: max(0, time.Until(r.Until)), Silent: silent, Senders: refused}
	case models.HalfOpen:
		if h.probing(now) {
			return &Ailment{State: models.Tripped, Why: r.Why, Left: h.timeout, Senders: refused}
		}
	}
	if len(refused) > 0 {
		return &Ailment{State: models.Healthy, Senders: refused}
	}
	return nil
}

// probing reports whether this worker finds out, for the others, whether an account
// is back: they keep away meanwhile. Where it has no mail to find out with, they do
// not wait for it.
func (h *health) probing(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.probes > 0 || now.Before(h.halfSince.Add(h.timeout))
}

// trial is what an account that was silent may have until it reports something: a
// few mails, renewed after a while. To find out that it swallows them still takes
// until their reports are overdue.
type trial struct {
	on     bool
	left   int
	renews time.Time
}

// trialSize is enough to tell silence by, twice.
const trialSize = 2 * silenceLeast

// allows reports whether a call of n recipients may be made.
func (t *trial) allows(n int, now time.Time) bool {
	if !t.on {
		return true
	}
	if !now.Before(t.renews) {
		return n <= trialSize
	}
	return n <= t.left
}

// spend takes n recipients off what is left, and reports whether it may.
func (t *trial) spend(n int, now time.Time, renewal time.Duration) bool {
	if !t.allows(n, now) {
		return false
	}
	if t.on && !now.Before(t.renews) {
		t.left, t.renews = trialSize, now.Add(renewal)
	}
	t.left -= n
	return true
}

// trusted ends the trial: the account reports again.
func (h *health) trusted() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.trial.on {
		h.trial, h.back = trial{}, time.Now()
	}
}

// recovered grows from 0 to 1 while an account comes back from trouble.
func (h *health) recovered(now time.Time) float64 {
	if h.breaker.State() == gobreaker.StateHalfOpen {
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.trial.on {
		return 0
	}
	from := maxTime(h.back, maxTime(h.shutUntil, h.slowUntil))
	for _, r := range h.others {
		from = maxTime(from, r.until)
	}
	if from.IsZero() {
		return 1
	}
	return min(1, max(0, float64(now.Sub(from))/float64(2*h.cfg.BreakerOpen)))
}

// errNotCalled says of a call that was let through that it was not made, which
// tells nothing about the account.
var errNotCalled = errors.New("not called")

// begin asks for permission to make one call with n recipients for a sender's
// domain. done must be called with its result and how long it took; without parts,
// no call was made. Only the first time counts.
func (h *health) begin(domain string, n int) (done func(parts []models.Part, took time.Duration), ok bool) {
	now := time.Now()
	if ok, _ := h.usableFor(domain, now); !ok {
		return nil, false // since the call was planned
	}
	settle, err := h.breaker.Allow()
	if err != nil {
		return nil, false
	}
	h.mu.Lock()
	ok = h.trial.spend(n, now, h.cfg.SilenceLeast)
	h.probes++
	h.mu.Unlock()
	if !ok {
		settle(errNotCalled)
		h.probed()
		return nil, false
	}
	settled := false
	return func(parts []models.Part, took time.Duration) {
		if settled {
			return
		}
		settled = true
		defer h.probed()
		err := h.judge(parts, domain)
		if err == nil && h.slowest(took) {
			err = failure("answers take " + took.Round(100*time.Millisecond).String())
			h.note(err.Error())
		}
		settle(err)
	}, true
}

func (h *health) probed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.probes = max(0, h.probes-1)
}

type failure string

func (f failure) Error() string { return string(f) }

// judge notes what an answer says about the account. Only answers that any mail
// would have got count against it.
func (h *health) judge(parts []models.Part, domain string) error {
	if len(parts) == 0 {
		return errNotCalled
	}
	now := time.Now()
	for i := range parts {
		p := &parts[i]
		why := p.Text
		if why == "" {
			why = string(p.Class)
		}
		switch p.Class {
		case models.AccountClass:
			if p.Reason == models.SenderNotVerified {
				h.refuse(domain, now.Add(h.cfg.AccountHold), why)
				return nil
			}
			h.shut(now.Add(h.cfg.AccountHold), why)
			return nil
		case models.Throttled:
			until := p.RetryAt
			if until.IsZero() || until.Before(now) {
				until = now.Add(h.cfg.delay(1))
			}
			h.slow(minTime(until, now.Add(time.Hour)), why)
			return nil
		case models.Unavailable, models.Unknown:
			if p.Reason == models.StartByPassed {
				return errNotCalled // our own fault
			}
			h.note(why)
			return failure(why)
		}
	}
	return nil
}

func (h *health) note(why string) {
	h.mu.Lock()
	h.why = why
	h.mu.Unlock()
}

func (h *health) shut(until time.Time, why string) {
	h.mu.Lock()
	if !time.Now().Before(h.shutUntil) {
		h.since = time.Now()
	}
	h.shutUntil, h.why, h.shutAs = until, why, models.Shut
	h.mu.Unlock()
	h.changes()
	h.cfg.Logger.Error("account refused by its provider", "account", h.breaker.Name(), "why", why, "until", until.UTC())
}

// refuse keeps the mail of one sender's domain away.
func (h *health) refuse(domain string, until time.Time, why string) {
	if !h.senders.refuse(domain, time.Now(), until) {
		return
	}
	h.changes()
	h.cfg.Logger.Error("sender refused by a provider", "account", h.breaker.Name(), "domain", domain, "why", why, "until", until.UTC())
}

// silent keeps mail away from an account that takes it and reports nothing.
func (h *health) silent(until time.Time, why string) {
	h.mu.Lock()
	h.since = time.Now()
	h.shutUntil, h.why, h.shutAs = until, why, models.Tripped
	h.trial = trial{on: true}
	h.mu.Unlock()
	h.changes()
	h.cfg.Logger.Error("account takes mail and is silent about it", "account", h.breaker.Name(), "why", why, "until", until.UTC())
}

func (h *health) slow(until time.Time, why string) {
	h.mu.Lock()
	if !time.Now().Before(h.slowUntil) {
		h.since = time.Now()
	}
	h.slowUntil, h.why = maxTime(h.slowUntil, until), why
	h.mu.Unlock()
	h.changes()
}

// report is the present health, as this worker and the others find it.
func (h *health) report() models.Health {
	now := time.Now()
	out := h.own(now)
	out.Senders = append(h.senders.list(now), h.heard.list(now)...)
	slices.Sort(out.Senders)
	out.Senders = slices.Compact(out.Senders)
	if out.State != models.Healthy {
		return out
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.others {
		if now.Before(r.until) {
			out.State, out.Why, out.Until = r.State, r.Why, r.until.UTC()
		}
	}
	return out
}

// own is the health that this worker found out itself.
func (h *health) own(now time.Time) models.Health {
	state := h.breaker.State()
	h.mu.Lock()
	defer h.mu.Unlock()
	out := models.Health{State: models.Healthy, Since: h.since.UTC()}
	switch {
	case now.Before(h.shutUntil):
		out.State, out.Why, out.Until = h.shutAs, h.why, h.shutUntil.UTC()
	case now.Before(h.slowUntil):
		out.State, out.Why, out.Until = models.Slowed, h.why, h.slowUntil.UTC()
	case state == gobreaker.StateOpen:
		out.State, out.Why, out.Until = models.Tripped, h.why, h.openedAt.Add(h.cfg.BreakerOpen).UTC()
	case state == gobreaker.StateHalfOpen:
		out.State, out.Why = models.HalfOpen, h.why
	}
	return out
}

func minTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
