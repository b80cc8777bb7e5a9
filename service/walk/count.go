package walk

import (
	"context"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/safedelivr/safedelivr/models"
)

// A Counter counts the entries of a list.
type Counter struct {
	List string // of what the entries are, and how they are selected
	// Of returns how many entries the mail of a sum has, if the sum says so.
	Of func(*models.Summary) (n int64, known bool)
}

// countedChunks is how many chunks of one second are counted apart. Of a second at an end of a span,
// the list may have only a part.
const countedChunks = 1000

// A list that is shown live is counted every second. The sums of days before yesterday take most of
// that, and change only by late events, so they are counted once in countedFor.
const (
	countedFor = time.Minute
	keptCounts = 10_000
)

// Counts counts the entries of lists.
type Counts struct {
	limit time.Duration // how long CountList may take
	old   *lru.Cache[countKey, counted]
	lists *lru.Cache[string, counted] // by name, counted one by one
}

// countKey identifies a count of mail that was accepted before yesterday.
type countKey struct {
	user, list  string
	first, last int64 // in nanoseconds since 1970
}

// counted is a count and its time.
type counted struct {
	n     int64
	known bool
	at    time.Time
}

// NewCounts returns a Counts. CountList takes limit at most. Its methods may be called by many
// goroutines at once.
func NewCounts(limit time.Duration) *Counts {
	old, err := lru.New[countKey, counted](keptCounts)
	if err != nil {
		panic(err) // the size is positive
	}
	lists, err := lru.New[string, counted](keptCounts / 10)
	if err != nil {
		panic(err) // the size is positive
	}
	return &Counts{limit: limit, old: old, lists: lists}
}

// Count returns how many entries of a list the mail of a span has, if the sums tell. It adds up
// whole days, and at both ends what is left of a day: hours, minutes, seconds and chunks.
// So it reads the store eleven times at most. It ignores the direction of the span and its From.
// Late events about mail of days before yesterday may be missing for a minute.
func (c *Counts) Count(ctx context.Context, store Store, s Span, count Counter) (n int64, known bool, err error) {
	old := s
	old.Last = models.EarlierOf(s.Last, models.DayOf(time.Now()).AddDate(0, 0, -1))
	key := countKey{s.User, count.List, old.First.UnixNano(), old.Last.UnixNano()}
	before, ok := c.old.Get(key)
	if !ok || time.Since(before.at) >= countedFor {
		before = counted{at: time.Now()}
		if before.n, before.known, err = countSpan(ctx, store, old, count); err != nil {
			return 0, false, err
		}
		c.old.Add(key, before)
	}
	if !before.known {
		return 0, false, nil
	}
	s.First = models.LaterOf(s.First, old.Last)
	n, known, err = countSpan(ctx, store, s, count)
	return before.n + n, known, err
}

func countSpan(ctx context.Context, store Store, s Span, count Counter) (n int64, known bool, err error) {
	c := &counting{ctx: ctx, store: store, user: s.User, count: count}
	known, err = c.level(models.Day, s.First, s.Last)
	return c.n, known, err
}

// counting is one run of countSpan.
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
		n, known := c.count.Of(&nodes[i].Summary)
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
		n, known := c.count.Of(&cs.Summary)
		if !known {
			return false, nil
		}
		c.n += n
	}
	return true, nil
}
