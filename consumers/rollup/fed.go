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

// fed compares what the feed of updates has told of the chunks of a batch with their recount. A
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
		told, err := c.feed.Told(ctx, b.User, some...)
		if errors.Is(err, models.ErrDamaged) {
			c.unfed[b.User] = true
			c.found(Difference{What: "feed", User: b.User, ID: "of all mail", Damaged: err.Error()})
			return nil
		}
		if err != nil {
			return err
		}
		for _, id := range some {
			t := told[id]
			if t.Agrees(&chunks[id.ChunkNumber()].view) {
				continue
			}
			if err := c.fedWrong(ctx, b, id); err != nil {
				return err
			}
		}
	}
	return nil
}

// fedWrong waits for the feed to tell what became of a chunk, as it does while mail flows. If
// nothing changes for as long as Settle, it reports and repairs the difference.
func (c *check) fedWrong(ctx context.Context, b *models.Batch, id models.ID) error {
	since, version := time.Now(), int64(-1)
	for {
		k, err := c.s.dispatch.Load(ctx, id)
		if err != nil {
			return err
		}
		view := k.View.ForFeed()
		all, err := c.feed.Told(ctx, b.User, id)
		told := all[id]
		if err != nil || told.Agrees(&view) {
			return err
		}
		if view.Version != version {
			version, since = view.Version, time.Now()
		}
		if time.Since(since) >= c.o.Settle {
			c.found(Difference{What: "feed", User: b.User, ID: id.String(),
				Damaged: "the newest updates of the chunk are not what became of its mail"})
			if !c.o.Repair {
				return nil
			}
			c.out.Repaired++
			return c.tellAgain(ctx, b, id, view.Version, told.Version)
		}
		select {
		case <-time.After(min(time.Second, c.o.Settle/4)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// tellAgain raises the version of a chunk above the one that was told, and tells what became of
// the chunk.
func (c *check) tellAgain(ctx context.Context, b *models.Batch, id models.ID, version, told int64) error {
	f := models.Fact{Key: models.VersionFloorKey(max(version, told)), VersionFloor: max(0, told-version)}
	if err := c.s.store.PutFacts(ctx, models.ChunkFact{Chunk: id, Fact: f}); err != nil {
		return err
	}
	c.s.Mark(b.User, id)
	return c.s.Flush(ctx)
}
