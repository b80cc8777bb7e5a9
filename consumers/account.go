package consumers

import (
	"context"
	"math"
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

	recipients, calls *rate.Limiter // nil: no limit
	perCall           int           // recipients per call

	mu       sync.Mutex
	credit   int // of the smooth weighted round robin
	counters Counters
}

// Counters count what this process did through one account.
type Counters struct {
	Calls     int64 `json:"calls"`
	Accepted  int64 `json:"accepted"` // recipients
	Refused   int64 `json:"refused"`  // recipients
	Unknown   int64 `json:"unknown"`  // recipients
	Inflight  int64 `json:"inflight"` // calls
	Delivered int64 `json:"delivered"`
	Failures  int64 `json:"failures"` // reported by events
}

func newAccount(a Account, cfg *Config) *account {
	perCall := a.Provider.MaxRecipients()
	if a.ChunkLimit > 0 {
		perCall = min(perCall, a.ChunkLimit)
	}
	if a.Rate > 0 {
		// A call may not hold more than a second's worth.
		perCall = min(perCall, max(1, int(a.Rate)))
	}
	acc := &account{Account: a, health: newHealth(a.Name, cfg), slots: newSlots(max(1, a.Concurrency)), perCall: max(1, perCall)}
	if a.Rate > 0 {
		acc.recipients = rate.NewLimiter(rate.Limit(a.Rate), max(acc.perCall, int(math.Ceil(a.Rate))))
	}
	if a.CallRate > 0 {
		acc.calls = rate.NewLimiter(rate.Limit(a.CallRate), max(1, int(math.Ceil(a.CallRate))))
	}
	return acc
}

// take asks the rates for one call of n recipients. It returns how long to wait
// when it is not allowed yet, and then takes nothing.
func (a *account) take(n int) time.Duration {
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

func (a *account) count(f func(*Counters)) {
	a.mu.Lock()
	f(&a.counters)
	a.mu.Unlock()
}

// slots are the calls that may run at once. A few are kept for urgent mail, so
// that bulk can never hold all of them.
type slots struct {
	shared, urgent chan struct{}
}

func newSlots(n int) *slots {
	keep := 0
	if n > 1 {
		keep = max(1, n/8)
	}
	return &slots{shared: make(chan struct{}, n-keep), urgent: make(chan struct{}, keep)}
}

// try takes a slot if one is free and returns how to give it back.
func (s *slots) try(l models.Lane) (release func(), ok bool) {
	select {
	case s.shared <- struct{}{}:
		return func() { <-s.shared }, true
	default:
	}
	if l == models.Urgent {
		select {
		case s.urgent <- struct{}{}:
			return func() { <-s.urgent }, true
		default:
		}
	}
	return nil, false
}

// acquire waits for a slot until ctx ends.
func (s *slots) acquire(ctx context.Context, l models.Lane) (release func(), err error) {
	urgent := s.urgent
	if l != models.Urgent {
		urgent = nil // a nil channel is never ready
	}
	select {
	case s.shared <- struct{}{}:
		return func() { <-s.shared }, nil
	case urgent <- struct{}{}:
		return func() { <-s.urgent }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
