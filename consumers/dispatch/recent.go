package dispatch

import (
	"context"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/safedelivr/safedelivr/models"
)

// recent holds small batches that this process has just accepted, until the first
// message about them comes: what was stored a moment ago need not be read, and
// nothing is recorded yet. If that is wrong, because another worker was quicker,
// the first append to the ledger says so.
type recentlyAccepted = lru.Cache[models.ID, []models.Recipient]

// What is held, so that it costs little memory.
const (
	recentBatches    = 512
	recentRecipients = 16
	recentContent    = 16 << 10 // bytes
)

// Accepted tells the engine of a batch that was stored, with its first chunk.
func (d *Dispatcher) Accepted(b *models.Batch, first models.Chunk) {
	if b.Chunks != 1 || len(first.Recipients) > recentRecipients ||
		len(b.Content.HTML)+len(b.Content.Text) > recentContent {
		return
	}
	own := *b
	d.batches.Add(b.ID, &own)
	d.recent.Add(b.ID, first.Recipients)
}

// Begin looks at the chunk that a message is about.
func (d *Dispatcher) start(ctx context.Context, m models.Message) (*Chunk, error) {
	if m.Kind != models.BatchMessage { // not the first about it
		return d.Load(ctx, m.ID)
	}
	to, fresh := d.recent.Get(m.ID)
	d.recent.Remove(m.ID)
	b, kept := d.batches.Get(m.ID)
	if !fresh || !kept {
		return d.Load(ctx, m.ID)
	}
	c := &Chunk{Id: m.ID, Batch: b, Lane: b.Lane, Size: len(to), Recipients: to, Read: time.Now()}
	d.resolve(c)
	return c, nil
}
