package consumers

import (
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/safedelivr/safedelivr/models"
)

// The states of an account's health.
const (
	Healthy  = "healthy"
	HalfOpen = "half-open" // a few probes are let through
	Tripped  = "open"      // calls failed; nothing goes there for the moment
	Shut     = "shut"      // the provider refuses the account itself
	Slowed   = "slowed"    // the provider asked to wait
)

// Health is an account's present health as this process sees it.
type Health struct {
	State string    `json:"state"`
	Since time.Time `json:"since"`
	Why   string    `json:"why,omitempty"`
	Until time.Time `json:"until,omitzero"` // when it is tried again at the earliest
}

// health decides from the answers of calls whether an account is usable.
type health struct {
	cfg     *Config
	breaker *gobreaker.TwoStepCircuitBreaker[any]

	mu        sync.Mutex
	shutUntil time.Time
	slowUntil time.Time
	openedAt  time.Time
	since     time.Time
	why       string
}

func newHealth(name string, cfg *Config) *health {
	h := &health{cfg: cfg, since: time.Now()}
	h.breaker = gobreaker.NewTwoStepCircuitBreaker[any](gobreaker.Settings{
		Name:         name,
		MaxRequests:  2,
		Interval:     20 * time.Second,
		BucketPeriod: 2 * time.Second,
		Timeout:      cfg.BreakerOpen,
		ReadyToTrip: func(c gobreaker.Counts) bool {
			return c.ConsecutiveFailures >= 5 || c.Requests >= 20 && c.TotalFailures*2 > c.Requests
		},
		OnStateChange: h.changed,
		IsSuccessful:  func(err error) bool { return err == nil },
	})
	return h
}

func (h *health) changed(name string, from, to gobreaker.State) {
	h.mu.Lock()
	h.since = time.Now()
	if to == gobreaker.StateOpen {
		h.openedAt = h.since
	}
	why := h.why
	h.mu.Unlock()
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
	}
	return true, time.Time{}
}

// begin asks for permission to make one call. done must be called with its
// result.
func (h *health) begin() (done func(parts []models.Part), ok bool) {
	settle, err := h.breaker.Allow()
	if err != nil {
		return nil, false
	}
	return func(parts []models.Part) { settle(h.judge(parts)) }, true
}

type failure string

func (f failure) Error() string { return string(f) }

// judge notes what an answer says about the account. Only answers that any mail
// would have got count against it.
func (h *health) judge(parts []models.Part) error {
	now := time.Now()
	for i := range parts {
		p := &parts[i]
		why := p.Text
		if why == "" {
			why = string(p.Class)
		}
		switch p.Class {
		case models.AccountClass:
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
				return nil // our own fault
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
	h.shutUntil, h.why = until, why
	h.mu.Unlock()
	h.cfg.Logger.Error("account refused by its provider", "account", h.breaker.Name(), "why", why, "until", until.UTC())
}

func (h *health) slow(until time.Time, why string) {
	h.mu.Lock()
	if !time.Now().Before(h.slowUntil) {
		h.since = time.Now()
	}
	h.slowUntil, h.why = maxTime(h.slowUntil, until), why
	h.mu.Unlock()
}

// report is the present health.
func (h *health) report() Health {
	state := h.breaker.State()
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	out := Health{State: Healthy, Since: h.since.UTC()}
	switch {
	case now.Before(h.shutUntil):
		out.State, out.Why, out.Until = Shut, h.why, h.shutUntil.UTC()
	case now.Before(h.slowUntil):
		out.State, out.Why, out.Until = Slowed, h.why, h.slowUntil.UTC()
	case state == gobreaker.StateOpen:
		out.State, out.Why, out.Until = Tripped, h.why, h.openedAt.Add(h.cfg.BreakerOpen).UTC()
	case state == gobreaker.StateHalfOpen:
		out.State, out.Why = HalfOpen, h.why
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
