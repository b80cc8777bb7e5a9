package provider

import (
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// This file has what workers report to each other of a provider, and how long they trust it.

// Finding is what stops a worker from using a provider.
type Finding struct {
	State string        `json:"state"`
	Why   string        `json:"why,omitempty"`
	Left  time.Duration `json:"left"` // how much longer, from when it was written

	Silent bool `json:"silent,omitempty"` // it accepted mail and reported nothing

	// Senders has the domains whose mail it refuses, and for how much longer. The
	// provider may be healthy otherwise.
	Senders map[string]time.Duration `json:"senders,omitempty"`

	// Probe is the number of the newest probe command that the worker had carried out
	// before.
	Probe int `json:"probe,omitempty"`
}

// Longest returns how long the longest suspension of the finding lasts.
func (a *Finding) Longest() time.Duration {
	most := a.Left
	for _, left := range a.Senders {
		most = max(most, left)
	}
	return most
}

// peerReport is a peer's report that the provider is unhealthy. It is trusted until a
// time. After that this worker probes the provider itself, and ignores further reports of
// the peer until that reports the provider healthy again.
type peerReport struct {
	Finding
	until time.Time
	over  bool
	gone  bool // the peer has left
}

// aboutProvider reports whether a finding holds for every worker: the provider asked for
// a pause, or is silent, which is judged by the mail of all workers.
func (a *Finding) aboutProvider() bool { return a.State == telemetry.Slowed || a.Silent }

// peersUntil returns until when reports of peers suspend the provider. Reports whose trust
// has ended no longer count; this worker then probes the provider.
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

// Merge takes in a peer's finding about the provider; nil: the provider is healthy.
func (h *Health) Merge(worker string, a *Finding) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if a != nil && a.Probe < h.probe {
		a = nil // the finding is older than the probe command
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

// Restore merges the finding of a worker that may have left.
func (h *Health) Restore(worker string, a *Finding) {
	h.Merge(worker, a)
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.peers[worker]; t != nil {
		t.gone = true
	}
}

// Forget drops the report of a peer that has left. That peer did not report the provider
// healthy, so this worker probes it.
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

// trustFor returns how long a peer's finding is trusted. What the provider said itself is
// trusted for as long as it said; anything else may be the peer's own trouble.
func (h *Health) trustFor(a *Finding) time.Duration {
	switch {
	case a.State == telemetry.HalfOpen:
		return 0 // the peer is probing, and so may this worker
	case a.aboutProvider():
		return a.Left
	}
	return min(a.Left, 2*h.cfg.BreakerOpen) + 2*h.cfg.Heartbeat // reports arrive late
}

// Finding returns what peers should know, or nil while the provider is usable as far as
// this worker found out itself.
func (h *Health) Finding() *Finding {
	now := time.Now()
	h.mu.Lock()
	probe, silent := h.probe, h.silent &&
		now.Before(h.suspended.until) // checked before Own: at worst it is reported once more
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
