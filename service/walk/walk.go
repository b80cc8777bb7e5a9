// Package walk finds mail in the order of its IDs, from the newest to the oldest or the
// other way round, of one user or of many. Each walk says how much it has read, so that
// its reader can end it and continue later: see docs/adr/0007-lists-and-searches.md.
package walk

import (
	"bytes"
	"context"
	"iter"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/models"
)

// Store is the part of models.Store that walks read.
type Store interface {
	BatchIDs(ctx context.Context, user string, before models.ID, limit int) ([]models.ID, error)
	BatchIDsAfter(ctx context.Context, user string, after models.ID, limit int) ([]models.ID, error)
	Nodes(ctx context.Context, user string, level models.Level, from, to time.Time) ([]models.Node, error)
	SecondSummaries(ctx context.Context, user string, t time.Time) iter.Seq2[models.ChunkSummary, error]
	Dues(ctx context.Context, user string, from models.ID, back bool, limit int) ([]models.Due, error)
	AddressIndexHours(ctx context.Context, user string, before time.Time, limit int) ([]time.Time, error)
	AddressIndexes(
		ctx context.Context, user string, t time.Time, before models.ID,
	) iter.Seq2[models.AddressIndex, error]
}

// Step is a step of a walk. Everything up to At was looked at.
type Step struct {
	At    models.ID
	Found bool // At is a batch or a chunk that may match, or Due is
	User  string
	Due   models.Due // of a walk of Dues, with the ID At
	Rows  int        // what was read since the step before costs, in rows
}

// Steps are the steps of a walk, in the order of their IDs. They end after the first error.
type Steps = iter.Seq2[Step, error]

// Span is the part of a user's mail that a walk visits: what was accepted in [First, Last)
// and comes after From, which is zero at the beginning.
type Span struct {
	User        string
	First, Last time.Time
	From        models.ID
	Up          bool // from the oldest to the newest
}

// after reports whether an ID comes after From.
func (s *Span) after(id models.ID) bool {
	c := bytes.Compare(id[:], s.From[:])
	return s.From.IsZero() || s.Up && c > 0 || !s.Up && c < 0
}

// window returns the time that is still to be visited.
func (s *Span) window() (first, last time.Time) {
	first, last = s.First, s.Last
	if s.From.IsZero() {
		return first, last
	}
	if at := s.From.Time(); s.Up && at.After(first) {
		first = at
	} else if at = at.Add(time.Millisecond); !s.Up && at.Before(last) {
		last = at
	}
	return first, last
}

// edge returns the last ID, in the direction of the walk, of the time [first, last).
func (s *Span) edge(first, last time.Time) models.ID {
	if s.Up {
		return models.MaxID(last.Add(-time.Millisecond))
	}
	return models.MinID(first)
}

// page is the number of IDs that are read at once.
const page = 64

// perRead is what a read costs besides its rows, in rows: on Cassandra some 0.6 ms and 15 µs.
const perRead = 40

// Batches visits the batches of a user's list. It also finds batches that do not exist.
func Batches(ctx context.Context, store Store, s Span) Steps {
	read := func(at models.ID) ([]models.ID, error) {
		if s.Up {
			return store.BatchIDsAfter(ctx, s.User, at, page)
		}
		return store.BatchIDs(ctx, s.User, at, page)
	}
	return func(yield func(Step, error) bool) {
		at := s.From
		switch first, last := s.window(); {
		case !at.IsZero():
		case s.Up:
			at = models.MinID(first)
		default:
			at = models.MinID(last)
		}
		for {
			ids, err := read(at)
			if err != nil {
				yield(Step{}, err)
				return
			}
			for _, id := range ids {
				if t := id.Time(); t.Before(s.First) || !t.Before(s.Last) {
					return
				}
				if !yield(Step{At: id, Found: true, User: s.User, Rows: 1}, nil) {
					return
				}
			}
			if len(ids) < page {
				return
			}
			at = ids[len(ids)-1]
		}
	}
}

