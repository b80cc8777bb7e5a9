package cassandra

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store/shapes"
)

// RemoveRows implements shapes.Engine.
func (e *engine) RemoveRows(ctx context.Context, at ...shapes.Address) error {
	found, err := e.Find(ctx, at...)
	if err != nil {
		return err
	}
	return failed(each(ctx, len(at), func(ctx context.Context, i int) error {
		t := e.tables[at[i].Table]
		for k := range found[i] {
			r := &found[i][k]
			if t.Decided && !t.Vetoed {
				if _, _, err := e.cas(ctx, plain, `DELETE FROM `+t.Name+` WHERE `+t.exact()+` IF EXISTS`, t.place(r)...); err != nil {
					return err
				}
				continue
			}
			if err := e.writer.removeRow(ctx, t, r); err != nil {
				return err
			}
		}
		if t.bucket > 0 && len(at[i].Key) >= 6 {
			return e.unlistIfEmpty(ctx, t, at[i].Part, t.bucketOf(at[i].Key))
		}
		return nil
	}))
}

// unlistIfEmpty removes a bucket from the list if it has no row.
func (e *engine) unlistIfEmpty(ctx context.Context, t *table, part []byte, bucket int64) error {
	if t.Short {
		return nil
	}
	left, err := e.scanPart(ctx, t, part, bucket, shapes.Range{Limit: 1})
	if err != nil || len(left) > 0 {
		return err
	}
	return e.buckets.unlist(ctx, t, part, bucket)
}

// RemoveRange implements shapes.Engine. It leaves one tombstone in each partition.
func (e *engine) RemoveRange(ctx context.Context, t *shapes.Table, part, from, to []byte) error {
	return failed(e.removeRange(ctx, e.tables[t], part, shapes.Range{From: from, To: to}))
}

func (e *engine) removeRange(ctx context.Context, t *table, part []byte, r shapes.Range) error {
	if t.Decided {
		return fmt.Errorf("%w: removal of a range of %s", models.ErrInvalid, t.Name)
	}
	condition, keys := ``, []any(nil)
	if len(r.From) > 0 {
		condition, keys = ` AND `+t.at(`>=`), t.keyOf(r.From)
	}
	if r.To != nil {
		condition, keys = condition+` AND `+t.at(`<`), append(keys, t.keyOf(r.To)...)
	}
	if t.bucket == 0 {
		return e.writer.remove(ctx, t.Name, t.where+condition, append(t.partOf(part, 0), keys...)...)
	}
	first, last := t.bounds(&r)
	buckets, err := e.buckets.listed(ctx, t, part, first, last, false, math.MaxInt32)
	if err != nil {
		return err
	}
	return each(ctx, len(buckets), func(ctx context.Context, i int) error {
		b := buckets[i]
		if bytes.Compare(r.From, t.start(b)) > 0 || r.To != nil && bytes.Compare(r.To, t.start(b+1)) < 0 { // not all of it
			if err := e.writer.remove(ctx, t.Name, t.where+condition, append(t.partOf(part, b), keys...)...); err != nil {
				return err
			}
			return e.unlistIfEmpty(ctx, t, part, b)
		}
		if err := e.writer.remove(ctx, t.Name, t.where, t.partOf(part, b)...); err != nil || t.Short {
			return err
		}
		return e.buckets.unlist(ctx, t, part, b)
	})
}

// RemoveParts implements shapes.Engine. A fence is a tombstone with that timestamp: it hides what is written later for
// as long as tombstones are kept.
func (e *engine) RemoveParts(ctx context.Context, t *shapes.Table, fence int64, _ time.Duration, parts ...[]byte) error {
	tb := e.tables[t]
	return failed(each(ctx, len(parts), func(ctx context.Context, i int) error {
		switch {
		case tb.Group > 0:
			return e.logOf(t, parts[i]).trim(ctx, math.MaxInt)
		case tb.bucket > 0:
			return e.removeRange(ctx, tb, parts[i], shapes.Range{})
		case tb.Decided && !tb.Vetoed:
			return e.RemoveRows(ctx, shapes.Address{Table: t, Part: parts[i]})
		case fence > 0:
			return e.writer.removeAt(ctx, fence, t.Name, tb.where, parts[i])
		}
		return e.writer.remove(ctx, t.Name, tb.where, parts[i])
	}))
}
