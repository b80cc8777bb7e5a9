package walk

import (
	"context"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// A Counter returns how many entries of a list the mail of a sum has, if the sum tells.
type Counter func(*models.Summary) (n int64, known bool)

// countedChunks is how many chunks of one second are counted apart. Of a second at an end of a span,
// the list may have only a part.
const countedChunks = 1000

// Count returns how many entries of a list the mail of a span has, if the sums tell. It adds up
// whole days, and at both ends what is left of a day: hours, minutes, seconds and chunks.
// So it reads the store ten times at most. It ignores the direction of the span and its From.
func Count(ctx context.Context, store Store, s Span, count Counter) (n int64, known bool, err error) {
	c := &counting{ctx: ctx, store: store, user: s.User, count: count}
	known, err = c.level(models.Day, s.First, s.Last)
	return c.n, known, err
}

// counting is one run of Count.
type counting struct {
	ctx   context.Context
	store Store
	user  string
	count Counter
	n     int64
}

// level counts the spans of a level that overlap [first, last). It reports whether they tell.
func (c *counting) level(l models.Level, first, last time.Time) (known bool, err error) {
	if !first.Before(last) {
		return true, nil
	}
	nodes, err := c.store.Nodes(c.ctx, c.user, l, first.UTC().Truncate(l.Length()), last)
	for i := 0; i < len(nodes) && err == nil; i++ {
		begin := nodes[i].Span.Start
		end := begin.Add(l.Length())
		n, known := c.count(&nodes[i].Summary)
		switch {
		case !known:
			return false, nil
		case n == 0: // so no part of it has any
		case !begin.Before(first) && !end.After(last):
			c.n += n
		default:
			if known, err = c.below(l, models.LaterOf(begin, first), models.EarlierOf(end, last)); !known {
				return false, err
			}
		}
	}
	return err == nil, err
}

// below counts the part [first, last) of a span of a level.
func (c *counting) below(l models.Level, first, last time.Time) (known bool, err error) {
	if child := l.Child(); child != "" {
		return c.level(child, first, last)
	}
	chunks := 0
	for cs, err := range c.store.SecondSummaries(c.ctx, c.user, first) {
		if chunks++; err != nil || chunks > countedChunks {
			return false, err
		}
		if at := cs.Chunk.Time(); at.Before(first) || !at.Before(last) {
			continue
		}
		n, known := c.count(&cs.Summary)
		if !known {
			return false, nil
		}
		c.n += n
	}
	return true, nil
}
