// Package memory implements the shapes of package store in the memory of a process, for the tests of other packages.
// It needs no file, no driver and no goroutine, so that a test with a fake clock may use it.
//
// Each table is a map of partitions, and each partition is sorted by keys or numbers. One lock makes every call exclusive.
package memory

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store"
	"github.com/safedelivr/safedelivr/store/shapes"
)

// Store implements models.Store in memory.
type Store struct{ *store.Store }

// New returns an empty store.
func New(o store.Options) *Store { return &Store{store.New(newEngine(), o)} }

// engine implements shapes.Engine.
type engine struct {
	mu    sync.Mutex
	parts map[place]*partition
}

func newEngine() *engine { return &engine{parts: map[place]*partition{}} }

// place is where a partition is.
type place struct {
	table *shapes.Table
	part  string
}

// partition has rows in the order of their keys, or entries in the order of their numbers.
type partition struct {
	rows    []*row
	entries []shapes.Entry
}

// row is a stored row. It ends at a time; zero: never.
type row struct {
	shapes.Row
	ends time.Time
}

// locked runs a call that no other call overlaps.
func (e *engine) locked(ctx context.Context, f func(now time.Time) error) error {
	if err := ctx.Err(); err != nil {
		return errors.Join(models.ErrUnavailable, err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return f(time.Now())
}

// of returns a partition.
func (e *engine) of(t *shapes.Table, part []byte) *partition {
	p := e.parts[place{t, string(part)}]
	if p == nil {
		p = &partition{}
		e.parts[place{t, string(part)}] = p
	}
	return p
}

// search returns the index of the first row whose key is not below key, and whether it has that key.
func (p *partition) search(key []byte) (int, bool) {
	return slices.BinarySearchFunc(p.rows, key, func(r *row, key []byte) int { return bytes.Compare(r.Key, key) })
}

// get returns the row with a key; nil: there is none, or it has ended.
func (p *partition) get(key []byte, now time.Time) *row {
	if i, ok := p.search(key); ok && !p.rows[i].ended(now) {
		return p.rows[i]
	}
	return nil
}

func (r *row) ended(now time.Time) bool { return !r.ends.IsZero() && !now.Before(r.ends) }

// set stores a row, which replaces the one with its key.
func (p *partition) set(r *shapes.Row, now time.Time) {
	s := &row{Row: *r}
	s.Part, s.Key, s.Value = bytes.Clone(r.Part), bytes.Clone(r.Key), bytes.Clone(r.Value)
	if r.TTL > 0 {
		s.ends = now.Add(r.TTL)
	}
	if i, ok := p.search(r.Key); ok {
		p.rows[i] = s
	} else {
		p.rows = slices.Insert(p.rows, i, s)
	}
}

// span returns the indexes of the rows with keys from from on, below to; nil: no bound.
func (p *partition) span(from, to []byte) (first, end int) {
	first, _ = p.search(from)
	end = len(p.rows)
	if to != nil {
		end, _ = p.search(to)
	}
	return first, max(first, end)
}

// prefixed returns the indexes of the rows whose keys begin with prefix.
func (p *partition) prefixed(prefix []byte) (first, end int) {
	first, _ = p.search(prefix)
	end = first
	for end < len(p.rows) && bytes.HasPrefix(p.rows[end].Key, prefix) {
		end++
	}
	return first, end
}

// out returns a copy of a row for a caller.
func (r *row) out(now time.Time) shapes.Row {
	c := r.Row
	c.Part, c.Key, c.Value, c.TTL = bytes.Clone(r.Part), bytes.Clone(r.Key), bytes.Clone(r.Value), 0
	if !r.ends.IsZero() {
		c.TTL = r.ends.Sub(now)
	}
	return c
}

// put stores a row unless one that stays is there.
func (e *engine) put(w *shapes.Put, now time.Time) {
	p := e.of(w.Table, w.Part)
	if there := p.get(w.Key, now); there != nil {
		newer := cmp.Or(cmp.Compare(w.Version, there.Version), bytes.Compare(w.Value, there.Value)) > 0
		if w.Table.FirstStays || !newer {
			return
		}
	}
	p.set(&w.Row, now)
}

// Put implements shapes.Engine.
func (e *engine) Put(ctx context.Context, puts ...shapes.Put) error {
	return e.locked(ctx, func(now time.Time) error {
		for i := range puts {
			w := &puts[i]
			if w.Table.Fenced {
				if fence := e.of(w.Table, w.Part).get(nil, now); fence != nil && w.Version <= fence.Version {
					continue
				}
			}
			e.put(w, now)
		}
		return nil
	})
}

// Swap implements shapes.Engine.
func (e *engine) Swap(ctx context.Context, swaps []shapes.Swap, also ...shapes.Put) (refused []shapes.Refusal, err error) {
	err = e.locked(ctx, func(now time.Time) error {
		for i := range swaps {
			if done, there := e.swap(&swaps[i], now); !done {
				refused = append(refused, shapes.Refusal{Index: i, There: there})
			}
		}
		for i := range also {
			if len(refused) == 0 {
				e.put(&also[i], now)
			}
		}
		return nil
	})
	return refused, err
}

// swap makes a swap, or returns the row that is there.
func (e *engine) swap(w *shapes.Swap, now time.Time) (done bool, there shapes.Row) {
	p := e.of(w.Table, w.Part)
	if r := p.get(w.Key, now); r != nil {
		there = r.out(now)
	}
	repeat := there.Version == w.Version && there.Gone == w.Gone && bytes.Equal(there.Value, w.Value)
	switch {
	case there.Version != w.Was:
		return repeat && !w.Remove, there
	case !w.Remove:
		p.set(&w.Row, now)
	case w.Was != 0:
		i, _ := p.search(w.Key)
		p.rows = slices.Delete(p.rows, i, i+1)
	}
	return true, there
}

// Find implements shapes.Engine.
func (e *engine) Find(ctx context.Context, at ...shapes.Address) (out [][]shapes.Row, err error) {
	err = e.locked(ctx, func(now time.Time) error {
		out = make([][]shapes.Row, len(at))
		for i := range at {
			p := e.of(at[i].Table, at[i].Part)
			first, end := p.prefixed(at[i].Key)
			for _, r := range p.rows[first:end] {
				if !r.ended(now) {
					out[i] = append(out[i], r.out(now))
				}
			}
		}
		return nil
	})
	return out, err
}

// scan returns rows of a range.
func (p *partition) scan(r *shapes.Range, now time.Time) (out []shapes.Row) {
	first, end := p.span(r.From, r.To)
	for n := range end - first {
		i := first + n
		if r.Back {
			i = end - 1 - n
		}
		if len(out) == r.Limit {
			return out
		}
		if there := p.rows[i]; !there.Gone && !there.ended(now) {
			c := there.out(now)
			if r.Head > 0 && len(c.Value) > r.Head {
				c.Value = c.Value[:r.Head]
			}
			out = append(out, c)
		}
	}
	return out
}

// Scan implements shapes.Engine.
func (e *engine) Scan(ctx context.Context, t *shapes.Table, part []byte, r shapes.Range) (out []shapes.Row, err error) {
	if r.Limit <= 0 {
		return nil, nil
	}
	err = e.locked(ctx, func(now time.Time) error {
		out = e.of(t, part).scan(&r, now)
		return nil
	})
	return out, err
}

// RemoveRows implements shapes.Engine.
func (e *engine) RemoveRows(ctx context.Context, at ...shapes.Address) error {
	return e.locked(ctx, func(time.Time) error {
		for i := range at {
			p := e.of(at[i].Table, at[i].Part)
			first, end := p.prefixed(at[i].Key)
			p.rows = slices.Delete(p.rows, first, end)
		}
		return nil
	})
}

// RemoveRange implements shapes.Engine.
func (e *engine) RemoveRange(ctx context.Context, t *shapes.Table, part, from, to []byte) error {
	return e.locked(ctx, func(time.Time) error {
		p := e.of(t, part)
		first, end := p.span(from, to)
		p.rows = slices.Delete(p.rows, first, end)
		return nil
	})
}

// RemoveParts implements shapes.Engine. A fence is a row whose key is empty.
func (e *engine) RemoveParts(
	ctx context.Context, t *shapes.Table, fence int64, keep time.Duration, parts ...[]byte,
) error {
	return e.locked(ctx, func(now time.Time) error {
		for _, part := range parts {
			delete(e.parts, place{t, string(part)})
			if fence > 0 {
				e.of(t, part).set(&shapes.Row{Part: part, Version: fence, Gone: true, TTL: keep}, now)
			}
		}
		return nil
	})
}

// Append implements shapes.Engine.
func (e *engine) Append(
	ctx context.Context, t *shapes.Table, part []byte, entry shapes.Entry,
) (there shapes.Entry, err error) {
	err = e.locked(ctx, func(time.Time) error {
		p := e.of(t, part)
		if last := p.last(); last.Number == entry.Number-1 {
			p.entries = append(p.entries, clone(entry))
			return nil
		}
		found := p.after(entry.Number-1, 1)
		switch {
		case len(found) == 0:
			return fmt.Errorf("%w: there is no entry %d", models.ErrInvalid, entry.Number-1)
		case found[0].Number != entry.Number || !bytes.Equal(found[0].Token, entry.Token): // else it is a repeat
			there = found[0]
		}
		return nil
	})
	return there, err
}

func clone(e shapes.Entry) shapes.Entry {
	return shapes.Entry{Number: e.Number, Token: bytes.Clone(e.Token), Value: bytes.Clone(e.Value)}
}

// last returns the entry with the highest number.
func (p *partition) last() (last shapes.Entry) {
	if n := len(p.entries); n > 0 {
		last = clone(p.entries[n-1])
	}
	return last
}

// after returns entries with numbers greater than a number.
func (p *partition) after(number, limit int) (out []shapes.Entry) {
	i, _ := p.find(number + 1)
	for _, entry := range p.entries[i:min(len(p.entries), i+max(limit, 0))] {
		out = append(out, clone(entry))
	}
	return out
}

// find returns the index of the first entry whose number is not below number, and whether it has that number.
func (p *partition) find(number int) (int, bool) {
	return slices.BinarySearchFunc(p.entries, number, func(e shapes.Entry, n int) int { return cmp.Compare(e.Number, n) })
}

// Read implements shapes.Engine.
func (e *engine) Read(
	ctx context.Context, t *shapes.Table, part []byte, after, limit int,
) (out []shapes.Entry, err error) {
	err = e.locked(ctx, func(time.Time) error {
		out = e.of(t, part).after(after, limit)
		return nil
	})
	return out, err
}

// ReadWith implements shapes.Engine.
func (e *engine) ReadWith(
	ctx context.Context, log, rows *shapes.Table, part []byte, r shapes.Range,
) (es []shapes.Entry, out []shapes.Row, err error) {
	err = e.locked(ctx, func(now time.Time) error {
		p, of := e.of(log, part), e.of(rows, part)
		es, r.Limit = p.after(0, len(p.entries)), len(of.rows)
		out = of.scan(&r, now)
		return nil
	})
	return es, out, err
}

// Last implements shapes.Engine.
func (e *engine) Last(ctx context.Context, t *shapes.Table, part []byte) (last shapes.Entry, err error) {
	err = e.locked(ctx, func(time.Time) error {
		last = e.of(t, part).last()
		return nil
	})
	return last, err
}

// Trim implements shapes.Engine.
func (e *engine) Trim(ctx context.Context, t *shapes.Table, part []byte, before int) error {
	return e.locked(ctx, func(time.Time) error {
		p := e.of(t, part)
		i, _ := p.find(before)
		p.entries = slices.Delete(p.entries, 0, min(i, max(len(p.entries)-1, 0)))
		return nil
	})
}

// Rewrite implements shapes.Engine.
func (e *engine) Rewrite(
	ctx context.Context, t *shapes.Table, part []byte, entry shapes.Entry, was []byte,
) (done bool, err error) {
	err = e.locked(ctx, func(time.Time) error {
		p := e.of(t, part)
		i, ok := p.find(entry.Number)
		if done = ok && bytes.Equal(p.entries[i].Value, was); done {
			p.entries[i].Value = bytes.Clone(entry.Value)
		}
		return nil
	})
	return done, err
}

// Now implements shapes.Engine.
func (e *engine) Now(context.Context) (time.Time, error) { return time.Now(), nil }

// Sweep implements shapes.Engine.
func (e *engine) Sweep(ctx context.Context) error {
	return e.locked(ctx, func(now time.Time) error {
		for at, p := range e.parts {
			if at.table.Bucket == 0 {
				p.rows = slices.DeleteFunc(p.rows, func(r *row) bool { return r.ended(now) })
			}
		}
		return nil
	})
}

// Ping implements shapes.Engine.
func (e *engine) Ping(ctx context.Context) error {
	return e.locked(ctx, func(time.Time) error { return nil })
}

// Close implements shapes.Engine.
func (e *engine) Close() error { return nil }
