package evidence

import (
	"time"

	"github.com/safedelivr/safedelivr/consumers/dispatch"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/policy"
)

// giveUp is how long after its evidence window an attempt waits for the answer of a
// provider.
const giveUp = 24 * time.Hour

// margin extends the span of a look-up, because clocks differ.
const margin = time.Minute

// Answered implements dispatch.Evidence. It requests the look-ups that are missing.
func (l *Lookups) Answered(c *dispatch.Chunk, st *policy.Step, now time.Time) bool {
	all := true
	c.View.EachTry(st.Recipients.First(), func(t *models.Try) {
		if !t.Verdict.Settled() && (t.Verdict == models.VerdictAccepted) == (st.Reason == models.NoFinalEvent) {
			all = l.tryAnswered(c, t, now) && all
		}
	})
	return all
}

// tryAnswered reports whether the provider of one attempt was queried late enough, or has
// no events API. If not, it requests and expedites the look-up.
func (l *Lookups) tryAnswered(c *dispatch.Chunk, t *models.Try, now time.Time) bool {
	api := l.eventLookup(t.Provider)
	if api == nil {
		return true
	}
	entry := c.View.Entry(t.Attempt)
	ended := c.View.CallEnded(t)
	end := ended.Add(l.Policy.EvidenceWindow(t.Provider))
	lateEnough := models.EarlierOf(end, ended.Add(api.LookupLag()))
	if t.Verdict == models.VerdictAccepted {
		end = t.At.Add(l.cfg.FinalEvent)
		lateEnough = end.Add(-min(time.Hour, l.cfg.FinalEvent/4))
	}
	if now.After(end.Add(giveUp)) {
		return true
	}
	answered := l.request(t.Provider, c.ID, t.Attempt, entry.At.Add(-margin), end, ended.Add(nearby))
	if !answered.Before(lateEnough) {
		return true
	}
	l.expedite(t.Provider, c.ID, now)
	return false
}

// MayEndSoon implements dispatch.Evidence. A wait may end early by the answer to a call
// that is running, which only its worker receives, or by an event that a look-up finds.
// MayEndSoon requests that look-up.
func (l *Lookups) MayEndSoon(c *dispatch.Chunk, st *policy.Step, now time.Time) bool {
	s := c.View.Status(st.Recipients.First())
	if !s.Unsettled() || s.Last.Verdict == models.VerdictAccepted {
		return false
	}
	provider, entry := s.Last.Provider, c.View.Entry(s.Last.Attempt)
	if s.Last.Verdict == models.VerdictPending && now.Before(entry.CallEnds) {
		return true
	}
	ended := c.View.CallEnded(&s.Last)
	if l.eventLookup(provider) == nil || !now.Before(ended.Add(l.Policy.EvidenceWindow(provider))) {
		return false
	}
	l.request(provider, c.ID, s.Last.Attempt, entry.At.Add(-margin), ended, ended.Add(nearby))
	return true
}
