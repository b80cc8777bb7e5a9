package consumers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/consumers/policy"
	"github.com/safedelivr/safedelivr/models"
)

// chunk is a chunk being worked on.
type chunk struct {
	id         models.ID
	batch      *models.Batch
	lane       models.Lane
	size       int
	recipients []models.Recipient // only while they are needed: see addressed
	passed     models.Set         // Recipients whose step was announced elsewhere
	missed     bool               // an announcement about it failed
	planned    planned            // by which orders its next steps were decided
	entries    []models.Entry
	facts      []models.Fact
	read       time.Time // before entries and facts were read
	view       *models.View
}

func (c *chunk) resolve() {
	now := func() { c.view = models.Resolve(c.size, c.entries, c.facts) }
	if c.lane == models.Urgent {
		now()
	} else {
		models.InBackground(now)
	}
}

// message completes a message about the chunk.
func (c *chunk) message(m models.Message) models.Message {
	if m.ID.IsZero() {
		m.ID = c.id
	}
	m.Lane = c.lane
	if m.Lane == "" {
		m.Lane = c.batch.Lane
	}
	return m
}

// addressed reads the recipients of a chunk, if it does not have them. They are
// most of its memory, so they are let go of whenever the chunk waits.
func (e *Engine) addressed(ctx context.Context, c *chunk) error {
	if c.recipients != nil {
		return nil
	}
	rs, err := e.store.Recipients(ctx, c.id)
	if err != nil {
		return err
	}
	if len(rs) != c.size {
		return fmt.Errorf("%w: chunk of %d recipients holds %d", models.ErrInvalid, c.size, len(rs))
	}
	c.recipients = rs
	return nil
}

// look reads what is known of a chunk, without its recipients.
func (e *Engine) look(ctx context.Context, id models.ID) (*chunk, error) {
	b, err := e.batch(ctx, id.Batch())
	if err != nil {
		return nil, err
	}
	c := &chunk{id: id, batch: b, lane: b.Lane, size: b.ChunkSize(id.ChunkNumber())}
	if c.size == 0 {
		return nil, fmt.Errorf("%w: the batch has no chunk %d", models.ErrNotFound, id.ChunkNumber())
	}
	return c, e.reload(ctx, c)
}

func (e *Engine) reload(ctx context.Context, c *chunk) (err error) {
	c.read = time.Now()
	if c.entries, c.facts, err = e.store.Record(ctx, c.id); err != nil {
		return err
	}
	c.resolve()
	return nil
}

// close appends the endings that are due. It reports whether it changed the
// ledger.
func (e *Engine) close(ctx context.Context, c *chunk, steps []policy.Step) (bool, error) {
	changed := false
	for i := range steps {
		st := &steps[i]
		if st.Do != policy.End || !e.proved(c, st, time.Now()) {
			continue
		}
		entry := models.Entry{Kind: models.Ending, At: time.Now().UTC(), Recipients: st.Who, Reason: st.Reason, Detail: models.Clip(st.Detail)}
		if o := st.Cancel; o != nil {
			entry.Kind, entry.Reason, entry.Detail, entry.Order = models.Cancel, models.CancelledByRq, models.Clip(o.Why), o.Number
		}
		err := e.append(ctx, c, entry)
		if conflict(err) {
			return true, e.reload(ctx, c)
		}
		if err != nil {
			return changed, err
		}
		changed = true
		e.metrics.ended(&entry)
		e.log.Debug("gave up", "chunk", c.id.String(), "recipients", st.Who.Len(), "reason", string(st.Reason))
	}
	return changed, nil
}

// append adds an entry that no call follows from to the ledger and to the chunk at
// hand. Should it not be known whether it stands, the next look tells.
func (e *Engine) append(ctx context.Context, c *chunk, entry models.Entry) error {
	ctx, cancel := context.WithTimeout(ctx, e.cfg.StartBy)
	defer cancel()
	entry.Number = c.view.NextNumber()
	entry.Token = models.NewToken()
	if err := e.store.Append(ctx, c.id, entry); err != nil {
		return err
	}
	c.entries = append(c.entries, entry)
	c.resolve()
	return nil
}

// wasCalled reports whether the answer to some call is known. A worker that has
// called has kept the chunk's fingerprints before.
func (c *chunk) wasCalled() bool {
	return slices.ContainsFunc(c.facts, func(f models.Fact) bool {
		return f.Outcome != nil && slices.ContainsFunc(f.Outcome.Parts, func(p models.Part) bool { return p.Reason != models.StartByPassed })
	})
}

func conflict(err error) bool {
	var ce *models.ConflictError
	return errors.As(err, &ce)
}
