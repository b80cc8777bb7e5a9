package walk

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/models"
)

// MaxRead is what one page of a list reads at most, in rows of an index. Other reads cost more: see
// docs/adr/0007-lists-and-searches.md.
const MaxRead = 8_000

// The bounds of counting a list whose total the sums do not tell. A list that is shown live asks every second, so a
// total is kept for keptTotal; that there are more is kept as long as the sums of old days.
const (
	MaxCounted = 1_000       // entries
	countRead  = 5 * MaxRead // rows of an index
	keptTotal  = 10 * time.Second
)

// loadAtOnce is the number of batches or chunks of a page that are read at the same time: from
// one, which is often enough, up to this number.
const loadAtOnce = 8

// A List is a list of entries in the order of their IDs.
type List[T any] struct {
	Steps func(from models.ID, up bool) Steps
	Load  func(ctx context.Context, st Step) (found []T, cost int, err error) // found: by ID, ascending
	ID    func(*T) models.ID
}

// Found is what a walk has found, in its order.
type Found[T any] struct {
	Items []T
	End   models.ID // the walk goes on behind it
	More  bool      // the walk may find more
	Spent bool      // the walk has read as much as it may
}

// Read reads up to n entries that come after from, and about budget rows at most. If it fails, it returns what it had
// found before.
func (l *List[T]) Read(ctx context.Context, from models.ID, up bool, n, budget int) (Found[T], error) {
	r := listRead[T]{List: l, from: from, up: up, window: 1}
	for st, err := range l.Steps(from, up) {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return r.out, err
		}
		r.read += st.Rows
		if r.out.End = st.At; st.Found {
			r.open = append(r.open, st)
			if up {
				r.out.End = st.At.Log(models.MaxChunkRecipients) // its logs come after it
			}
		}
		if len(r.open) == r.window || r.read >= budget {
			if err := r.load(ctx); err != nil {
				return r.out, err
			}
		}
		if len(r.out.Items) > n || r.read >= budget {
			r.out.More = true
			break
		}
	}
	if err := r.load(ctx); err != nil {
		return r.out, err
	}
	out := r.out
	if len(out.Items) > n {
		out.Items, out.More = out.Items[:n], true
		out.End = l.ID(&out.Items[n-1])
		return out, nil
	}
	out.Spent = out.More
	return out, nil
}

// listRead is a run of Read.
type listRead[T any] struct {
	*List[T]
	from   models.ID
	up     bool
	open   []Step // found, and not loaded
	read   int    // rows
	window int    // steps that are loaded at the same time
	out    Found[T]
}

// load loads the entries of the open steps.
func (r *listRead[T]) load(ctx context.Context) error {
	found, costs := make([][]T, len(r.open)), make([]int, len(r.open))
	g, ctx := errgroup.WithContext(ctx)
	for i := range r.open {
		g.Go(func() (err error) {
			found[i], costs[i], err = r.Load(ctx, r.open[i])
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for i := range found {
		if !r.up {
			slices.Reverse(found[i])
		}
		for k := range found[i] {
			id := r.ID(&found[i][k])
			if c := bytes.Compare(id[:], r.from[:]); r.from.IsZero() || r.up && c > 0 || !r.up && c < 0 {
				r.out.Items = append(r.out.Items, found[i][k])
			}
		}
		r.read += costs[i]
	}
	r.open, r.window = r.open[:0], min(2*r.window, loadAtOnce)
	return nil
}

// CountList counts the entries of a list one by one: MaxCounted at most, and fewer if that would read too much or take
// too long. It returns how many there are at least, and whether these are all. A count of some seconds ago does.
func CountList[T any](ctx context.Context, c *Counts, name string, l *List[T], up bool) (n int64, all bool, err error) {
	if old, ok := c.lists.Get(name); ok {
		keep := countedFor
		if old.known {
			keep = keptTotal
		}
		if time.Since(old.at) < keep {
			return old.n, old.known, nil
		}
	}
	timed, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	found, err := l.Read(timed, models.ID{}, up, MaxCounted, countRead)
	late := errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil
	if err != nil && !late {
		return 0, false, err
	}
	n, all = int64(len(found.Items)), !late && !found.More
	if found.More && !found.Spent {
		n++ // there is another one
	}
	c.lists.Add(name, counted{n: n, known: all, at: time.Now()})
	return n, all, nil
}
