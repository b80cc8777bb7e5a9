package provider

import "time"

// breaker judges a provider by the calls that one worker makes. It is open while
// they fail, and then lets single calls through until one of them is answered.
//
// Failures in a row are counted whenever they were: a provider that gets a mail now
// and then is left alone as soon as one that gets many. Who uses it holds a lock, and
// tells it the time.
type breaker struct {
	first    time.Duration // how long it is open at first
	lookBack time.Duration // over which calls are counted beside each other

	counts  [breakerSteps]breakerStep
	row     int // failures in a row
	unknown int // of the newest of these, in a row, nobody knows the outcome

	since   time.Time     // when it changed last
	until   time.Time     // it is open until then,
	alone   time.Time     // or until then, where mail can go nowhere else
	lasts   time.Duration // how long it was open last
	closed  time.Time     // when a probe closed it last; zero: never
	proving bool          // it is open, or a call must be answered before it is closed
	probes  int           // calls that run then
	probed  time.Time     // when the newest of them began
	turn    int           // how often it changed: calls that began before tell nothing after
}

// breakerStep is what was counted in a part of lookBack.
type breakerStep struct {
	n               int64
	calls, failures int
}

const (
	breakerSteps = 10
	tripRow      = 5  // so many failures in a row open it,
	tripUnknown  = 3  // or so many whose outcome is unknown: each keeps mail waiting,
	tripCalls    = 20 // or so many calls, more than half of which failed
	probesAtOnce = 1

	// Each time that a probe fails it is open for twice as long, up to so many times
	// as long as at first. Where nobody knows the outcome, every probe is a mail that
	// may not arrive: they are few, and very few while mail can go elsewhere.
	mostRefused = 3
	mostAlone   = 12
	mostUnknown = 360
)

// callSays is what a call says of a provider.
type callSays int

const (
	saysNothing callSays = iota // it was not made, or the answer is about something else
	answered
	failedWhole   // and certainly took nothing
	failedUnknown // and nobody knows whether it took something
)

// breakerState is how a breaker stands.
type breakerState int

const (
	breakerClosed breakerState = iota
	breakerProving
	breakerOpen
)

// state is how it stands for mail that can go elsewhere, or cannot.
func (b *breaker) state(now time.Time, alone bool) breakerState {
	switch {
	case now.Before(b.alone), !alone && now.Before(b.until):
		return breakerOpen
	case b.proving:
		return breakerProving
	}
	return breakerClosed
}

// allows reports whether a call may begin, and if not, when to ask again.
func (b *breaker) allows(now time.Time, alone bool) (bool, time.Time) {
	switch b.state(now, alone) {
	case breakerOpen:
		if alone {
			return false, b.alone
		}
		return false, b.until
	case breakerProving:
		if b.probes >= probesAtOnce { // asked ever more rarely while one hangs
			return false, now.Add(max(probePause, now.Sub(b.probed)))
		}
	case breakerClosed:
	}
	return true, time.Time{}
}

// probePause is how soon mail asks again that waits for a probe's answer, at first.
const probePause = time.Second

// prove lets single calls through only, until one is answered: the provider was left
// alone for another reason than that calls of this worker failed.
func (b *breaker) prove(now time.Time) {
	if !b.proving {
		b.change(now)
		b.proving = true
	}
}

// again lets a call through at once, whatever was found out before: it must be answered,
// and calls that began before tell nothing.
func (b *breaker) again(now time.Time) {
	b.change(now)
	b.until, b.alone, b.lasts, b.proving = now, now, 0, true
}

func (b *breaker) change(now time.Time) {
	b.turn++
	b.since = now
	b.probes, b.row, b.unknown = 0, 0, 0
	b.counts = [breakerSteps]breakerStep{}
}

// begin lets a call through that is allowed, and returns its turn.
func (b *breaker) begin(now time.Time) (turn int) {
	if b.proving {
		b.probes++
		b.probed = now
	}
	return b.turn
}

// end takes in what a call said that began in a turn. It reports whether that changed
// the breaker.
func (b *breaker) end(turn int, says callSays, now time.Time) bool {
	if turn != b.turn {
		return false
	}
	proving := b.proving
	if proving {
		b.probes--
	}
	switch says {
	case saysNothing:
		return false
	case answered:
		b.row, b.unknown = 0, 0
		b.count(now, 0)
		if proving {
			b.change(now)
			b.proving, b.closed = false, now
		}
		return proving
	case failedUnknown:
		b.unknown++
	case failedWhole:
		b.unknown = 0
	}
	b.row++
	b.count(now, 1)
	if !proving && b.row < tripRow && b.unknown < tripUnknown && !b.mostFailed(now) {
		return false
	}
	b.open(says, proving, now)
	return true
}

// open opens it, for longer than before where a probe failed, or where calls fail
// again soon after one was answered.
func (b *breaker) open(says callSays, probe bool, now time.Time) {
	most, alone := mostRefused*b.first, mostRefused*b.first
	if says == failedUnknown {
		most, alone = mostUnknown*b.first, mostAlone*b.first
	}
	if probe || now.Sub(b.closed) < b.lookBack {
		b.lasts = min(max(2*b.lasts, b.first), most)
	} else {
		b.lasts = b.first
	}
	b.change(now)
	b.until, b.alone, b.proving = now.Add(b.lasts), now.Add(min(b.lasts, alone)), true
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

// mostFailed reports whether more than half of the newest calls failed, where they
// are enough to say.
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
