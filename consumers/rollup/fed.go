package rollup

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// toldAtOnce is the number of chunks that a feed is asked about at a time.
const toldAtOnce = 500

// fed compares the published state of the chunks of a batch with their recount. A
// round does not.
func (c *check) fed(ctx context.Context, b *models.Batch, chunks []recounted) error {
	if c.feed == nil || c.unfed[b.User] {
		return nil
	}
	var ids []models.ID
	for n := range chunks {
		if chunks[n].unreadable == nil && !chunks[n].view.Plain() {
			ids = append(ids, b.ID.Chunk(n))
		}
	}
	for some := range slices.Chunk(ids, toldAtOnce) {
		published, err := c.feed.Published(ctx, b.User, some...)
		if errors.Is(err, models.ErrDamaged) {
			c.unfed[b.User] = true
			c.found(Difference{What: "feed", User: b.User, ID: "of all mail", Damaged: err.Error()})
			return nil
		}
		if err != nil {
			return err
		}
		for _, id := range some {
			t := published[id]
			if t.Matches(&chunks[id.ChunkNumber()].view) {
				continue
			}
			if err := c.fedWrong(ctx, b, id); err != nil {
				return err
			}
		}
	}
	return nil
}

// fedWrong waits until the state of a chunk is published, as it is while mail flows. If
// nothing changes for as long as Settle, it reports and repairs the difference.
func (c *check) fedWrong(ctx context.Context, b *models.Batch, id models.ID) error {
	since, version := time.Now(), int64(-1)
	for {
		k, err := c.s.chunks.Load(ctx, id)
		if err != nil {
			return err
		}
		view := k.View.ForFeed()
		all, err := c.feed.Published(ctx, b.User, id)
		published := all[id]
		if err != nil || published.Matches(&view) {
			return err
		}
		if view.Version != version {
			version, since = view.Version, time.Now()
		}
		if time.Since(since) >= c.o.Settle {
			c.found(Difference{What: "feed", User: b.User, ID: id.String(),
				Damaged: "the newest updates of the chunk differ from the state of its mail"})
			if !c.o.Repair {
				return nil
			}
			c.out.Repaired++
			return c.publishAgain(ctx, b, id, view.Version, published.Version)
		}
		select {
		case <-time.After(min(time.Second, c.o.Settle/4)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// publishAgain raises the version of a chunk above the published one, and publishes the state of
// the chunk.
func (c *check) publishAgain(ctx context.Context, b *models.Batch, id models.ID, version, published int64) error {
	f := models.Fact{Key: models.VersionFloorKey(max(version, published)), VersionFloor: max(0, published-version)}
	if err := c.s.store.PutFacts(ctx, models.ChunkFact{Chunk: id, Fact: f}); err != nil {
		return err
	}
	c.s.Mark(b.User, id)
	return c.s.Flush(ctx)
}
