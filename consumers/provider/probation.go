package provider

import "time"

// probation limits the mail of a provider that was silent until it reports something: to
// a few recipients, renewed after a while. It takes until their reports are overdue to
// find out that they are lost.
type probation struct {
	on     bool
	left   int
	renews time.Time
}

// probationSize is twice the number of recipients that is needed to detect silence.
const probationSize = 2 * silenceLeast

// allows reports whether a call with n recipients may be made.
func (p *probation) allows(n int, now time.Time) bool {
	if !p.on {
		return true
	}
	if !now.Before(p.renews) {
		return n <= probationSize
	}
	return n <= p.left
}

// reserve takes n recipients off what is left, and reports whether that was enough.
func (p *probation) reserve(n int, now time.Time, renewal time.Duration) bool {
	if !p.allows(n, now) {
		return false
	}
	if p.on && !now.Before(p.renews) {
		p.left, p.renews = probationSize, now.Add(renewal)
	}
	p.left -= n
	return true
}