// Dues visits the times after now of a user's batches, each batch only at its next. Its IDs carry these times, and so
// do From and First of the span: First is now.
func Dues(ctx context.Context, store Store, s Span) Steps {
	return func(yield func(Step, error) bool) {
		at := s.From
		if first := models.MinID(s.First); s.Up && at.Compare(first) < 0 {
			at = first
		}
		for {
			dues, err := store.Dues(ctx, s.User, at, !s.Up, page)
			if err != nil {
				yield(Step{}, err)
				return
			}
			for i := range dues {
				d := &dues[i]
				if !s.Up && !d.At.After(s.First) {
					return
				}
				next := d.At.After(s.First) && !d.After.After(s.First)
				if !yield(Step{At: d.ID(), Found: next, User: s.User, Rows: 1, Due: *d}, nil) {
					return
				}
			}
			if len(dues) < page {
				return
			}
			at = dues[len(dues)-1].ID()
		}
	}
}

// Chunks visits the chunks of a user whose summary satisfies wants. It reads the tree of sums
// from the days down and skips every span whose sum does not satisfy wants, so it reads
// little where little is found. wants must be true for a sum if it is true for a part.
func Chunks(ctx context.Context, store Store, s Span, wants func(*models.Summary) bool) Steps {
	return func(yield func(Step, error) bool) {
		t := &tree{ctx: ctx, store: store, span: s, wants: wants, yield: yield}
		first, last := s.window()
		t.level(models.Day, first, last)
	}
}

// tree is one walk of Chunks.
type tree struct {
	ctx   context.Context
	store Store
	span  Span
	wants func(*models.Summary) bool
	yield func(Step, error) bool
}

// level visits the spans of a level that overlap [first, last). It reports whether the walk
// goes on.
func (t *tree) level(l models.Level, first, last time.Time) bool {
	if !first.Before(last) {
		return true
	}
	nodes, err := t.store.Nodes(t.ctx, t.span.User, l, first.UTC().Truncate(l.Length()), last)
	if err != nil {
		t.yield(Step{}, err)
		return false
	}
	if !t.span.Up {
		slices.Reverse(nodes)
	}
	rows := perRead + len(nodes)
	for i := range nodes {
		n := &nodes[i]
		if !t.wants(&n.Summary) {
			continue
		}
		begin, end := n.Span.Start, n.Span.Start.Add(l.Length())
		if child := l.Child(); child != "" {
			if !t.level(child, models.LaterOf(begin, first), models.EarlierOf(end, last)) {
				return false
			}
		} else if !t.second(begin) {
			return false
		}
	}
	return t.yield(Step{At: t.span.edge(first, last), User: t.span.User, Rows: rows}, nil)
}

// second visits the chunks of a second.
func (t *tree) second(at time.Time) bool {
	var found []models.ID
	rows := perRead
	for cs, err := range t.store.SecondSummaries(t.ctx, t.span.User, at) {
		if err != nil {
			t.yield(Step{}, err)
			return false
		}
		rows++
		if t.visits(cs.Chunk) && t.wants(&cs.Summary) {
			found = append(found, cs.Chunk)
		}
	}
	if !t.span.Up {
		slices.Reverse(found)
	}
	for _, id := range found {
		if !t.yield(Step{At: id, Found: true, User: t.span.User, Rows: rows}, nil) {
			return false
		}
		rows = 0
	}
	return true
}

// visits reports whether a chunk has logs that come after From, in the time of the walk.
func (t *tree) visits(chunk models.ID) bool {
	at := chunk.Time()
	return (t.span.after(chunk) || t.span.Up && t.span.after(chunk.Log(models.MaxChunkRecipients))) &&
		!at.Before(t.span.First) && at.Before(t.span.Last)
}

// indexRows is the number of rows of the address index after which a walk makes a step.
const indexRows = 1000

