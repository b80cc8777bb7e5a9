package provider

import "time"

// breaker judges a provider by the calls of this worker. It opens when they fail, and
// then allows single probes until one of them is answered.
//
// Consecutive failures count however far apart they are, so that a provider that gets
// little mail is suspended after as few failures as one that gets much. The caller holds
// a lock and passes the time.
type breaker struct {
	first    time.Duration // first pause
	lookBack time.Duration // period over which calls are counted

	counts  [breakerSteps]breakerStep
	row     int // consecutive failures
	unknown int // how many of the newest of these have an unknown outcome

	since   time.Time     // when the state last changed
	until   time.Time     // open until then,
	alone   time.Time     // or until then for mail that no other provider takes
	lasts   time.Duration // last pause
	closed  time.Time     // when a probe last closed it; zero: never
	proving bool          // it is open, or a probe must be answered before it closes
	probes  int           // running probes
	probed  time.Time     // when the newest probe began
	turn    int           // number of changes; results of calls begun in an earlier turn are ignored
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
	probesAtOnce = 1

	// Each failed probe doubles the pause, up to these multiples of the first pause. If
	// the outcome is unknown, every probe is a mail that may not arrive. Probes are then
	// few, and very few while other providers take the mail.
	mostRefused = 3
	mostAlone   = 12
	mostUnknown = 360
)

// callSays is what the result of a call says about a provider.
type callSays int

const (
	saysNothing callSays = iota // no call was made, or the answer is about something else
	answered
	failedWhole   // it certainly accepted nothing
	failedUnknown // it may have accepted mail
)

// breakerState is the state of a breaker.
type breakerState int

const (
	breakerClosed breakerState = iota
	breakerProving
	breakerOpen
)

// state returns the state for mail that other providers take, or that none does.
func (b *breaker) state(now time.Time, alone bool) breakerState {
	switch {
	case now.Before(b.alone), !alone && now.Before(b.until):
		return breakerOpen
	case b.proving:
		return breakerProving
	}
	return breakerClosed
}

// allows reports whether a call may begin, and if not, when to try again.
func (b *breaker) allows(now time.Time, alone bool) (bool, time.Time) {
	switch b.state(now, alone) {
	case breakerOpen:
		if alone {
			return false, b.alone
		}
		return false, b.until
	case breakerProving:
		if b.probes >= probesAtOnce { // the pause grows while a probe hangs
			return false, now.Add(max(probePause, now.Sub(b.probed)))
		}
	case breakerClosed:
	}
	return true, time.Time{}
}

// probePause is the first pause of mail that waits for the answer to a probe.
const probePause = time.Second

// prove allows only single probes until one is answered. It is used after a suspension
// for another reason than failed calls of this worker.
func (b *breaker) prove(now time.Time) {
	if !b.proving {
		b.change(now)
		b.proving = true
	}
}

// again allows a probe at once, whatever was found before. Results of calls that began
// before are ignored.
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

// begin starts a call that is allowed and returns the call's turn.
func (b *breaker) begin(now time.Time) (turn int) {
	if b.proving {
		b.probes++
		b.probed = now
	}
	return b.turn
}

// end records the result of a call that began in a turn. It reports whether the state
// changed.
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

// open opens the breaker. The pause is longer than the last one if a probe failed, or if
// calls fail again soon after one was answered.
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
