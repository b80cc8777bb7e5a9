package dispatch

import (
	"context"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

// recentlyAccepted holds the recipients of small batches that this process has just
// accepted, until the first message about them arrives, and again while they wait in the queue of a provider. Such a
// batch need not be read, and its ledger is empty. If another worker was quicker, the first append conflicts.
type recentlyAccepted = lru.Cache[models.ID, acceptedChunk]

// acceptedChunk has the recipients of a chunk.
type acceptedChunk struct {
	to       []models.Recipient
	erasures int // control.Rules.Erasures when they were stored
	queued   bool
}

// Bounds on the memory of recentlyAccepted.
const (
	recentBatches    = 2048
	recentRecipients = 16
	recentContent    = 16 << 10 // bytes of the content, and of the recipients
)

// Accepted notes a batch that was just stored, with its first chunk.
func (cs *Chunks) Accepted(b *models.Batch, first models.Chunk) {
	size := 0
	for i := range first.Recipients {
		size += first.Recipients[i].Size()
	}
	if b.Chunks != 1 || b.Suppressed > 0 || len(first.Recipients) > recentRecipients || size > recentContent ||
		len(b.Content.HTML)+len(b.Content.Text) > recentContent {
		return
	}
	own := *b
	cs.batches.add(&own)
	cs.recent.Add(b.ID, acceptedChunk{to: first.Recipients, erasures: cs.follower.Rules().Erasures()})
}

// queued notes that a chunk waits in the queue of a provider now.
func (cs *Chunks) queued(c *Chunk) {
	if c.fresh && len(c.entries) == 0 && c.Recipients != nil {
		cs.recent.Add(c.ID, acceptedChunk{to: c.Recipients, erasures: c.erasures, queued: true})
	}
}

// start returns the chunk that a message is about. A chunk is read if the message is not the one that was expected: the
// first one, or then that of a provider's queue.
func (cs *Chunks) start(ctx context.Context, m models.Message) (*Chunk, error) {
	accepted, recent := cs.recent.Get(m.ID)
	cs.recent.Remove(m.ID)
	b, kept := cs.batches.get(m.ID)
	expected := models.BatchMessage
	if accepted.queued {
		expected = models.ProviderMessage
	}
	if !recent || !kept || m.Kind != expected {
		return cs.Load(ctx, m.ID)
	}
	if err := cs.follower.EnsureFresh(ctx, control.MaxRuleAge); err != nil {
		return nil, err
	}
	if cs.follower.Rules().Erasures() != accepted.erasures {
		return cs.Load(ctx, m.ID)
	}
	to := accepted.to
	c := &Chunk{ID: m.ID, Batch: b.OfChunk(0), Lane: b.Lane, Size: len(to), Recipients: to, read: time.Now(), fresh: true,
		erasures: accepted.erasures}
	cs.resolve(c)
	return c, nil
}