// Addresses visits the chunks of a user that may have an address, or an address of a domain,
// with a fingerprint: see models.NewAddressIndex. It goes from the newest to the oldest.
func Addresses(ctx context.Context, store Store, s Span, fingerprint uint32) Steps {
	return func(yield func(Step, error) bool) {
		_, last := s.window()
		before := last.Truncate(time.Hour)
		if !before.Equal(last) {
			before = before.Add(time.Hour)
		}
		for {
			hours, err := store.AddressIndexHours(ctx, s.User, before, page)
			if err != nil {
				yield(Step{}, err)
				return
			}
			for _, hour := range hours {
				if hour.Add(time.Hour).Before(s.First) || !s.hour(ctx, store, hour, fingerprint, yield) {
					return
				}
			}
			if len(hours) < page {
				return
			}
			before = hours[len(hours)-1]
		}
	}
}

// hour visits an hour of the address index.
func (s *Span) hour(
	ctx context.Context,
	store Store,
	hour time.Time,
	fingerprint uint32,
	yield func(Step, error) bool,
) bool {
	rows := perRead
	_, last := s.window()
	before := models.MinID(last)
	if !s.From.IsZero() && bytes.Compare(s.From[:], before[:]) < 0 {
		before = s.From
	}
	for p, err := range store.AddressIndexes(ctx, s.User, hour, before) {
		if err != nil {
			yield(Step{}, err)
			return false
		}
		if p.Chunk.Time().Before(s.First) {
			return false
		}
		rows += 1 + len(p.Fingerprints)/1000
		found := p.MayContain(fingerprint)
		if !found && rows < indexRows {
			continue
		}
		if !yield(Step{At: p.Chunk, Found: found, User: s.User, Rows: rows}, nil) {
			return false
		}
		rows = 0
	}
	return yield(Step{At: models.MinID(hour), User: s.User, Rows: rows}, nil)
}

// atOnce is the number of walks whose first step is read at the same time.
const atOnce = 8

// Merge makes one walk of the walks of several users, all in the same direction.
func Merge(walks []Steps, up bool) Steps {
	if len(walks) == 1 {
		return walks[0]
	}
	return func(yield func(Step, error) bool) {
		heads := make([]head, len(walks))
		var g errgroup.Group
		g.SetLimit(atOnce)
		for i, w := range walks {
			h := &heads[i]
			var stop func()
			h.next, stop = iter.Pull2(w)
			defer stop()
			g.Go(func() error { h.advance(); return h.err })
		}
		if err := g.Wait(); err != nil {
			yield(Step{}, err)
			return
		}
		for {
			best := nearest(heads, up)
			if best == nil {
				return
			}
			step := best.step
			if !yield(step, nil) {
				return
			}
			if best.advance(); best.err != nil {
				yield(Step{}, best.err)
				return
			}
		}
	}
}

// head is the next step of one of the walks that are merged.
type head struct {
	next func() (Step, error, bool)
	step Step
	more bool
	err  error
}

func (h *head) advance() { h.step, h.err, h.more = h.next() }

// nearest returns the head that comes first, or nil if all walks have ended.
func nearest(heads []head, up bool) (best *head) {
	for i := range heads {
		h := &heads[i]
		if !h.more {
			continue
		}
		if best == nil {
			best = h
		} else if c := bytes.Compare(h.step.At[:], best.step.At[:]); up && c < 0 || !up && c > 0 {
			best = h
		}
	}
	return best
}

// Batched makes a walk over batches of a walk over chunks.
func Batched(steps Steps) Steps {
	return func(yield func(Step, error) bool) {
		var last models.ID
		for st, err := range steps {
			if st.Found {
				if st.At = st.At.Batch(); st.At == last {
					st.Found = false
				} else {
					last = st.At
				}
			}
			if !yield(st, err) {
				return
			}
		}
	}
}
