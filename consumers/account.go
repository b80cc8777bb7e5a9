package consumers

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/safedelivr/safedelivr/models"
)

// Account is a provider account with its adapter.
type Account struct {
	models.Account
	Provider models.Provider
}

// account is an Account at work in this process: its slots, rates and health.
type account struct {
	Account
	health *health
	slots  *slots
	crew   *crew

	recipients, calls *rate.Limiter // nil: no limit
	perCall           int           // recipients per call, as the provider and the configuration have it

	mu       sync.Mutex
	part     share // of the limits, as they were set last
	credit   int   // of the smooth weighted round robin
	counters models.Counters
	latency  time.Duration // of calls, as they usually are; 0: not known
	pace     pace
}

// timed notes how long a call took.
func (a *account) timed(took time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.latency == 0 {
		a.latency = took
	}
	a.latency += (took - a.latency) / 8
}

// usual is how long calls usually take.
func (a *account) usual() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.latency
}

// pace counts the recipients that were accepted in each of the last seconds.
type pace [paceOver + 1]struct{ second, n int64 }

// paceOver is how many seconds a rate is taken over.
const paceOver = 5

func (p *pace) add(now time.Time, n int64) {
	s := &p[now.Unix()%int64(len(p))]
	if s.second != now.Unix() {
		s.second, s.n = now.Unix(), 0
	}
	s.n += n
}

// rate is recipients per second, over the last whole seconds.
func (p *pace) rate(now time.Time) float64 {
	sum := int64(0)
	for _, s := range p {
		if ago := now.Unix() - s.second; ago >= 1 && ago <= paceOver {
			sum += s.n
		}
	}
	return float64(sum) / paceOver
}

func newAccount(a Account, cfg *Config, c *crew) *account {
	perCall := a.Provider.MaxRecipients()
	if a.ChunkLimit > 0 {
		perCall = min(perCall, a.ChunkLimit)
	}
	acc := &account{Account: a, health: newHealth(a.Name, cfg), slots: newSlots(max(1, a.Concurrency)), crew: c, perCall: max(1, perCall)}
	// Nothing is saved up at the start: another process may have used it.
	if a.Rate > 0 {
		acc.recipients = rate.NewLimiter(0, 0)
	}
	if a.CallRate > 0 {
		acc.calls = rate.NewLimiter(0, 0)
	}
	return acc
}

