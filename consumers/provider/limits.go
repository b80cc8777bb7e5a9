package provider

import (
	"context"
	"fmt"
	"math"
	"time"

	"golang.org/x/time/rate"

	"github.com/safedelivr/safedelivr/models"
)

// limit is one rate of a provider, of recipients or of calls. While mail of both lanes waits, each lane has a part of
// it, so that neither starves the other.
type limit struct {
	rate  float64 // of all workers together
	calls bool    // a call takes one token, not one per recipient
	whole *rate.Limiter
	lanes [2]*rate.Limiter // urgent, bulk
	gate  *rate.Limiter    // of the same rate, for calls whose append is done
}

// limitsOf returns the limits of a provider.
func limitsOf(p *models.Provider) []*limit {
	var out []*limit
	for _, l := range []limit{{rate: p.Rate}, {rate: p.CallRate, calls: true}} {
		if l.rate > 0 {
			out = append(out, newLimit(l))
		}
	}
	return out
}

// newLimit returns a limit without saved-up tokens, because another process may have used them.
func newLimit(l limit) *limit {
	none := func() *rate.Limiter { return rate.NewLimiter(0, 0) }
	l.whole, l.lanes, l.gate = none(), [2]*rate.Limiter{none(), none()}, none()
	return &l
}

// Load is what a call takes of the limits. A whole call is not divided, so that it may have more recipients than a
// worker may save up. It then waits until all is saved up, and what it exceeds is waited for before the next call.
type Load struct {
	Recipients int
	Whole      bool
}

// tokens returns how many tokens a call takes.
func (l *limit) tokens(call Load) int {
	if l.calls {
		return 1
	}
	return call.Recipients
}

// set applies a worker's share for a provider with so many slots. anew drops saved-up tokens.
func (l *limit) set(part Share, slots int, anew bool) {
	now := time.Now()
	part.Size = min(part.Size, slots) // peers without a slot cannot use their share
	mine := l.rate / float64(part.Size)
	for lane, share := range [2]float64{bulkPart - 1, 1} {
		l.lanes[lane].SetLimitAt(now, rate.Limit(mine*share/bulkPart))
		l.lanes[lane].SetBurstAt(now, burst(l.rate, part))
	}
	for _, whole := range []*rate.Limiter{l.whole, l.gate} {
		whole.SetLimitAt(now, rate.Limit(mine))
		whole.SetBurstAt(now, burst(l.rate, part))
		if anew {
			whole.ReserveN(now, int(max(0, whole.TokensAt(now))))
		}
	}
}

// Portion returns a share of n things. The portions of all workers add up to n.
func Portion(n int, p Share) int {
	out := n / p.Size
	if p.Rank < n%p.Size {
		out++
	}
	return out
}

// burst returns what a worker may save up: its share of a second, but at least one.
func burst(whole float64, p Share) int { return max(1, int(whole/float64(p.Size))) }

// Share is a worker's share of every provider's limits: one of Size equal parts.
type Share struct {
	Size, Rank int
	Epoch      int64 // changes when the worker joins again: tokens saved up before do not count
}

// Shares says how much of a provider's limits this worker may use.
type Shares interface {
	// Share returns this worker's share, and false while it may use none.
	Share() (Share, bool)
	// MaxCalls returns how many of a provider's n concurrent calls this worker may use by its share.
	MaxCalls(provider string, n int, mine Share) int
}

