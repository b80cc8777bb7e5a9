package dispatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/policy"
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
	View          *models.View
}

// resolve computes the view of a chunk from its entries and facts.
func (d *Dispatcher) resolve(c *Chunk) {
	now := func() { c.View = models.Resolve(c.Size, c.entries, c.facts) }
	if c.Lane == models.Urgent {
		now()
	} else {
		d.priority.Compute(now)
	}
}

// Summary returns the counts of the chunk.
func (c *Chunk) Summary() models.Summary {
	return c.View.SummaryOf(c.ID, c.Batch.Groups)
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

// LoadRecipients reads the recipients of a chunk unless it has them. They are most of
// the chunk's memory, so they are dropped whenever the chunk waits.
func (d *Dispatcher) LoadRecipients(ctx context.Context, c *Chunk) error {
	if c.Recipients != nil {
		return nil
	}
	rs, err := d.store.Recipients(ctx, c.ID)
	if err != nil {
		return err
	}
	if len(rs) != c.Size {
		return fmt.Errorf("%w: chunk of %d recipients holds %d", models.ErrInvalid, c.Size, len(rs))
	}
	c.Recipients = rs
	return nil
}

// Load reads the batch, entries and facts of a chunk, but not its recipients.
func (d *Dispatcher) Load(ctx context.Context, id models.ID) (*Chunk, error) {
	b, err := d.Batch(ctx, id.Batch())
	if err != nil {
		return nil, err
	}
	n := id.ChunkNumber()
	c := &Chunk{ID: id, Batch: b.OfChunk(n), Lane: b.Lane, Size: b.ChunkSize(n)}
	if c.Size == 0 {
		return nil, fmt.Errorf("%w: the batch has no chunk %d", models.ErrNotFound, n)
	}
	return c, d.Reload(ctx, c)
}

// Reload reads the entries and facts of a chunk again.
func (d *Dispatcher) Reload(ctx context.Context, c *Chunk) (err error) {
	c.read = time.Now()
	if c.entries, c.facts, err = d.store.Record(ctx, c.ID); err != nil {
		return err
	}
	d.resolve(c)
	return nil
}

// appendEndings appends the endings that are due. It reports whether it changed the
// ledger.
func (d *Dispatcher) appendEndings(ctx context.Context, c *Chunk, steps []policy.Step) (bool, error) {
	changed := false
	for i := range steps {
		st := &steps[i]
		if st.Do != policy.End || !d.confirmed(c, st, time.Now()) {
			continue
		}
		entry := models.Entry{
			Kind:       models.Ending,
			At:         time.Now().UTC(),
			Recipients: st.Recipients,
			Reason:     st.Reason,
			Detail:     models.Clip(st.Detail),
		}
		if o := st.Cancel; o != nil {
			entry.Kind, entry.Reason, entry.Command = models.Cancel, models.CancelledByRq, o.Number
			entry.Detail = models.Clip(o.Why)
		}
		err := d.appendEntry(ctx, c, entry)
		if conflict(err) {
			return true, d.Reload(ctx, c)
		}
		if err != nil {
			return changed, err
		}
		changed = true
		d.observer.Ended(&entry)
		d.log.Debug(
			"recipients ended",
			"chunk",
			c.ID.String(),
			"recipients",
			st.Recipients.Len(),
			"reason",
			string(st.Reason),
		)
	}
	return changed, nil
}

// endErased appends an ending for the recipients of a job's step whose address was erased, or the
// values of their mail, which in an envelope went with the address in To. It reports whether there
// were any.
func (d *Dispatcher) endErased(ctx context.Context, c *Chunk, j *job) (bool, error) {
	gone := models.ErasedRecipients(c.Recipients).And(j.Step.Recipients)
	if c.Batch.Envelope != nil && !j.Step.Together && c.Recipients[0].Erased() {
		gone = j.Step.Recipients
	}
	if gone.Empty() {
		return false, nil
	}
	entry := models.Entry{Kind: models.Ending, At: time.Now().UTC(), Recipients: gone, Reason: models.Erased}
	if j.Step.Doubt != "" { // a provider may have the mail
		entry.Reason, entry.Detail = j.Step.Doubt, models.Erased.Words()
	}
	err := d.appendEntry(ctx, c, entry)
	if conflict(err) {
		return true, d.Reload(ctx, c)
	}
	if err == nil {
		d.observer.Ended(&entry)
	}
	return true, err
}

// appendEntry appends an entry that leads to no call to the ledger and to c. If it is
// unknown whether the append succeeded, the next reconcile finds out.
func (d *Dispatcher) appendEntry(ctx context.Context, c *Chunk, entry models.Entry) error {
	ctx, cancel := context.WithTimeout(ctx, d.cfg.StartBy)
	defer cancel()
	entry.Number = c.View.NextNumber()
	entry.Token = models.NewToken()
	if err := d.store.Append(ctx, c.ID, entry); err != nil {
		return err
	}
	c.entries = append(c.entries, entry)
	d.resolve(c)
	return nil
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

// Batch reads a batch through a cache. A batch does not change before its content is
// due to be removed.
func (d *Dispatcher) Batch(ctx context.Context, id models.ID) (*models.Batch, error) {
	old := time.Since(id.Time()) > d.cfg.KeepContent
	if b, ok := d.batches.Get(id); ok && !old {
		return b, nil
	}
	if b, ok := d.large.Get(id); ok && !old {
		return b, nil
	}
	b, err := d.store.Batch(ctx, id)
	if err != nil {
		return nil, err
	}
	if len(b.Content.HTML)+len(b.Content.Text) > largeContent {
		d.large.Add(id, &b)
	} else {
		d.batches.Add(id, &b)
	}
	return &b, nil
}

// largeContent is the size in bytes above which few batches are cached.
const largeContent = 64 << 10

// confirmed reports whether an evidence window that has expired may end a log: not
// before every provider with look-ups has been queried late enough. It waits a day at
// most for their answers.
func (d *Dispatcher) confirmed(c *Chunk, st *policy.Step, now time.Time) bool {
	if st.Reason != models.OutcomeUnknown && st.Reason != models.NoFinalEvent ||
		!c.View.Status(st.Recipients.First()).Unsettled() {
		return true // the ending does not end an evidence window
	}
	return d.evidence.Answered(c, st, now)
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
