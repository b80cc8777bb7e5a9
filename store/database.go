package store

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store/shapes"
)

// database makes the calls of an engine until it is closed. It gives the versions of rows.
type database struct {
	engine  shapes.Engine
	stamps  shapes.Stamper // nil: versions come from the clock of the process
	now     func() time.Time
	stamped atomic.Int64 // the newest version that came from the clock of the process
	gate    sync.RWMutex
	closed  bool
	running sync.WaitGroup
	ended   sync.Once
	failure error
}

// get returns what f reads, as a call that close waits for. It wraps errors with what and args.
func get[T any](ctx context.Context, d *database, f func() (T, error), what string, args ...any) (T, error) {
	var out T
	err := d.enter(ctx)
	if err == nil {
		defer d.running.Done()
		out, err = f()
	}
	if err != nil {
		var none T
		return none, fmt.Errorf(what+": %w", append(args, err)...)
	}
	return out, nil
}

// call is get of nothing.
func (d *database) call(ctx context.Context, f func() error, what string, args ...any) error {
	_, err := get(ctx, d, func() (none struct{}, err error) { return none, f() }, what, args...)
	return err
}

// enter begins a call; running.Done ends it.
func (d *database) enter(ctx context.Context) error {
	d.gate.RLock()
	defer d.gate.RUnlock()
	if d.closed {
		return models.ErrClosed
	}
	if ctx.Err() != nil {
		return errors.Join(models.ErrUnavailable, ctx.Err())
	}
	d.running.Add(1)
	return nil
}

// close ends the calls, and then the engine.
func (d *database) close() error {
	d.gate.Lock()
	if !d.closed && d.stamps != nil {
		d.stamps.End()
	}
	d.closed = true
	d.gate.Unlock()
	d.running.Wait()
	d.ended.Do(func() { d.failure = d.engine.Close() })
	return d.failure
}

// stamp returns a version that grows with time: by the clock of the servers, or else by that of this process, where each
// is greater than the one before.
func (d *database) stamp(ctx context.Context) (int64, error) {
	if d.stamps != nil {
		return d.stamps.Stamp(ctx)
	}
	for {
		last := d.stamped.Load()
		if next := max(d.now().UnixMicro(), last+1); d.stamped.CompareAndSwap(last, next) {
			return next, nil
		}
	}
}

// row returns the only row at an address. Errors: models.ErrNotFound.
func (d *database) row(ctx context.Context, t *shapes.Table, part, key []byte) (shapes.Row, error) {
	found, err := d.engine.Find(ctx, shapes.Address{Table: t, Part: part, Key: key})
	if err != nil {
		return shapes.Row{}, err
	}
	return only(found[0])
}

// decodedRow returns what is in the only row at an address. Errors: models.ErrNotFound.
func decodedRow[T any](
	ctx context.Context, d *database, t *shapes.Table, part, key []byte, decode func(*shapes.Row) (T, error),
) (out T, err error) {
	row, err := d.row(ctx, t, part, key)
	if err != nil {
		return out, err
	}
	return decode(&row)
}

// only returns the row of a result. Errors: models.ErrNotFound (there is none, or it is gone).
func only(rows []shapes.Row) (shapes.Row, error) {
	if len(rows) == 0 || rows[0].Gone {
		return shapes.Row{}, models.ErrNotFound
	}
	return rows[0], nil
}

// each calls f with the only row at each address that has one, and the place of the address. It reads pages.
func (d *database) each(ctx context.Context, at []shapes.Address, f func(i int, row *shapes.Row) error) error {
	for first := 0; first < len(at); first += pageRows {
		found, err := d.engine.Find(ctx, at[first:min(first+pageRows, len(at))]...)
		if err != nil {
			return err
		}
		for i := range found {
			row, err := only(found[i])
			if err == nil {
				err = f(first+i, &row)
			}
			if err != nil && !errors.Is(err, models.ErrNotFound) {
				return err
			}
		}
	}
	return nil
}

// putPages puts rows, a page at a time.
func (d *database) putPages(ctx context.Context, puts []shapes.Put) (err error) {
	for page := range slices.Chunk(puts, pageRows) {
		if err = d.engine.Put(ctx, page...); err != nil {
			break
		}
	}
	return err
}

