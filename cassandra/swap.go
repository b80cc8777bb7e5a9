package cassandra

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gocql/gocql"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store/shapes"
)

const (
	// swapsAtOnce is how many rows of a partition change by one compare-and-set.
	swapsAtOnce = 100
	// swapTries is how often a swap is tried that other callers overtake.
	swapTries = 20
)

var errOvertaken = fmt.Errorf("%w: other callers change the same row again and again", models.ErrUnavailable)

// Swap implements shapes.Engine.
func (e *engine) Swap(ctx context.Context, swaps []shapes.Swap, also ...shapes.Put) (refused []shapes.Refusal, err error) {
	if err := e.put(ctx, also); err != nil {
		return nil, failed(err)
	}
	for from := 0; from < len(swaps); from += swapsAtOnce {
		some := swaps[from:min(from+swapsAtOnce, len(swaps))]
		if t := e.tables[some[0].Table]; len(some) > 1 && t.Decided && !t.Vetoed {
			done, err := e.swapAll(ctx, some)
			if err != nil {
				return nil, failed(err)
			}
			if done {
				continue
			}
		}
		out := make([]*shapes.Row, len(some))
		if err := each(ctx, len(some), func(ctx context.Context, i int) (err error) {
			out[i], err = e.swapOne(ctx, &some[i])
			return err
		}); err != nil {
			return nil, failed(err)
		}
		for i, there := range out {
			if there != nil {
				refused = append(refused, shapes.Refusal{Index: from + i, There: *there})
			}
		}
	}
	return refused, nil
}

// swapOne makes a swap. It returns the row that is there if it was refused.
func (e *engine) swapOne(ctx context.Context, w *shapes.Swap) (*shapes.Row, error) {
	switch t := e.tables[w.Table]; {
	case t.Vetoed:
		return vetoes{e.writer, t}.make(ctx, w)
	case t.Decided:
		return e.decide(ctx, t, w)
	default:
		return e.exchange(ctx, t, w)
	}
}

// conditional returns the compare-and-set of a swap.
func (t *table) conditional(w *shapes.Swap) (cql string, args []any) {
	was := any(w.Was)
	if w.Was == 0 {
		was = nil
	}
	if w.Remove {
		return `DELETE FROM ` + t.Name + ` WHERE ` + t.exact() + ` IF version = ?`, append(t.place(&w.Row), was)
	}
	using, args := ttl(` USING`, w.TTL)
	return `UPDATE ` + t.Name + using + ` SET version = ?, value = ? WHERE ` + t.exact() + ` IF version = ?`,
		slices.Concat(args, []any{w.Version, t.pack(&w.Row)}, t.place(&w.Row), []any{was})
}

// swapAll makes swaps of a partition by one compare-and-set. It is applied only if the conditions of all of them hold.
func (e *engine) swapAll(ctx context.Context, swaps []shapes.Swap) (applied bool, err error) {
	if err := e.guard.err(); err != nil {
		return false, err
	}
	t := e.tables[swaps[0].Table]
	err = e.try(ctx, deciding, func() error {
		b := e.session.NewBatch(gocql.UnloggedBatch).WithContext(ctx)
		for i := range swaps {
			cql, args := t.conditional(&swaps[i])
			b.Query(cql, args...)
		}
		done, rows, err := e.session.MapExecuteBatchCAS(b, map[string]any{})
		if rows != nil {
			err = errors.Join(err, rows.Close())
		}
		applied = done
		return undecided(err)
	})
	return applied, err
}

// decide makes a swap in a table that has only compare-and-sets. After a refusal a plain read finds what is there.
func (e *engine) decide(ctx context.Context, t *table, w *shapes.Swap) (*shapes.Row, error) {
	cql, args := t.conditional(w)
	for range swapTries {
		applied, _, err := e.cas(ctx, deciding, cql, args...)
		if err != nil || applied {
			return nil, err
		}
		there, err := e.row(ctx, t, w.Part, w.Key)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%w: %w", models.ErrOutcomeUnknown, err)
		case !w.Remove && same(&there, &w.Row):
			return nil, nil // a repeat
		case there.Version != w.Was || w.Remove && w.Was == 0:
			return &there, nil
		}
	}
	return nil, errOvertaken
}

// raise puts a row of a table that has only compare-and-sets.
func (e *engine) raise(ctx context.Context, p *shapes.Put) error {
	t := e.tables[p.Table]
	there := shapes.Row{}
	for range swapTries {
		cql, args := t.conditional(&shapes.Swap{Put: *p, Was: there.Version})
		applied, _, err := e.cas(ctx, plain, cql, args...)
		if err != nil || applied {
			return err
		}
		if there, err = e.row(ctx, t, p.Part, p.Key); err != nil {
			return err
		}
		if there.Version > p.Version || there.Version == p.Version && bytes.Compare(there.Value, p.Value) >= 0 {
			return nil
		}
	}
	return errOvertaken
}

// An exchange of a row with plain writes takes much less than exchangeLease.
const (
	exchangeLease = time.Minute
	exchangePause = 20 * time.Millisecond
)

// rewriteAge is subtracted from the servers' time for the timestamp of a changed row whose first version stays: that is
// higher than falling timestamps, and lower than that of a removal.
const rewriteAge = 100 * 24 * time.Hour

// keep takes the lease that keeps exchanges of the same row apart.
func (e *engine) keep(ctx context.Context, t *table, w *shapes.Swap) (end func(), err error) {
	id := leaseID{"row_locks", fmt.Sprintf("%s %x %x", t.Name, w.Part, w.Key), models.NewUserID()}
	for {
		held, err := lease(ctx, &e.runner, id, exchangeLease)
		if err != nil {
			return nil, err
		}
		if held {
			return func() { _, _ = lease(context.WithoutCancel(ctx), &e.runner, id, 0) }, nil // else it ends by itself
		}
		if models.Pause(ctx, exchangePause); ctx.Err() != nil {
			return nil, ended(ctx)
		}
	}
}

// exchange makes a swap in a table of plain writes, which is rare: under a lease it reads the row, writes it with a
// higher timestamp, and reads it again.
func (e *engine) exchange(ctx context.Context, t *table, w *shapes.Swap) (*shapes.Row, error) {
	end, err := e.keep(ctx, t, w)
	if err != nil {
		return nil, err
	}
	defer end()
	begun := time.Now()
	there, err := e.row(ctx, t, w.Part, w.Key)
	switch {
	case err != nil:
		return nil, err
	case !w.Remove && same(&there, &w.Row):
		return nil, nil // a repeat
	case there.Version != w.Was || w.Remove && w.Was == 0:
		return &there, nil
	case time.Since(begun) > exchangeLease/2:
		return nil, errOvertaken // the lease may end before the write does
	}
	if w.Remove {
		return nil, e.writer.removeRow(ctx, t, &there)
	}
	if t.FirstStays && w.Was > 0 {
		var now time.Time
		if now, err = e.writer.clock.time(ctx); err == nil {
			err = e.writer.send(ctx, plain, []write{t.write(&w.Row, now.Add(-rewriteAge).UnixMicro())})
		}
	} else {
		err = e.put(ctx, []shapes.Put{w.Put})
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", models.ErrOutcomeUnknown, err)
	}
	if there, err = e.row(ctx, t, w.Part, w.Key); err != nil {
		return nil, fmt.Errorf("%w: %w", models.ErrOutcomeUnknown, err)
	}
	if !same(&there, &w.Row) {
		return &there, nil
	}
	return nil, nil
}
