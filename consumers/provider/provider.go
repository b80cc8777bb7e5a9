// Package provider says whether a provider may take mail now: by its rates, its
// concurrency slots, its health, and whether it reports on its mail.
package provider

import (
	"errors"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// Spec is a provider with its adapter.
type Spec struct {
	models.Provider
	Adapter models.Adapter
}

// Provider is a provider in this process: its adapter, slots, rates and health.
type Provider struct {
	Spec
	Health *Health
	Slots  *slots
	Memory *memory
	shares Shares

	limits  []*limit
	waiters [2]waiters
	perCall int // recipients per call, by the provider and the configuration

	mu       sync.Mutex
	part     Share // of the limits, as last applied
	credit   int   // of the smooth weighted round robin
	counters telemetry.Counters
	latency  time.Duration // usual duration of calls; 0: not known
	pace     pace
}

// Account names the account at a provider with idempotency keys, which only that account knows; "" at others.
func (p *Provider) Account() string {
	if keyed, ok := p.Adapter.(interface{ Account() string }); ok {
		return keyed.Account()
	}
	return ""
}

// RecordLatency records how long a call took.
func (p *Provider) RecordLatency(took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.latency == 0 {
		p.latency = took
	}
	p.latency += (took - p.latency) / 8
}

// Latency returns how long calls usually take.
func (p *Provider) Latency() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.latency
}

// pace counts the recipients accepted in each of the last seconds.
type pace [paceOver + 1]struct{ second, n int64 }

// paceOver is the number of seconds over which a rate is computed.
const paceOver = 5

func (p *pace) add(now time.Time, n int64) {
	s := &p[now.Unix()%int64(len(p))]
	if s.second != now.Unix() {
		s.second, s.n = now.Unix(), 0
	}
	s.n += n
}

// rate returns recipients per second, over the last whole seconds.
func (p *pace) rate(now time.Time) float64 {
	sum := int64(0)
	for _, s := range p {
		if ago := now.Unix() - s.second; ago >= 1 && ago <= paceOver {
			sum += s.n
		}
	}
	return float64(sum) / paceOver
}

// newProvider returns a provider at work, with its share of the limits.
func newProvider(spec Spec, cfg *Config, s Shares) *Provider {
	perCall := spec.Adapter.MaxRecipients()
	if spec.ChunkLimit > 0 {
		perCall = min(perCall, spec.ChunkLimit)
	}
	return &Provider{
		Spec:    spec,
		Health:  newHealth(spec.Name, spec.Timeout, cfg),
		Slots:   newSlots(max(1, spec.Concurrency)),
		shares:  s,
		limits:  limitsOf(&spec.Provider),
		perCall: max(1, perCall),
	}
}

// probeSize is the first size of calls to a provider that recovers, in recipients.
const probeSize = 10

// CallSize returns how many recipients the next call may have. It is lower while the provider recovers, and at most
// what the provider takes now and the rate gives in half a second.
func (p *Provider) CallSize(now time.Time) int {
	n := p.Health.callSize(p.perCall, now)
	for _, l := range p.limits {
		if !l.calls {
			n = min(n, max(1, l.whole.Burst()/2)) // a full bucket would overflow while a call is prepared
		}
	}
	return n
}

// Count changes the counters of the provider.
func (p *Provider) Count(f func(*telemetry.Counters)) {
	p.mu.Lock()
	f(&p.counters)
	p.mu.Unlock()
}

// CountAnswer counts a call that was made, by the classes of its answer.
func (p *Provider) CountAnswer(parts []models.Part) {
	p.Count(func(n *telemetry.Counters) {
		n.Calls++
		for i := range parts {
			k := int64(parts[i].Recipients.Len())
			switch parts[i].Class { // all others accepted nothing
			case models.Accepted:
				n.Accepted += k
				p.pace.add(time.Now(), k)
			case models.Unknown:
				n.Unknown += k
			default:
				n.Refused += k
			}
		}
	})
}

// State returns what this worker knows of the provider, except its health.
func (p *Provider) State(now time.Time) telemetry.ProviderState {
	calls := p.Slots.Waiting(models.Urgent)+p.Slots.Waiting(models.Bulk) > 0
	p.mu.Lock()
	defer p.mu.Unlock()
	return telemetry.ProviderState{
		Name:     p.Name,
		Counters: p.counters,
		Rate:     p.pace.rate(now),
		Answers:  p.latency,
		Limit:    p.limitOf(calls, now),
	}
}

