package provider

import (
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// callLimit is how many recipients a call to a provider may have, after it refused a call because of their number. The
// zero value limits nothing. The caller holds a lock.
type callLimit struct {
	most  int
	until time.Time // then the provider is asked for more again
}

// callLimitFor is how long a provider is not asked for larger calls. An account of Mailgun is on probation for days
// (Ghost issue 15725), and one larger call a day finds out that this has ended.
const callLimitFor = 24 * time.Hour

// learn takes in that a call may have at most so many recipients until a time, and reports whether that lowers the
// limit. 0 says nothing.
func (l *callLimit) learn(most int, now, until time.Time) (lower bool) {
	if most < 1 || !now.Before(until) {
		return false
	}
	switch known := now.Before(l.until); {
	case known && most > l.most:
		return false // a call that began before the limit was known
	case known && most == l.most:
		l.until = models.LaterOf(l.until, until)
		return false
	}
	l.most, l.until = most, until
	return true
}

// of returns how many of n recipients a call may have.
func (l *callLimit) of(n int, now time.Time) int {
	if now.Before(l.until) {
		return min(n, l.most)
	}
	return n
}

// left returns the limit and how much longer it lasts; 0: there is none.
func (l *callLimit) left(now time.Time) (most int, left time.Duration) {
	if !now.Before(l.until) {
		return 0, 0
	}
	return l.most, l.until.Sub(now)
}

// limitCalls takes in that the provider refused the number of recipients of a call. A message that is too large in
// bytes says nothing about others.
func (h *Health) limitCalls(p *models.Part) {
	if p.Fewer == 0 || p.Status == 0 || p.Reason == models.TooLarge {
		return
	}
	now := time.Now()
	h.mu.Lock()
	lower := h.size.learn(p.Fewer, now, now.Add(callLimitFor))
	h.mu.Unlock()
	if !lower {
		return
	}
	h.onChange()
	h.cfg.Logger.Warn("provider takes fewer recipients in a call for now",
		"provider", h.name, "why", p.Words(), "recipients", p.Fewer, "until", now.Add(callLimitFor).UTC())
}

// TooManyUntil returns until when the provider takes no call with n recipients; zero: it takes it.
func (h *Health) TooManyUntil(n int, now time.Time) (until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range []*callLimit{&h.size, &h.peerSize} {
		if l.of(n, now) < n {
			until = models.LaterOf(until, l.until)
		}
	}
	return until
}
