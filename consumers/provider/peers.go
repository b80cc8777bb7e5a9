package provider

import (
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// This file has what workers report to each other of a provider, and how long they trust it.

// Finding is what stops a worker from using a provider.
type Finding struct {
	State  string        `json:"state"` // healthy, probing or suspended
	Source string        `json:"source,omitempty"`
	Why    string        `json:"why,omitempty"`
	Left   time.Duration `json:"left"` // how much longer it is suspended, from when it was written

	// Senders has the domains whose mail it refuses, and for how much longer. The
	// provider may be healthy otherwise.
	Senders map[string]time.Duration `json:"senders,omitempty"`

	// Most is how many recipients a call may have, and MostLeft for how much longer; 0: as many as usual.
	Most     int           `json:"most,omitempty"`
	MostLeft time.Duration `json:"most_left,omitempty"`

	// Probe is the number of the newest probe command that the worker had carried out
	// before.
	Probe int `json:"probe,omitempty"`
}

// Longest returns how long the longest suspension of the finding lasts.
func (f *Finding) Longest() time.Duration {
	most := max(f.Left, f.MostLeft)
	for _, left := range f.Senders {
		most = max(most, left)
	}
	return most
}

// aboutProvider reports whether a finding holds for every worker: the provider asked for
// a pause, or is silent, which is judged by the mail of all workers.
func (f *Finding) aboutProvider() bool {
	return f.State == telemetry.Suspended && (f.Source == telemetry.RetryAfter || f.Source == telemetry.Silence)
}

// trustFor returns how long a peer's finding is trusted. What the provider said itself is
// trusted for as long as it said; anything else may be the peer's own trouble.
func (f *Finding) trustFor(cfg *Config) time.Duration {
	switch {
	case f.State == telemetry.Probing:
		return 0 // the peer is probing, and so may this worker
	case f.aboutProvider():
		return f.Left
	}
	return min(f.Left, 2*cfg.BreakerOpen) + 2*cfg.Heartbeat // reports arrive late
}

// peerReport is a peer's report that the provider is unhealthy. It is trusted until a
// time. After that this worker probes the provider itself, and ignores further reports of
// the peer until the peer reports the provider healthy again.
type peerReport struct {
	Finding
	peer         string
	since, until time.Time
	ended        bool // it was trusted until its end
	gone         bool // the peer has left
}

// due reports whether the report is trusted no longer, and that was not noticed yet.
func (r *peerReport) due(now time.Time) bool { return !r.ended && !now.Before(r.until) }

func (r *peerReport) health() telemetry.Health {
	return telemetry.Health{
		State:  telemetry.Suspended,
		Source: r.Source,
		Why:    r.Why,
		Peer:   r.peer,
		Since:  r.since.UTC(),
		Until:  r.until.UTC(),
	}
}

// merge takes in a peer's finding that the provider is unhealthy, trusted for a time.
func (m *machine) merge(peer string, f *Finding, trust time.Duration, now time.Time) {
	m.tick(now)
	until := now.Add(trust)
	r := m.peers[peer]
	switch {
	case r == nil:
		r = &peerReport{peer: peer, since: now, until: until}
		m.peers[peer] = r
	case f.aboutProvider():
		if r.ended {
			r.since = now
		}
		r.until, r.ended = models.LaterOf(r.until, until), false
	}
	r.Finding, r.gone = *f, false
	if f.Source == telemetry.Silence && f.aboutProvider() {
		m.probation.on, m.silentUntil = true, models.LaterOf(m.silentUntil, r.until)
	}
}

// retract drops the report of a peer that reports the provider healthy.
func (m *machine) retract(peer string, now time.Time) {
	if r := m.peers[peer]; r != nil && !r.ended {
		m.recovered = now
	}
	delete(m.peers, peer)
}

// forget drops the report of a peer that has left, unless it is about the provider. That
// peer did not report the provider healthy, so this worker probes it.
func (m *machine) forget(peer string, now time.Time) {
	m.tick(now)
	r := m.peers[peer]
	switch {
	case r == nil:
		return
	case !r.ended && r.aboutProvider():
		r.gone = true
		return
	case !r.ended:
		r.until = now
		m.requireProbe(r.health(), false, now)
	}
	delete(m.peers, peer)
}
