package rollup

import (
	"context"
	"maps"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// repairTries is how often a repair raises the version of the summary that it replaces.
const repairTries = 5

// repairChunk replaces a wrong summary of any version, and renews the sums above it. If the summary was made from more
// entries and facts than there are, repairChunk raises the chunk's version, so that later summaries are newer. It
// returns the recount.
func (c *check) repairChunk(
	ctx context.Context,
	b *models.Batch,
	n int,
	wrong *models.Summary,
) (models.Summary, error) {
	id := b.ID.Chunk(n)
	k, err := c.s.chunks.Load(ctx, id)
	if err != nil {
		return models.Summary{}, err
	}
	if by := wrong.Version - k.View.Version; by > 0 {
		f := models.Fact{Key: models.VersionFloorKey(wrong.Version), VersionFloor: by}
		if err := c.s.store.PutFacts(ctx, models.ChunkFact{Chunk: id, Fact: f}); err != nil {
			return models.Summary{}, err
		}
		if err := c.s.chunks.Reload(ctx, k); err != nil {
			return models.Summary{}, err
		}
	}
	counted := k.Summary()
	repaired := counted
	if wrong.FullVersion() >= repaired.FullVersion() {
		repaired.Version, repaired.Repairs = wrong.Version, wrong.Repairs+1
	}
	for range repairTries {
		if err := c.s.store.PutSummaries(ctx, models.ChunkSummary{User: b.User, Chunk: id, Summary: repaired}); err != nil {
			return counted, err
		}
		shown, err := c.shown(ctx, b, n)
		if err != nil {
			return counted, err
		}
		if same(&shown, &counted) {
			c.out.Repaired++
			break
		}
		repaired.Repairs++ // the version of a summary that cannot be read is unknown
	}
	c.s.Mark(b.User, id)
	return counted, c.s.Flush(ctx)
}

// repairDay renews the sums of a day from its chunk summaries. It raises the version of one summary in each second, so
// that the sums above are replaced.
func (c *check) repairDay(ctx context.Context, user string, day time.Time) error {
	spans := map[models.Level]map[time.Time]bool{}
	err := c.eachBatch(ctx, user, day, day.AddDate(0, 0, 1), func(b *models.Batch) error {
		for _, level := range models.Levels {
			if spans[level] == nil {
				spans[level] = map[time.Time]bool{}
			}
			start := models.SpanOf(user, level, b.Created()).Start
			if level == models.Second && !spans[level][start] {
				if err := c.raise(ctx, b); err != nil {
					return err
				}
			}
			spans[level][start] = true
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, level := range models.Levels {
		for start := range maps.Keys(spans[level]) {
			if err := c.s.store.RollUp(ctx, models.Span{User: user, Level: level, Start: start}); err != nil {
				return err
			}
		}
	}
	return nil
}

// raise raises the version of the summary of a batch's first chunk.
func (c *check) raise(ctx context.Context, b *models.Batch) error {
	s, err := c.shown(ctx, b, 0)
	if err != nil {
		return err
	}
	s.Repairs++
	return c.s.store.PutSummaries(ctx, models.ChunkSummary{User: b.User, Chunk: b.ID, Summary: s})
}
