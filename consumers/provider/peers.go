package provider

import (
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// What workers tell each other of a provider, and how far each believes it.

// Finding is what keeps a worker from using a provider.
type Finding struct {
	State string        `json:"state"`
	Why   string        `json:"why,omitempty"`
	Left  time.Duration `json:"left"` // how much longer, from when it was written

	Silent bool `json:"silent,omitempty"` // it took mail and reported nothing

	// Senders whose mail it refuses, by domain, and how much longer each is kept
	// away; the provider may be healthy beside.
	Senders map[string]time.Duration `json:"senders,omitempty"`

	// Probe is the newest order to try the provider again that the worker obeyed
	// before it found this out.
	Probe int `json:"probe,omitempty"`
}

// Longest is when the last of what keeps mail away ends.
func (a *Finding) Longest() time.Duration {
	most := a.Left
	for _, left := range a.Senders {
		most = max(most, left)
	}
	return most
}

// peerReport is another worker that finds the provider ill. It is believed for a term:
// then this worker finds out for itself, and what the other goes on to say is of that
// one alone, until it finds the provider healthy again.
type peerReport struct {
	Finding
	until time.Time
	over  bool
	gone  bool // Nothing more is heard of it
}

// aboutProvider reports whether an ailment is the provider's, whoever found it out: what the
// provider says, and silence, which is judged by the mail of all workers.
func (a *Finding) aboutProvider() bool { return a.State == telemetry.Slowed || a.Silent }

// peersUntil says until when other workers keep mail away. Who was believed for as long as
// it may be is no longer: this worker proves what it said.
func (h *Health) peersUntil(now time.Time) (until time.Time) {
	for worker, t := range h.peers {
		switch {
		case t.over:
		case now.Before(t.until):
			until = models.LaterOf(until, t.until)
		case time.Now().Before(t.until): // it was asked about a time to come
		default:
			t.over = true
			if t.State != telemetry.Slowed {
				h.breaker.prove(now)
			}
			if t.gone {
				delete(h.peers, worker)
			}
		}
	}
	return until
}

// Merge takes in what another worker says of the provider; nil: nothing bad.
func (h *Health) Merge(worker string, a *Finding) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if a != nil && a.Probe < h.probe {
		a = nil // it found that out before
	}
	if a != nil {
		for domain, left := range a.Senders {
			h.peerSenders.refuse(domain, now, now.Add(left))
		}
	}
	t := h.peers[worker]
	if a == nil || a.State == telemetry.Healthy {
		if delete(h.peers, worker); t != nil && !t.over {
			h.back = now
		}
		return
	}
	switch {
	case t == nil:
		t = &peerReport{until: now.Add(h.trustFor(a))}
		h.peers[worker] = t
	case a.aboutProvider():
		t.until, t.over = models.LaterOf(t.until, now.Add(h.trustFor(a))), false
	}
	t.Finding, t.gone = *a, false
	if a.Silent {
		h.probation.on, h.silentTo = true, models.LaterOf(h.silentTo, t.until)
	}
}

// Restore takes in what a worker said of which nothing more may be heard.
func (h *Health) Restore(worker string, a *Finding) {
	h.Merge(worker, a)
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.peers[worker]; t != nil {
		t.gone = true
	}
}

// Forget forgets what a worker said of which nothing more is heard: it did not say that
// the provider is well again.
func (h *Health) Forget(worker string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.peers[worker]
	switch {
	case t == nil:
		return
	case !t.over && t.aboutProvider(): // it does not go with who told of it
		t.gone = true
		return
	case !t.over:
		h.breaker.prove(time.Now())
	}
	delete(h.peers, worker)
}

// trustFor is how long another worker is believed. What is of the provider holds for as
// long as it says; anything else may be its own trouble.
func (h *Health) trustFor(a *Finding) time.Duration {
	switch {
	case a.State == telemetry.HalfOpen:
		return 0 // it is proving; so does who hears it first now
	case a.aboutProvider():
		return a.Left
	}
	return min(a.Left, 2*h.cfg.BreakerOpen) + 2*h.cfg.Heartbeat // it hears late
}

// Finding is what the other workers should know: nil while the provider is
// usable as far as this worker found out itself.
func (h *Health) Finding() *Finding {
	now := time.Now()
	h.mu.Lock()
	probe, silent := h.probe, h.silent &&
		now.Before(h.suspended.until) // before what is told: at most it is told once more
	h.mu.Unlock()
	r := h.Own(now)
	refused := h.senders.left(now)
	if r.State != telemetry.Healthy {
		return &Finding{
			State:   r.State,
			Why:     r.Why,
			Left:    max(0, r.Until.Sub(now)),
			Silent:  silent,
			Senders: refused,
			Probe:   probe,
		}
	}
	if len(refused) > 0 {
		return &Finding{State: telemetry.Healthy, Senders: refused, Probe: probe}
	}
	return nil
}