// Ready applies the worker's present share of the limits. It reports false while the worker may use none.
func (p *Provider) Ready() bool {
	part, ok := p.shares.Share()
	if !ok {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	slots := max(1, p.Concurrency)
	p.Slots.limit(p.shares.MaxCalls(p.Name, slots, part))
	if part == p.part {
		return true
	}
	anew := part.Epoch != p.part.Epoch || p.part.Size == 0
	p.part = part
	for _, l := range p.limits {
		l.set(part, slots, anew)
	}
	return true
}

// AwaitReady waits until this worker may use its share, but no longer than mostWait, and reports whether it may.
func (p *Provider) AwaitReady(ctx context.Context) bool {
	for until := time.Now().Add(mostWait); !p.Ready(); {
		if ctx.Err() != nil || time.Now().After(until) {
			return false
		}
		models.Pause(ctx, ReadyPoll)
	}
	return true
}

// waiters counts what waits for the rates in a lane.
type waiters struct {
	here int       // handlers of this process
	away time.Time // requeued messages are expected until then
}

// waits notes that n more wait in a lane.
func (p *Provider) waits(l models.Lane, n int, away time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := &p.waiters[laneNumber(l)]
	w.here += n
	w.away = models.LaterOf(w.away, away)
}

// ReadyPoll is how often to check while the worker may not use its share.
const ReadyPoll = 250 * time.Millisecond

// Take takes the tokens for one call. If the rates do not allow the call
// yet, it takes nothing and returns how long to wait.
func (p *Provider) Take(l models.Lane, call Load) (wait time.Duration) {
	if !p.Ready() {
		return ReadyPoll
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	asks, wait := p.asks(l, call, now)
	if wait == 0 {
		for _, k := range asks {
			k.take(now)
		}
	}
	return wait
}

// asks returns the tokens that a call needs, and how long it takes until they are there.
func (p *Provider) asks(l models.Lane, call Load, now time.Time) (asks []ask, wait time.Duration) {
	other := &p.waiters[1-laneNumber(l)]
	contended := other.here > 0 || now.Before(other.away)
	for _, limit := range p.limits {
		asks = append(asks, ask{limit.whole, limit.tokens(call), call.Whole})
		if contended { // the lane has a part of its own
			asks = append(asks, ask{limit.lanes[laneNumber(l)], limit.tokens(call), call.Whole})
		}
	}
	for _, k := range asks {
		wait = max(wait, k.wait(now))
	}
	return asks, wait
}

// Idle reports whether a call, or one with as many recipients as the provider takes, could begin now while no other
// call waits.
func (p *Provider) Idle(l models.Lane, call Load) bool {
	if !p.Ready() || !p.Slots.idle(l) {
		return false
	}
	now := time.Now()
	if !call.Whole {
		call.Recipients = min(call.Recipients, p.CallSize(now))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.waiters {
		if p.waiters[i].here > 0 || now.Before(p.waiters[i].away) {
			return false
		}
	}
	_, wait := p.asks(l, call, now)
	return wait == 0
}

// ask is what a call needs of a limiter.
type ask struct {
	of    *rate.Limiter
	n     int
	whole bool // n may exceed what the limiter can hold
}

// wait returns how long it takes until the limiter has the tokens.
func (k ask) wait(now time.Time) time.Duration {
	if k.whole {
		k.n = min(k.n, max(1, k.of.Burst()))
	}
	missing := float64(k.n) - k.of.TokensAt(now)
	if missing <= 0 {
		return 0
	}
	if k.n > k.of.Burst() || k.of.Limit() <= 0 {
		return 2 * mostWait // the share has shrunk: the next try asks for less
	}
	return max(1, time.Duration(math.Ceil(missing/float64(k.of.Limit())*float64(time.Second))))
}

// take takes the tokens.
func (k ask) take(now time.Time) {
	for most := max(1, k.of.Burst()); k.n > 0; k.n -= most {
		k.of.ReserveN(now, min(k.n, most))
	}
}

// mostWait is how long a handler may block for the rates.
const mostWait = time.Second

// Await waits for the rates to allow one call. If that would take longer
// than mostWait, it returns how long.
func (p *Provider) Await(ctx context.Context, l models.Lane, call Load) (time.Duration, error) {
	wait := p.Take(l, call)
	if wait == 0 {
		return 0, nil
	}
	p.waits(l, 1, time.Time{})
	defer p.waits(l, -1, time.Time{})
	for {
		if wait > mostWait {
			p.waits(l, 0, time.Now().Add(wait+mostWait))
			return wait, nil
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return 0, fmt.Errorf("%w: stopping", models.ErrUnavailable)
		}
		if wait = p.Take(l, call); wait == 0 {
			return 0, nil
		}
	}
}

// Pass waits until a call may begin whose tokens were taken before its append, up to startBy. If the store hung, the
// calls of many appends would otherwise begin at once. If appends take as long as usual, no call waits.
func (p *Provider) Pass(ctx context.Context, call Load, startBy time.Time) bool {
	for {
		wait := p.passes(call)
		if wait == 0 {
			return true
		}
		if !time.Now().Add(wait).Before(startBy) {
			return false
		}
		if models.Pause(ctx, wait); ctx.Err() != nil {
			return false
		}
	}
}

// passes takes the tokens of a call, or returns how long to wait for them.
func (p *Provider) passes(call Load) (wait time.Duration) {
	if len(p.limits) == 0 {
		return 0
	}
	if !p.Ready() {
		return ReadyPoll
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	asks := make([]ask, 0, len(p.limits))
	for _, l := range p.limits {
		asks = append(asks, ask{l.gate, l.tokens(call), call.Whole})
	}
	for _, k := range asks {
		wait = max(wait, k.wait(now))
	}
	if wait == 0 {
		for _, k := range asks {
			k.take(now)
		}
	}
	return wait
}
