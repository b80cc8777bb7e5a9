package dispatch

import (
	"context"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

// recentlyAccepted holds the recipients of small batches that this process has just
// accepted, until it appends to their ledgers. Such a batch need not be read,
// and its ledger is empty. If another worker was quicker, the first append conflicts.
type recentlyAccepted = lru.Cache[models.ID, acceptedChunk]

// acceptedChunk has the recipients of a chunk.
type acceptedChunk struct {
	to       []models.Recipient
	erasures int // control.Rules.Erasures when they were stored
}

// Bounds on the memory of recentlyAccepted.
const (
	recentBatches    = 2048
	recentRecipients = 16
	recentContent    = 16 << 10 // bytes
)

// Accepted notes a batch that was just stored, with its first chunk.
func (cs *Chunks) Accepted(b *models.Batch, first models.Chunk) {
	if b.Chunks != 1 || len(first.Recipients) > recentRecipients ||
		len(b.Content.HTML)+len(b.Content.Text) > recentContent {
		return
	}
	own := *b
	cs.batches.add(&own)
	cs.recent.Add(b.ID, acceptedChunk{first.Recipients, cs.follower.Rules().Erasures()})
}

// start returns the chunk that a message is about.
func (cs *Chunks) start(ctx context.Context, m models.Message) (*Chunk, error) {
	accepted, recent := cs.recent.Get(m.ID)
	b, kept := cs.batches.get(m.ID)
	if !recent || !kept || time.Since(m.ID.Time()) > cs.cfg.Recheck { // by then the agenda looks at it, too
		return cs.Load(ctx, m.ID)
	}
	if err := cs.follower.EnsureFresh(ctx, control.MaxRuleAge); err != nil {
		return nil, err
	}
	if cs.follower.Rules().Erasures() != accepted.erasures {
		return cs.Load(ctx, m.ID)
	}
	to := accepted.to
	c := &Chunk{ID: m.ID, Batch: b.OfChunk(0), Lane: b.Lane, Size: len(to), Recipients: to, read: time.Now(), fresh: true}
	cs.resolve(c)
	return c, nil
}
