package provider

import (
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// machine is the health of one provider as one worker knows it. The caller holds a lock
// and passes the time. Methods of the first part are queries and change nothing; those of
// the second part are the events.
//
//	event                              | next state
//	a call fails                       | failing, until a call succeeds
//	more calls fail, or a probe fails  | suspended (calls), longer after each failed probe
//	key or quota rejected              | suspended (rejected)
//	provider asks to wait              | suspended (retry_after)
//	accepts mail and reports nothing   | suspended (silence)
//	a peer reports one of these        | suspended, for as long as the peer is trusted
//	a suspension ends                  | probing; healthy or failing if the provider asked to wait
//	a peer reports it healthy          | without that peer's suspension
//	a probe is answered                | probation after silence, else healthy
//	the provider reports again         | without probation
//	an operator commands a probe       | probing, if it was suspended or probing
//	an operator drains it              | draining, if it was healthy
//	an operator takes it offline       | offline
//
// Several suspensions may be in effect at once. The one that ends last is shown.
type machine struct {
	breaker     breaker
	suspensions map[string]suspension  // what this worker found out, by source
	peers       map[string]*peerReport // what peers reported, by worker
	probe       probe
	probation   probation
	failures    failures // calls of this worker that failed since one succeeded

	silentUntil time.Time // end of the newest suspension for silence, by any worker
	changed     time.Time // when this worker's view last changed
	recovered   time.Time // when the provider last became usable again; zero: it always was
	command     int       // number of the newest probe command carried out
}

// suspension is a period without calls.
type suspension struct {
	source, why  string
	since, until time.Time
	sole         time.Time // earlier end for mail that no other provider takes; zero: there is none
}

// ends returns the end of the suspension. If sole, no other provider takes the mail.
func (s *suspension) ends(sole bool) time.Time {
	if sole && !s.sole.IsZero() {
		return s.sole
	}
	return s.until
}

func (s *suspension) health() telemetry.Health {
	return telemetry.Health{
		State:  telemetry.Suspended,
		Source: s.source,
		Why:    s.why,
		Since:  s.since.UTC(),
		Until:  s.until.UTC(),
	}
}

// probe is the state of probing: the provider gets one message at a time until it answers
// one.
type probe struct {
	required bool
	own      bool             // because of what this worker found out
	cause    telemetry.Health // why a probe is required
	running  int
	began    time.Time // when the newest probe began
	round    int       // results of calls that began in an earlier round are ignored
}

const (
	// probePause is the first pause of mail that waits for the answer to a probe.
	probePause = time.Second
	// probesAtOnce is the largest number of running probes.
	probesAtOnce = 1
)

func newMachine(first, lookBack time.Duration, now time.Time) machine {
	return machine{
		breaker:     breaker{first: first, lookBack: lookBack},
		suspensions: map[string]suspension{},
		peers:       map[string]*peerReport{},
		changed:     now,
	}
}

// usable reports whether mail may go to the provider, and if not, when to try again. If
// sole, no other provider takes the mail.
func (m *machine) usable(now time.Time, sole bool) (bool, time.Time) {
	var until time.Time
	for _, s := range m.suspensions {
		until = models.LaterOf(until, s.ends(sole))
	}
	for _, r := range m.peers {
		if !r.ended {
			until = models.LaterOf(until, r.until)
		}
	}
	if now.Before(until) {
		return false, until
	}
	if p := m.probing(now); p.required && p.running >= probesAtOnce {
		return false, now.Add(max(probePause, now.Sub(p.began))) // the pause grows while a probe hangs
	}
	if !m.probation.allows(probeSize, now) {
		return false, m.probation.renews
	}
	return true, time.Time{}
}

// probing returns the state of probing. A peer's report that is trusted no longer
// requires a probe.
func (m *machine) probing(now time.Time) probe {
	if m.probe.required {
		return m.probe
	}
	for _, r := range m.peers {
		if r.due(now) && r.Source != telemetry.RetryAfter {
			return probe{required: true, cause: r.health()}
		}
	}
	return m.probe
}

// own returns the health as this worker found it out itself.
func (m *machine) own(now time.Time) telemetry.Health {
	out := telemetry.Health{State: telemetry.Healthy, Since: m.changed.UTC()}
	for _, s := range m.suspensions {
		if now.Before(s.until) && s.until.After(out.Until) {
			out = s.health()
		} else if out.State == telemetry.Healthy {
			out.Since = models.LaterOf(out.Since, s.until.UTC())
		}
	}
	switch {
	case out.State == telemetry.Suspended:
	case m.probe.required && m.probe.own:
		return m.probe.health()
	case m.probation.on:
		out.State, out.Source = telemetry.Probation, telemetry.Silence
	}
	return out
}

// health returns the health as this worker and its peers find it.
func (m *machine) health(now time.Time) telemetry.Health {
	out := m.own(now)
	for _, r := range m.peers {
		if !r.ended && now.Before(r.until) && r.until.After(out.Until) {
			out = r.health()
		}
	}
	if p := m.probing(now); p.required && out.State != telemetry.Suspended {
		out = p.health()
	}
	if f := &m.failures; f.Calls > 0 {
		out.Failures, out.LastError = f.Calls, f.why
		if out.State == telemetry.Healthy {
			out.State, out.Source, out.Why, out.Since = telemetry.Failing, telemetry.CallsFailed, f.why, f.From
		}
	}
	return out
}

func (p *probe) health() telemetry.Health {
	return telemetry.Health{
		State:  telemetry.Probing,
		Source: p.cause.Source,
		Why:    p.cause.Why,
		Peer:   p.cause.Peer,
		Since:  p.cause.Until.UTC(),
	}
}

// callSize returns how many recipients, up to most, the next call may have: one until a
// probe is answered, then gradually more, up to most after full.
func (m *machine) callSize(most int, full time.Duration, now time.Time) int {
	from := m.recovered
	for _, s := range m.suspensions {
		from = models.LaterOf(from, s.until)
	}
	switch {
	case m.probing(now).required:
		return 1
	case m.probation.on:
		return min(most, probeSize)
	case from.IsZero():
		return most
	}
	part := min(1, max(0, float64(now.Sub(from))/float64(full)))
	return min(most, max(probeSize, int(part*float64(most))))
}

// tick carries out what time alone changes. Every event begins with it.
func (m *machine) tick(now time.Time) {
	for worker, r := range m.peers {
		if !r.due(now) {
			continue
		}
		r.ended = true
		if r.Source != telemetry.RetryAfter {
			m.requireProbe(r.health(), false, now)
		}
		if r.gone {
			delete(m.peers, worker)
		}
	}
}

// suspend suspends the provider for what this worker found out. Results of calls that
// began before are ignored, unless the provider only asked to wait.
func (m *machine) suspend(s suspension, now time.Time) {
	m.tick(now)
	s.since = now
	if old, ok := m.suspensions[s.source]; ok && now.Before(old.until) {
		s.since = old.since
	}
	m.suspensions[s.source] = s
	if s.source == telemetry.Silence {
		m.probation, m.silentUntil = probation{on: true}, models.LaterOf(m.silentUntil, s.until)
	}
	if s.source != telemetry.RetryAfter {
		m.nextRound(now)
		m.probe.required, m.probe.own, m.probe.cause = true, true, s.health()
	}
}

// requireProbe requires an answered probe, unless one is required already.
func (m *machine) requireProbe(cause telemetry.Health, own bool, now time.Time) {
	if !m.probe.required {
		m.nextRound(now)
		m.probe.required, m.probe.own, m.probe.cause = true, own, cause
	}
}

// nextRound makes the machine ignore the results of calls that have begun.
func (m *machine) nextRound(now time.Time) {
	m.probe = probe{round: m.probe.round + 1}
	m.breaker.reset()
	m.changed = now
}

// begin begins a call with n recipients, if it is allowed, and returns the call's round.
// The quota of the probation is renewed after a time.
func (m *machine) begin(n int, renewal time.Duration, now time.Time) (round int, ok bool) {
	m.tick(now)
	if ok, _ := m.usable(now, true); !ok || !m.probation.reserve(n, now, renewal) {
		return 0, false
	}
	if m.probe.required {
		m.probe.running++
		m.probe.began = now
	}
	return m.probe.round, true
}

// end records the result of a call that began in a round. It reports whether the state
// changed.
func (m *machine) end(round int, says callSays, why string, now time.Time) (changed bool) {
	m.tick(now)
	if round != m.probe.round {
		return false
	}
	probing := m.probe.required
	if probing {
		m.probe.running--
	}
	switch says {
	case saysNothing, failedSuspended:
		return false
	case answered:
		m.breaker.answered(now)
		if probing {
			m.recover(now)
		}
		return probing
	case failedWhole, failedUnknown:
	}
	if !m.breaker.failed(says, now) && !probing {
		return false
	}
	pause, sole := m.breaker.open(says, probing, now)
	m.suspend(suspension{source: telemetry.CallsFailed, why: why, until: now.Add(pause), sole: now.Add(sole)}, now)
	return true
}

// recover ends the probing after an answered probe.
func (m *machine) recover(now time.Time) {
	m.nextRound(now)
	m.breaker.closed, m.recovered = now, now
	delete(m.suspensions, telemetry.CallsFailed)
}

// report ends the probation, because the provider reports on its mail again.
func (m *machine) report(now time.Time) {
	if m.probation.on {
		m.probation, m.recovered = probation{}, now
	}
}

// probeNow carries out the probe command of a number, once: it ends every suspension and
// requires a probe. It reports whether there was anything to end.
func (m *machine) probeNow(command int, now time.Time) bool {
	m.tick(now)
	m.command = command
	was, own := m.health(now), m.own(now).State
	m.silentUntil = models.EarlierOf(m.silentUntil, now)
	m.probation.left, m.probation.renews = 0, time.Time{}
	clear(m.peers)
	if was.State != telemetry.Suspended && was.State != telemetry.Probing {
		return false
	}
	was.Until = now
	clear(m.suspensions)
	m.breaker.last = 0
	m.nextRound(now)
	m.probe.required, m.probe.cause = true, was
	m.probe.own = own == telemetry.Suspended || own == telemetry.Probing
	return true
}