// mapped returns what f makes of each value.
func mapped[T, R any](values []T, f func(*T) R) []R {
	out := make([]R, len(values))
	for i := range values {
		out[i] = f(&values[i])
	}
	return out
}

// swap makes one swap. It returns the row that is there if it was refused.
func (d *database) swap(ctx context.Context, w shapes.Swap, also ...shapes.Put) (refused bool, there shapes.Row, err error) {
	refusals, err := d.engine.Swap(ctx, []shapes.Swap{w}, also...)
	if err != nil || len(refusals) == 0 {
		return false, there, err
	}
	return true, refusals[0].There, nil
}

// rewrite replaces the values of the rows at an address that change. change returns nil for the others.
func (d *database) rewrite(ctx context.Context, at shapes.Address, change func(raw []byte) ([]byte, error)) error {
	rows, err := d.engine.Find(ctx, at)
	if err != nil {
		return err
	}
	for _, row := range rows[0] {
		for try := 0; row.Version > 0 && !row.Gone; try++ {
			value, err := change(row.Value)
			if err != nil {
				return stored(err)
			}
			if value == nil {
				break
			}
			if try == eraseTries {
				return errErasing
			}
			was := row.Version
			row.Value, row.Version = value, was+1
			refused, there, err := d.swap(ctx, shapes.Swap{Put: shapes.Put{Table: at.Table, Row: row}, Was: was})
			if err != nil {
				return err
			}
			if !refused {
				break
			}
			row = there
		}
	}
	return nil
}

// append appends to a log whose losers do not ask who won. Errors: models.ErrExists.
func (d *database) append(ctx context.Context, t *shapes.Table, part string, e shapes.Entry) error {
	if e.Number < 1 {
		return models.ErrInvalid
	}
	there, err := d.engine.Append(ctx, t, []byte(part), e)
	if err == nil && there.Number > 0 {
		err = models.ErrExists
	}
	return err
}

// read returns entries of a log, decoded.
func read[T any](
	ctx context.Context, d *database, t *shapes.Table, part []byte, after, limit int,
	decode func(*shapes.Entry) (T, error),
) (out []T, err error) {
	entries, err := d.engine.Read(ctx, t, part, max(after, 0), limit)
	return appendDecoded(out, entries, err, decode)
}

// appendDecoded appends what is in rows or entries that were read with an error, unless there is one.
func appendDecoded[R, T any](out []T, rows []R, err error, decode func(*R) (T, error)) ([]T, error) {
	for i := 0; i < len(rows) && err == nil; i++ {
		var v T
		v, err = decode(&rows[i])
		out = append(out, v)
	}
	return out, err
}

// scanAll yields the rows of a range, page by page.
func (d *database) scanAll(
	ctx context.Context, t *shapes.Table, part []byte, r shapes.Range, what string,
) iter.Seq2[shapes.Row, error] {
	return func(yield func(shapes.Row, error) bool) {
		r.Limit = pageRows
		for {
			var page []shapes.Row
			err := d.call(ctx, func() (err error) {
				page, err = d.engine.Scan(ctx, t, part, r)
				return err
			}, "%s", what)
			if err != nil {
				yield(shapes.Row{}, err)
				return
			}
			for i := range page {
				if !yield(page[i], nil) {
					return
				}
			}
			if len(page) < pageRows {
				return
			}
			r = beyond(r, page[len(page)-1].Key)
		}
	}
}

// beyond returns the part of a range that comes after a key.
func beyond(r shapes.Range, key []byte) shapes.Range {
	if r.Back {
		r.To = key
	} else {
		r.From = next(key)
	}
	return r
}

// decoded turns rows into values. After an error it yields no more.
func decoded[T any](rows iter.Seq2[shapes.Row, error], decode func(*shapes.Row) (T, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for row, err := range rows {
			var v T
			if err == nil {
				v, err = decode(&row)
			}
			if !yield(v, err) || err != nil {
				return
			}
		}
	}
}

// stored turns an error in reading a stored value into models.ErrDamaged, or models.ErrNewer if a newer version of the
// program stored it.
func stored(err error) error {
	if err == nil || errors.Is(err, models.ErrNewer) {
		return err
	}
	return fmt.Errorf("%w: %v", models.ErrDamaged, err) //nolint:errorlint // ErrInvalid would blame the caller
}
