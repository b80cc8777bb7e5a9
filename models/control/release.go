package control

import (
	"slices"

	"github.com/safedelivr/safedelivr/models"
)

// Released returns the recipients of a chunk that a retry or release sends again.
func Released(v *models.View, c *models.Command) models.Set {
	return v.Where(func(r int, s *models.Status) bool {
		if s.State != models.Failed || s.OptedOut || !c.Names(r) ||
			c.Provider != "" && !mayBeAt(s, c.Provider) {
			return false
		}
		if c.Kind == models.RetryBatch {
			return retrySafe(v, r)
		}
		one := !c.Log.IsZero() && c.Logs.Empty()
		return s.Reason == models.OutcomeUnknown || s.Reason == models.NoFinalEvent || one && !s.Reason.Hard()
	})
}

// mayBeAt reports whether a provider may have the mail of a log.
func mayBeAt(s *models.Status, provider string) bool {
	return s.Last.Provider == provider || s.Accepted != nil && s.Accepted.Provider == provider
}

// retrySafe reports whether a retry of a failed recipient may succeed and cannot cause a
// second copy: every attempt is settled, and the recipient's failure is not permanent.
func retrySafe(v *models.View, r int) bool {
	s := v.Status(r)
	if s.State != models.Failed || s.Reason.Hard() || s.Reason == models.OutcomeUnknown ||
		s.Reason == models.NoFinalEvent {
		return false
	}
	safe := true
	v.EachTry(r, func(t *models.Try) { safe = safe && t.Verdict.Settled() })
	return safe
}

// Pending returns the retries and releases that reach a chunk and that its ledger does not contain yet, oldest first.
// An entry of the ledger contains all commands up to its own, because a worker applies them in order.
func (r *BatchRule) Pending(chunk models.ID, ledger []models.Entry) []models.Command {
	applied := 0
	for i := range ledger {
		if ledger[i].Kind == models.Release {
			applied = max(applied, ledger[i].Command)
		}
	}
	var out []models.Command
	for i := range r.Releases {
		if c := &r.Releases[i]; c.Number > applied && c.Reaches(chunk) {
			out = append(out, *c)
		}
	}
	return out
}

// OneEntry returns how many of the first commands in pending one entry of the ledger can
// contain: those of the same kind that give the same reason.
func OneEntry(pending []models.Command) int {
	n := slices.IndexFunc(pending, func(c models.Command) bool {
		return c.Kind != pending[0].Kind || c.Why != pending[0].Why
	})
	if n < 0 {
		return len(pending)
	}
	return n
}