// ready takes over the worker's present share of the limits. It reports false
// while none may be used.
func (a *account) ready() bool {
	part, ok := a.crew.share()
	if !ok {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if part == a.part {
		return true
	}
	anew := part.epoch != a.part.epoch || a.part.size == 0
	a.part = part
	a.slots.limit(portion(max(1, a.Concurrency), part))
	set := func(l *rate.Limiter, whole float64) {
		if l == nil {
			return
		}
		now := time.Now()
		l.SetLimitAt(now, rate.Limit(whole/float64(part.size)))
		l.SetBurstAt(now, burst(whole, part))
		if anew {
			l.ReserveN(now, int(max(0, l.TokensAt(now))))
		}
	}
	set(a.recipients, a.Rate)
	set(a.calls, a.CallRate)
	return true
}

// portion is a worker's part of n things: those of all workers together are n.
func portion(n int, p share) int {
	out := n / p.size
	if p.rank < n%p.size {
		out++
	}
	return out
}

// burst is what a worker may save up: a second's worth of its part, or one.
func burst(whole float64, p share) int { return max(1, int(whole/float64(p.size))) }

// probeSize is how many recipients a call has while an account is tried again.
const probeSize = 10

// callSize is how many recipients the next call may have: fewer while the
// account comes back from trouble, and not more than the rate gives in half a second.
func (a *account) callSize(now time.Time) int {
	n := a.perCall
	if r := a.health.recovered(now); r < 1 {
		n = min(n, max(probeSize, int(r*float64(n))))
	}
	if a.recipients != nil {
		n = min(n, max(1, a.recipients.Burst()/2)) // a full bucket would run over while a call is made ready
	}
	return n
}

// notReady is how soon to ask again while the worker may not use its share.
const notReady = 250 * time.Millisecond

// take asks the rates for one call of n recipients. It returns how long to wait
// when it is not allowed yet, and then takes nothing.
func (a *account) take(n int) time.Duration {
	if !a.ready() {
		return notReady
	}
	now := time.Now()
	var r1, r2 *rate.Reservation
	var wait time.Duration
	if a.recipients != nil {
		r1 = a.recipients.ReserveN(now, n)
		wait = r1.DelayFrom(now)
	}
	if a.calls != nil {
		r2 = a.calls.ReserveN(now, 1)
		wait = max(wait, r2.DelayFrom(now))
	}
	if wait > 0 {
		if r1 != nil {
			r1.CancelAt(now)
		}
		if r2 != nil {
			r2.CancelAt(now)
		}
	}
	return wait
}

func (a *account) count(f func(*models.Counters)) {
	a.mu.Lock()
	f(&a.counters)
	a.mu.Unlock()
}

// slots are the calls that may run at once. A few are kept for urgent mail, so
// that bulk can never hold all of them; and while bulk waits, urgent leaves it a
// share, so that it is never starved.
type slots struct {
	mu    sync.Mutex
	most  int
	used  int
	bulk  int           // of used
	wait  [2]int        // calls that wait: urgent, bulk
	turns int           // urgent calls since the last one of bulk
	came  chan struct{} // closed and replaced when a slot may be free
}

func newSlots(n int) *slots { return &slots{most: n, came: make(chan struct{})} }

// limit sets how many there are. Calls that run already end in peace.
func (s *slots) limit(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.most != n {
		s.most = n
		s.wake()
	}
}

func (s *slots) wake() {
	close(s.came)
	s.came = make(chan struct{})
}

// The parts of the slots that each lane has for itself.
const (
	urgentPart = 8 // one of so many is kept for urgent mail
	bulkPart   = 4 // one of so many is left to bulk while it waits
)

// onePart is n/of, and one at least if there are two.
func onePart(n, of int) int {
	if n > 1 {
		return max(1, n/of)
	}
	return 0
}

// free reports whether a call of a lane may begin.
func (s *slots) free(l models.Lane) bool {
	if s.most == 1 { // they take turns
		due := s.turns >= bulkPart-1
		if l != models.Urgent {
			return s.used == 0 && (due || s.wait[0] == 0)
		}
		return s.used == 0 && !(due && s.wait[1] > 0)
	}
	if l != models.Urgent {
		return s.used < s.most && s.bulk < s.most-onePart(s.most, urgentPart)
	}
	owed := 0
	if s.wait[1] > 0 {
		owed = max(0, onePart(s.most, bulkPart)-s.bulk)
	}
	return s.used < s.most-owed
}

// try takes a slot if one is free and returns how to give it back.
func (s *slots) try(l models.Lane) (release func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.free(l) {
		return nil, false
	}
	s.used++
	if l == models.Urgent {
		s.turns++
	} else {
		s.bulk++
		s.turns = 0
	}
	return func() { s.release(l) }, true
}

func (s *slots) release(l models.Lane) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used--
	if l != models.Urgent {
		s.bulk--
	}
	s.wake()
}

// acquire waits for a slot until ctx ends.
func (s *slots) acquire(ctx context.Context, l models.Lane) (release func(), err error) {
	lane := 1
	if l == models.Urgent {
		lane = 0
	}
	waiting := func(n int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.wait[lane] += n
		if n < 0 {
			s.wake() // others may have waited for this one's turn
		}
	}
	waiting(1)
	defer waiting(-1)
	for {
		s.mu.Lock()
		came := s.came
		s.mu.Unlock()
		if release, ok := s.try(l); ok {
			return release, nil
		}
		select {
		case <-came:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
