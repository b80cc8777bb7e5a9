package dispatch

import (
	"errors"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// Chunk is what a handler has read of one chunk.
type Chunk struct {
	ID            models.ID
	Batch         *models.Batch // as it is for the recipients of the chunk
	Lane          models.Lane
	Size          int
	Recipients    []models.Recipient // nil unless needed; see LoadRecipients
	requeued      models.Set         // Recipients whose step was announced elsewhere
	publishFailed bool               // a message about the chunk was not published
	planned       planned            // the commands by which its next steps were decided
	entries       []models.Entry
	facts         []models.Fact
	read          time.Time // just before entries and facts were read
	fresh         bool      // entries and facts were never read: this process has just accepted the batch
	erasures      int       // of a fresh chunk: see acceptedChunk
	saved         int       // how many of facts are stored
	View          *models.View
}

// Summary returns the counts of the chunk.
func (c *Chunk) Summary() models.Summary {
	return c.View.SummaryOf(c.ID, c.Batch.Groups)
}

// Counted reports whether the chunk need not be read to be counted: this process accepted it, and stored the outcome of
// its only call within maxStale. A process that stores an event or an entry during that call counts the chunk after it:
// see AwaitsOutcome.
func (c *Chunk) Counted() bool {
	return c.fresh && len(c.entries) == 1 && len(c.facts) == 1 && c.saved == 1 && time.Since(c.read) < maxStale
}

// LateOutcome is the longest time from the start of a handler until its chunk is counted without reading it.
const LateOutcome = maxStale

// AwaitsOutcome reports whether the chunk is small and the outcome of its first call is not stored, by a clock that may
// differ from that of the caller by slack. The process that calls may then count the chunk without reading it.
func (c *Chunk) AwaitsOutcome(now time.Time, slack time.Duration) bool {
	if c.Size > recentRecipients || len(c.entries) == 0 || c.entries[0].Kind != models.Attempt {
		return false
	}
	first := &c.entries[0]
	return now.Before(first.CallEnds.Add(slack)) && !slices.ContainsFunc(c.facts, func(f models.Fact) bool {
		return f.Outcome != nil && f.Outcome.Attempt == first.Number
	})
}

// message returns m with the chunk's id and lane filled in.
func (c *Chunk) message(m models.Message) models.Message {
	if m.ID.IsZero() {
		m.ID = c.ID
	}
	m.Lane = c.Lane
	if m.Lane == "" {
		m.Lane = c.Batch.Lane
	}
	return m
}

// wasCalled reports whether the answer to any call is known. If so, the chunk's
// addresses are indexed already.
func (c *Chunk) wasCalled() bool {
	return slices.ContainsFunc(c.facts, func(f models.Fact) bool {
		return f.Outcome != nil &&
			slices.ContainsFunc(f.Outcome.Parts, func(p models.Part) bool { return !p.Reason.Uncalled() })
	})
}

// conflict reports whether err says that another worker took the ledger number.
func conflict(err error) bool {
	var ce *models.ConflictError
	return errors.As(err, &ce)
}

// EventIDs returns the ids of the chunk's known events.
func (c *Chunk) EventIDs() map[string]bool {
	out := map[string]bool{}
	for i := range c.facts {
		for k := range c.facts[i].Events {
			out[c.facts[i].Events[k].ID] = true
		}
	}
	return out
}

// MayHave reports whether the outcome of an attempt for a recipient through a provider
// is unknown. Attempt 0 means any. It ignores what was decided meanwhile: a late event
// may prove that a held mail arrived, or that one was sent twice.
func (c *Chunk) MayHave(provider string, recipient, attempt int) (open bool) {
	c.View.EachTry(recipient, func(t *models.Try) {
		open = open || t.Provider == provider && !t.Verdict.Settled() && (attempt == 0 || t.Attempt == attempt)
	})
	return open
}
