package provider

import "time"

// breaker judges a provider by the calls of this worker: it counts them, and says when
// they fail too often and for how long the provider is then suspended.
//
// Consecutive failures count however far apart they are, so that a provider that gets
// little mail is suspended after as few failures as one that gets much.
type breaker struct {
	first    time.Duration // first pause
	lookBack time.Duration // period over which calls are counted

	counts  [breakerSteps]breakerStep
	row     int // consecutive failures
	unknown int // how many of the newest of these have an unknown outcome

	last   time.Duration // last pause
	closed time.Time     // when a probe was last answered; zero: never
}

// breakerStep counts the calls in a part of lookBack.
type breakerStep struct {
	n               int64
	calls, failures int
}

const (
	breakerSteps = 10
	tripRow      = 5  // consecutive failures that open it
	tripUnknown  = 3  // consecutive unknown outcomes that open it: each keeps mail waiting
	tripCalls    = 20 // calls that open it if more than half of them failed

	// Each failed probe doubles the pause, up to these multiples of the first pause. If
	// the outcome is unknown, every probe is a mail that may not arrive. Probes are then
	// few, and very few while other providers take the mail.
	mostRefused = 3
	mostSole    = 12
	mostUnknown = 360
)

// callSays is what the result of a call says about a provider.
type callSays int

const (
	saysNothing callSays = iota // no call was made, or the answer is about something else
	answered
	failedWhole   // it certainly accepted nothing
	failedUnknown // it may have accepted mail
	// failedSuspended: it accepted nothing, and is suspended for a reason that it named.
	failedSuspended
)

// reset forgets the calls that were counted.
func (b *breaker) reset() {
	b.row, b.unknown = 0, 0
	b.counts = [breakerSteps]breakerStep{}
}

// answered counts a call that was answered.
func (b *breaker) answered(now time.Time) {
	b.row, b.unknown = 0, 0
	b.count(now, 0)
}

// failed counts a call that failed, and reports whether calls fail too often.
func (b *breaker) failed(says callSays, now time.Time) bool {
	if b.row++; says == failedUnknown {
		b.unknown++
	} else {
		b.unknown = 0
	}
	b.count(now, 1)
	return b.row >= tripRow || b.unknown >= tripUnknown || b.mostFailed(now)
}

// open returns how long the provider is suspended after a failure, and for how long if no
// other provider takes the mail. The pause is longer than the last one if a probe failed,
// or if calls fail again soon after one was answered.
func (b *breaker) open(says callSays, probe bool, now time.Time) (pause, sole time.Duration) {
	most, mostIfSole := mostRefused*b.first, mostRefused*b.first
	if says == failedUnknown {
		most, mostIfSole = mostUnknown*b.first, mostSole*b.first
	}
	if probe || now.Sub(b.closed) < b.lookBack {
		b.last = min(max(2*b.last, b.first), most)
	} else {
		b.last = b.first
	}
	return b.last, min(b.last, mostIfSole)
}

func (b *breaker) step(now time.Time) int64 { return now.UnixNano() / int64(b.lookBack/breakerSteps) }

func (b *breaker) count(now time.Time, failures int) {
	n := b.step(now)
	s := &b.counts[n%breakerSteps]
	if s.n != n {
		*s = breakerStep{n: n}
	}
	s.calls++
	s.failures += failures
}

// mostFailed reports whether more than half of the newest calls failed, if there are
// enough of them.
func (b *breaker) mostFailed(now time.Time) bool {
	n, calls, failures := b.step(now), 0, 0
	for _, s := range b.counts {
		if n-s.n < breakerSteps {
			calls += s.calls
			failures += s.failures
		}
	}
	return calls >= tripCalls && 2*failures > calls
}
