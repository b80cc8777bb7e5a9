package consumers

import (
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// What workers tell each other of a provider, and how far each believes it.

// teller is another worker that finds the provider ill. It is believed for a term:
// then this worker finds out for itself, and what the other goes on to say is of that
// one alone, until it finds the provider healthy again.
type teller struct {
	Ailment
	until time.Time
	over  bool
	gone  bool // Nothing more is heard of it
}

// ofAll reports whether an ailment is the provider's, whoever found it out: what the
// provider says, and silence, which is judged by the mail of all workers.
func (a *Ailment) ofAll() bool { return a.State == telemetry.Slowed || a.Silent }

// obey says until when other workers keep mail away. Who was believed for as long as
// it may be is no longer: this worker proves what it said.
func (h *health) obey(now time.Time) (until time.Time) {
	for worker, t := range h.tellers {
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
				delete(h.tellers, worker)
			}
		}
	}
	return until
}

// hear takes in what another worker says of the provider; nil: nothing bad.
func (h *health) hear(worker string, a *Ailment) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if a != nil && a.Probe < h.probe {
		a = nil // it found that out before
	}
	if a != nil {
		for domain, left := range a.Senders {
			h.heard.refuse(domain, now, now.Add(left))
		}
	}
	t := h.tellers[worker]
	if a == nil || a.State == telemetry.Healthy {
		if delete(h.tellers, worker); t != nil && !t.over {
			h.back = now
		}
		return
	}
	switch {
	case t == nil:
		t = &teller{until: now.Add(h.term(a))}
		h.tellers[worker] = t
	case a.ofAll():
		t.until, t.over = models.LaterOf(t.until, now.Add(h.term(a))), false
	}
	t.Ailment, t.gone = *a, false
	if a.Silent {
		h.trial.on, h.silentTo = true, models.LaterOf(h.silentTo, t.until)
	}
}

// recall takes in what a worker said of which nothing more may be heard.
func (h *health) recall(worker string, a *Ailment) {
	h.hear(worker, a)
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.tellers[worker]; t != nil {
		t.gone = true
	}
}

// lost forgets what a worker said of which nothing more is heard: it did not say that
// the provider is well again.
func (h *health) lost(worker string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.tellers[worker]
	switch {
	case t == nil:
		return
	case !t.over && t.ofAll(): // it does not go with who told of it
		t.gone = true
		return
	case !t.over:
		h.breaker.prove(time.Now())
	}
	delete(h.tellers, worker)
}

// term is how long another worker is believed. What is of the provider holds for as
// long as it says; anything else may be its own trouble.
func (h *health) term(a *Ailment) time.Duration {
	switch {
	case a.State == telemetry.HalfOpen:
		return 0 // it is proving; so does who hears it first now
	case a.ofAll():
		return a.Left
	}
	return min(a.Left, 2*h.cfg.BreakerOpen) + 2*h.cfg.Beat // it hears late
}

// ailment is what the other workers should know: nil while the provider is
// usable as far as this worker found out itself.
func (h *health) ailment() *Ailment {
	now := time.Now()
	h.mu.Lock()
	probe, silent := h.probe, h.silent && now.Before(h.shut.until) // before what is told: at most it is told once more
	h.mu.Unlock()
	r := h.own(now)
	refused := h.senders.left(now)
	if r.State != telemetry.Healthy {
		return &Ailment{State: r.State, Why: r.Why, Left: max(0, r.Until.Sub(now)), Silent: silent, Senders: refused, Probe: probe}
	}
	if len(refused) > 0 {
		return &Ailment{State: telemetry.Healthy, Senders: refused, Probe: probe}
	}
	return nil
}
