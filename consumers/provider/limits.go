package provider

import (
	"context"
	"fmt"
	"math"
	"time"

	"golang.org/x/time/rate"

	"github.com/safedelivr/safedelivr/models"
)

// limit is one rate of a provider, of recipients or of calls. While mail of both
// lanes waits for it, each has a part of it, so that neither starves the other.
type limit struct {
	rate  float64 // of all workers together
	whole *rate.Limiter
	lanes [2]*rate.Limiter // urgent, bulk
	gate  *rate.Limiter    // of the same rate, for calls whose append is done
}

// newLimit makes a limit that nothing is saved up for: another process may have
// used it. nil: there is none.
func newLimit(perSecond float64) *limit {
	if perSecond <= 0 {
		return nil
	}
	none := func() *rate.Limiter { return rate.NewLimiter(0, 0) }
	return &limit{rate: perSecond, whole: none(), lanes: [2]*rate.Limiter{none(), none()}, gate: none()}
}

// set takes over a worker's part for a provider with so many slots; anew drops what
// was saved up before.
func (l *limit) set(part Share, slots int, anew bool) {
	if l == nil {
		return
	}
	now := time.Now()
	part.Size = min(part.Size, slots) // the others have no slot to use theirs with
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

// Portion is a worker's part of n things: those of all workers together are n.
func Portion(n int, p Share) int {
	out := n / p.Size
	if p.Rank < n%p.Size {
		out++
	}
	return out
}

// burst is what a worker may save up: a second's worth of its part, or one.
func burst(whole float64, p Share) int { return max(1, int(whole/float64(p.Size))) }

// Share is a worker's part of every provider's limits: one of size equal parts.
type Share struct {
	Size, Rank int
	Epoch      int64 // onChange when the worker joined anew: nothing saved up before counts
}

// Shares tells a provider how much of its limits this worker may use.
type Shares interface {
	// Share returns this worker's part, and false while it may use none.
	Share() (Share, bool)
	// MaxCalls returns how many of a provider's n concurrent calls this worker may
	// have running by its share.
	MaxCalls(provider string, n int, mine Share) int
}

// Ready takes over the worker's present share of the limits. It reports false
// while none may be used.
func (a *Provider) Ready() bool {
	part, ok := a.shares.Share()
	if !ok {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	slots := max(1, a.Concurrency)
	a.Slots.limit(a.shares.MaxCalls(a.Name, slots, part))
	if part == a.part {
		return true
	}
	anew := part.Epoch != a.part.Epoch || a.part.Size == 0
	a.part = part
	a.recipients.set(part, slots, anew)
	a.calls.set(part, slots, anew)
	return true
}

// AwaitReady waits until this worker may use its share, but no longer than a worker
// may be kept, and reports whether it may.
func (a *Provider) AwaitReady(ctx context.Context) bool {
	for until := time.Now().Add(mostWait); !a.Ready(); {
		if ctx.Err() != nil || time.Now().After(until) {
			return false
		}
		models.Pause(ctx, ReadyPoll)
	}
	return true
}

// waiters is who waits for the rates in a lane.
type waiters struct {
	here int       // workers of this process
	away time.Time // messages that come back until then
}

// waits notes that one more, or one less, waits in a lane.
func (a *Provider) waits(l models.Lane, n int, away time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	w := &a.waiters[laneNumber(l)]
	w.here += n
	w.away = models.LaterOf(w.away, away)
}

// ReadyPoll is how soon to ask again while the worker may not use its share.
const ReadyPoll = 250 * time.Millisecond

// Take asks the rates for one call of n recipients. It returns how long to wait
// when it is not allowed yet, and then takes nothing.
func (a *Provider) Take(l models.Lane, n int) (wait time.Duration) {
	if !a.Ready() {
		return ReadyPoll
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	asks, wait := a.asks(l, n, now)
	if wait == 0 {
		for _, k := range asks {
			k.of.ReserveN(now, k.n)
		}
	}
	return wait
}

// asks lists what a call wants of the rates, and how long they need to have it.
func (a *Provider) asks(l models.Lane, n int, now time.Time) (asks []ask, wait time.Duration) {
	other := &a.waiters[1-laneNumber(l)]
	contended := other.here > 0 || now.Before(other.away)
	asks = append(a.recipients.asks(l, n, contended), a.calls.asks(l, 1, contended)...)
	for _, k := range asks {
		wait = max(wait, k.wait(now))
	}
	return asks, wait
}

// Idle reports whether a call of n recipients, or of as many as it takes, could be
// made now, and nobody waits to make one.
func (a *Provider) Idle(l models.Lane, n int) bool {
	if !a.Ready() || !a.Slots.idle(l) {
		return false
	}
	now := time.Now()
	n = min(n, a.CallSize(now))
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.waiters {
		if a.waiters[i].here > 0 || now.Before(a.waiters[i].away) {
			return false
		}
	}
	_, wait := a.asks(l, n, now)
	return wait == 0
}

// ask is what a call wants of a limiter.
type ask struct {
	of *rate.Limiter
	n  int
}

// asks lists what a call wants of a limit: of its lane's part, too, while the
// other lane waits.
func (l *limit) asks(lane models.Lane, n int, contended bool) []ask {
	switch {
	case l == nil:
		return nil
	case contended:
		return []ask{{l.whole, n}, {l.lanes[laneNumber(lane)], n}}
	}
	return []ask{{l.whole, n}}
}

// wait is how long the limiter needs to have that much.
func (k ask) wait(now time.Time) time.Duration {
	missing := float64(k.n) - k.of.TokensAt(now)
	if missing <= 0 {
		return 0
	}
	if k.n > k.of.Burst() || k.of.Limit() <= 0 {
		return 2 * mostWait // the share has become smaller: the next try asks for less
	}
	return max(1, time.Duration(math.Ceil(missing/float64(k.of.Limit())*float64(time.Second))))
}

// mostWait is how long a worker is kept for the rates.
const mostWait = time.Second

// Await waits for the rates to allow one call of n recipients. Where that would
// take longer than a worker may be kept, it returns how long.
func (a *Provider) Await(ctx context.Context, l models.Lane, n int) (time.Duration, error) {
	wait := a.Take(l, n)
	if wait == 0 {
		return 0, nil
	}
	a.waits(l, 1, time.Time{})
	defer a.waits(l, -1, time.Time{})
	for {
		if wait > mostWait {
			a.waits(l, 0, time.Now().Add(wait+mostWait))
			return wait, nil
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return 0, fmt.Errorf("%w: stopping", models.ErrUnavailable)
		}
		if wait = a.Take(l, n); wait == 0 {
			return 0, nil
		}
	}
}

// Pass lets a call through that the rates allowed before its append. Where the store
// hung, the calls of many appends would all come at once: each waits for its turn, as
// long as it may begin at all. Where appends take as long as ever, no call waits.
func (a *Provider) Pass(ctx context.Context, n int, startBy time.Time) bool {
	for {
		wait := a.passes(n)
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

// passes takes what a call needs, or says how long to wait until it is there.
func (a *Provider) passes(n int) (wait time.Duration) {
	if a.recipients == nil && a.calls == nil {
		return 0
	}
	if !a.Ready() {
		return ReadyPoll
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	var asks []ask
	if a.recipients != nil {
		asks = append(asks, ask{a.recipients.gate, n})
	}
	if a.calls != nil {
		asks = append(asks, ask{a.calls.gate, 1})
	}
	for _, k := range asks {
		wait = max(wait, k.wait(now))
	}
	if wait == 0 {
		for _, k := range asks {
			k.of.ReserveN(now, k.n)
		}
	}
	return wait
}