// limitOf returns the limit that mail waits for, or "". calls says that calls wait for a slot.
func (p *Provider) limitOf(calls bool, now time.Time) string {
	for i := range p.waiters {
		if p.waiters[i].here > 0 || now.Before(p.waiters[i].away) {
			return telemetry.RateLimit
		}
	}
	if calls {
		return telemetry.ConcurrencyLimit
	}
	return ""
}

// RoundRobin chooses one of the providers by their weights, by nginx's smooth weighted
// round robin. It updates their credits.
func RoundRobin(among []*Provider) *Provider {
	total := 0
	var best *Provider
	bestCredit := 0
	for _, p := range among {
		w := max(1, p.Weight)
		total += w
		p.mu.Lock()
		p.credit += w
		if best == nil || p.credit > bestCredit {
			best, bestCredit = p, p.credit
		}
		p.mu.Unlock()
	}
	best.mu.Lock()
	best.credit -= total
	best.mu.Unlock()
	return best
}

// Set holds the providers of this process, in order of configuration.
type Set struct {
	list   []*Provider
	byName map[string]*Provider
}

// NewSet builds the providers. It fails if a name is invalid or not unique.
func NewSet(specs []Spec, cfg *Config, s Shares) (*Set, error) {
	set := &Set{byName: map[string]*Provider{}}
	for _, spec := range specs {
		if !models.ValidProviderName(spec.Name) || set.byName[spec.Name] != nil {
			return nil, errors.New("consumers: provider name " + spec.Name + " is not valid or not unique")
		}
		p := newProvider(spec, cfg, s)
		p.Memory = newMemory(cfg.AttachmentMemory, len(specs))
		p.Health.isSlow = func(took time.Duration) bool { return set.slowBesideOthers(p, cfg.SlowCall, took) }
		set.list = append(set.list, p)
		set.byName[spec.Name] = p
	}
	return set, nil
}

// slowBesideOthers reports whether a call took so long that other providers are better
// for the mail. If all providers are slow, it reports false.
func (ps *Set) slowBesideOthers(mine *Provider, least, took time.Duration) bool {
	if took < least {
		return false
	}
	for _, p := range ps.list {
		if ok, _ := p.Health.usable(time.Now()); p != mine && ok && p.Latency() > 0 && p.Latency() < took/4 {
			return true
		}
	}
	return false
}

// All returns the providers in order of configuration.
func (ps *Set) All() []*Provider { return ps.list }

// Get returns the provider of a name, or nil if there is none.
func (ps *Set) Get(name string) *Provider { return ps.byName[name] }

// Findings returns what stops this worker from using providers, by name.
func (ps *Set) Findings() map[string]Finding {
	out := map[string]Finding{}
	for _, p := range ps.list {
		if f := p.Health.Finding(); f != nil {
			out[p.Name] = *f
		}
	}
	return out
}

// Merge merges a peer's findings about the providers.
func (ps *Set) Merge(peer string, found map[string]Finding) {
	for _, p := range ps.list {
		if f, ok := found[p.Name]; ok {
			p.Health.Merge(peer, &f)
		} else {
			p.Health.Merge(peer, nil)
		}
	}
}

// Forget drops the reports of a peer that has left.
func (ps *Set) Forget(peer string) {
	for _, p := range ps.list {
		p.Health.Forget(peer)
	}
}

// Running returns the number of this worker's running calls, by provider.
func (ps *Set) Running() map[string]int {
	out := make(map[string]int, len(ps.list))
	for _, p := range ps.list {
		out[p.Name] = p.Slots.Running()
	}
	return out
}

// OnChange sets a function that is called when this worker's view of a provider's health
// changes.
func (ps *Set) OnChange(f func()) {
	for _, p := range ps.list {
		p.Health.onChange = f
	}
}

// Probe carries out the newest probe commands. newest returns the number of the newest one
// for a provider; 0: there is none.
func (ps *Set) Probe(newest func(provider string) int) {
	for _, p := range ps.list {
		if n := newest(p.Name); n > 0 {
			p.Health.Probe(n)
		}
	}
}
