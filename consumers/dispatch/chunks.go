package dispatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

// Chunks reads chunks and their batches, and appends entries that lead to no call to their ledgers. It keeps
// batches, and the recipients of small batches that this process has just accepted. Its methods may be called
// concurrently.
type Chunks struct {
	cfg      Config
	store    Store
	follower *control.Follower
	batches  *batches
	recent   *recentlyAccepted
}

// NewChunks returns Chunks that have read nothing yet.
func NewChunks(cfg Config, store Store, follower *control.Follower) *Chunks {
	return &Chunks{cfg, store, follower, newBatches(), NewMemo[models.ID, acceptedChunk](recentBatches)}
}

// LoadRecipients reads the recipients of a chunk unless it has them. They are most of
// the chunk's memory, so they are dropped whenever the chunk waits.
func (cs *Chunks) LoadRecipients(ctx context.Context, c *Chunk) error {
	if c.Recipients != nil {
		return nil
	}
	rs, err := cs.store.Recipients(ctx, c.ID)
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
func (cs *Chunks) Load(ctx context.Context, id models.ID) (*Chunk, error) {
	b, err := cs.Batch(ctx, id.Batch())
	if err != nil {
		return nil, err
	}
	n := id.ChunkNumber()
	c := &Chunk{ID: id, Batch: b.OfChunk(n), Lane: b.Lane, Size: b.ChunkSize(n)}
	if c.Size == 0 {
		return nil, fmt.Errorf("%w: the batch has no chunk %d", models.ErrNotFound, n)
	}
	return c, cs.Reload(ctx, c)
}

// Reload reads the entries and facts of a chunk again.
func (cs *Chunks) Reload(ctx context.Context, c *Chunk) (err error) {
	c.read, c.fresh = time.Now(), false
	if c.entries, c.facts, err = cs.store.Record(ctx, c.ID); err != nil {
		return err
	}
	cs.resolve(c)
	return nil
}

// resolve computes the view of a chunk from its entries and facts.
func (cs *Chunks) resolve(c *Chunk) {
	now := func() { c.View = models.Resolve(c.Size, c.entries, c.facts) }
	if c.Lane == models.Urgent {
		now()
	} else {
		cs.cfg.Priority.Compute(now)
	}
}

// appendEntry appends an entry that leads to no call to the ledger and to c, and reports whether it did. If another
// worker took the number, it reads the chunk again instead. If it is unknown whether the append succeeded, the next
// reconcile finds out.
func (cs *Chunks) appendEntry(ctx context.Context, c *Chunk, entry models.Entry) (bool, error) {
	within, cancel := context.WithTimeout(ctx, cs.cfg.StartBy)
	defer cancel()
	entry.Number = c.View.NextNumber()
	entry.Token = models.NewToken()
	switch err := cs.store.Append(within, c.ID, entry); {
	case conflict(err):
		return false, cs.Reload(ctx, c)
	case err != nil:
		return false, err
	}
	c.entries = append(c.entries, entry)
	cs.resolve(c)
	return true, nil
}

// Batch reads a batch through a cache. A batch does not change before its content is
// due to be removed.
func (cs *Chunks) Batch(ctx context.Context, id models.ID) (*models.Batch, error) {
	old := time.Since(id.Time()) > cs.cfg.KeepContent
	if b, ok := cs.batches.get(id); ok && !old {
		return b, nil
	}
	b, err := cs.store.Batch(ctx, id)
	if err != nil {
		return nil, err
	}
	cs.batches.add(&b)
	return &b, nil
}

// SkipCorrupt returns err unless it says that a batch or chunk is missing, damaged, invalid
// or stored by a newer version of the program. Such an error is logged, and the batch or
// chunk is reconciled again later, so that it does not hold up others.
func (cs *Chunks) SkipCorrupt(id models.ID, err error) (Result, error) {
	if errors.Is(err, models.ErrNewer) {
		cs.cfg.Logger.Warn("skipped a batch or chunk for a newer process", "id", id.String(), "err", err)
		return Result{Announced: true}, nil
	}
	if !errors.Is(err, models.ErrDamaged) && !errors.Is(err, models.ErrInvalid) && !errors.Is(err, models.ErrNotFound) {
		return Result{}, err
	}
	cs.cfg.Logger.Error("skipped a corrupt batch or chunk; other mail is not affected", "id", id.String(), "err", err)
	return Result{Announced: true}, nil
}
