package consumers

import (
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// Provider is a provider with its adapter.
type Provider struct {
	models.Provider
	Adapter models.Adapter
}

// Provider is an Provider at work in this process: its slots, rates and health.
type provider struct {
	Provider
	health *health
	slots  *slots
	crew   *crew

	recipients, calls *limit // nil: none
	waiters           [2]waiters
	perCall           int // Recipients per call, as the provider and the configuration have it

	mu       sync.Mutex
	part     share // of the limits, as they were set last
	credit   int   // of the smooth weighted round robin
	counters telemetry.Counters
	latency  time.Duration // of calls, as they usually are; 0: not known
	pace     pace
}

// timed notes how long a call took.
func (a *provider) timed(took time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.latency == 0 {
		a.latency = took
	}
	a.latency += (took - a.latency) / 8
}

// usual is how long calls usually take.
func (a *provider) usual() time.Duration {
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

func newProvider(a Provider, cfg *Config, c *crew) *provider {
	perCall := a.Adapter.MaxRecipients()
	if a.ChunkLimit > 0 {
		perCall = min(perCall, a.ChunkLimit)
	}
	acc := &provider{Provider: a, health: newHealth(a.Name, a.Timeout, cfg), slots: newSlots(max(1, a.Concurrency)), crew: c, perCall: max(1, perCall)}
	acc.recipients, acc.calls = newLimit(a.Rate), newLimit(a.CallRate)
	return acc
}

// probeSize is how many recipients a call has when a provider comes back, at first.
const probeSize = 10

// callSize is how many recipients the next call may have: fewer while the provider
// comes back from trouble, and not more than the rate gives in half a second.
func (a *provider) callSize(now time.Time) int {
	n := a.health.callSize(a.perCall, now)
	if a.recipients != nil {
		n = min(n, max(1, a.recipients.whole.Burst()/2)) // a full bucket would run over while a call is made ready
	}
	return n
}

func (a *provider) count(f func(*telemetry.Counters)) {
	a.mu.Lock()
	f(&a.counters)
	a.mu.Unlock()
}
