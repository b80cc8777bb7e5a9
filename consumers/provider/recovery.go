package provider

import (
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// Recovery says that a provider takes mail again.
type Recovery struct {
	From time.Time // when its calls began to fail; At, if that is not known
	At   time.Time // when the first call began that it answered afterwards
}

// SharedRecovery is the newest recovery that a worker saw itself, as it reports it to its peers. It names no time of a
// clock, because workers compare none.
type SharedRecovery struct {
	ID     int64         `json:"id"`     // the same for as long as it is the same recovery
	Ago    time.Duration `json:"ago"`    // since At, from when it was written
	Lasted time.Duration `json:"lasted"` // from From to At
}

// recoveries holds the newest recovery of a provider that this worker saw, and those that its peers saw.
type recoveries struct {
	own     Recovery
	peers   map[string]peerRecovery
	noticed time.Time // when this worker last learned of a recovery, or of a command to probe; zero: never
}

type peerRecovery struct {
	Recovery
	id int64
}

// answered records a call that began at a time and was answered. failed has the failures that it ended, if any. The
// first answer to this process counts as well: calls may have failed before it started.
func (r *recoveries) answered(began time.Time, failed *telemetry.FailedCalls, now time.Time) {
	switch {
	case failed.Calls > 0:
		r.own = Recovery{From: models.EarlierOf(failed.From, began), At: began}
	case r.own.At.IsZero():
		r.own = Recovery{From: began, At: began}
	default:
		return
	}
	r.noticed = now
}

// merge takes in what a peer reports. It reports whether that is a recovery that this worker does not know.
func (r *recoveries) merge(peer string, shared *SharedRecovery, now time.Time) bool {
	if shared == nil || r.peers[peer].id == shared.ID {
		return false
	}
	if r.peers == nil {
		r.peers = map[string]peerRecovery{}
	}
	at := now.Add(-shared.Ago)
	r.peers[peer] = peerRecovery{Recovery{From: at.Add(-shared.Lasted), At: at}, shared.ID}
	r.noticed = now
	return true
}

// forget keeps what a peer saw that has left, if it is the newest.
func (r *recoveries) forget(peer string) {
	if p := r.peers[peer]; p.At.After(r.own.At) {
		r.own = p.Recovery
	}
	delete(r.peers, peer)
}

// Recoveries returns the newest recoveries of the provider: the one that this worker saw, and those that peers saw.
func (h *Health) Recoveries() (all []Recovery) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.recoveries.own.At.IsZero() {
		all = append(all, h.recoveries.own)
	}
	for _, p := range h.recoveries.peers {
		all = append(all, p.Recovery)
	}
	return all
}

// shared returns the recovery that this worker reports to its peers; nil: there is none.
func (h *Health) shared(now time.Time) *SharedRecovery {
	h.mu.Lock()
	defer h.mu.Unlock()
	own := &h.recoveries.own
	if own.At.IsZero() {
		return nil
	}
	return &SharedRecovery{ID: own.At.UnixNano(), Ago: max(0, now.Sub(own.At)), Lasted: own.At.Sub(own.From)}
}

// mergeRecovery takes in the recovery that a peer reports. If the provider answered the peer after this worker
// suspended it for failed calls, this worker probes it now.
func (h *Health) mergeRecovery(peer string, shared *SharedRecovery) {
	now := time.Now()
	h.mu.Lock()
	changed := h.recoveries.merge(peer, shared, now) && h.machine.recoveredElsewhere(h.recoveries.peers[peer].At, now)
	h.mu.Unlock()
	if changed {
		h.onChange()
		h.cfg.Logger.Info("provider will be probed: it has answered another worker", "provider", h.name)
	}
}

// recoveredElsewhere ends the suspensions for failed calls and rejected keys that began before a peer's call that the
// provider answered, so that the next mail probes it. It reports whether there were any.
func (m *machine) recoveredElsewhere(at, now time.Time) (ended bool) {
	m.tick(now)
	for _, source := range []string{telemetry.CallsFailed, telemetry.Rejected} {
		if s, ok := m.suspensions[source]; ok && now.Before(s.until) && s.since.Before(at) {
			s.until, s.sole = now, now
			m.suspensions[source] = s
			ended = true
		}
	}
	return ended
}

// Recovered returns the newest recovery of each provider that this worker saw, for its peers.
func (ps *Set) Recovered() map[string]SharedRecovery {
	out, now := map[string]SharedRecovery{}, time.Now()
	for _, p := range ps.list {
		if r := p.Health.shared(now); r != nil {
			out[p.Name] = *r
		}
	}
	return out
}

// MergeRecovered merges the recoveries that a peer saw.
func (ps *Set) MergeRecovered(peer string, seen map[string]SharedRecovery) {
	for _, p := range ps.list {
		if r, ok := seen[p.Name]; ok {
			p.Health.mergeRecovery(peer, &r)
		}
	}
}

// RecoveryNoticed returns when this worker last learned that a provider takes mail again, or may do so because an
// operator has it probed; zero: never.
func (ps *Set) RecoveryNoticed() (last time.Time) {
	for _, p := range ps.list {
		p.Health.mu.Lock()
		last = models.LaterOf(last, p.Health.recoveries.noticed)
		p.Health.mu.Unlock()
	}
	return last
}
