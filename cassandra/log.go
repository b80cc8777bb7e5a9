package cassandra

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store/shapes"
)

// A short log is one partition, whose entries share the column last, which prevents gaps. A long one is split into
// groups of entries. A plain read may decide there whether the number before is taken, because a number that was taken
// never becomes free again.

// group returns the group of an entry.
func (t *table) group(number int) int64 {
	if t.Group == 0 {
		return 0
	}
	return int64(number / t.Group)
}

// Append implements shapes.Engine. After a time-out it asks again with the same token. The entry that is there then
// says who won.
func (e *engine) Append(
	ctx context.Context, t *shapes.Table, part []byte, entry shapes.Entry,
) (there shapes.Entry, err error) {
	tb := e.tables[t]
	if tb.Group == 0 {
		there, err = e.appendShort(ctx, tb, part, &entry)
	} else {
		there, err = e.appendLong(ctx, tb, part, &entry)
	}
	return there, failed(err)
}

// appendShort compares holder and value, too, so that a refusal returns them.
func (e *engine) appendShort(ctx context.Context, t *table, part []byte, n *shapes.Entry) (there shapes.Entry, err error) {
	before := any(n.Number - 1)
	if n.Number <= 1 {
		before = nil
	}
	applied, row, err := e.cas(ctx, settling, `UPDATE `+t.Name+` SET last = ?, holder = ?, value = ?
		WHERE part = ? AND number = ? IF last = ? AND holder = null AND value = null`,
		n.Number, filled(n.Token), filled(n.Value), part, n.Number, before)
	if err != nil || applied {
		return there, err
	}
	if holder, _ := row["holder"].([]byte); len(holder) == 0 {
		return there, fmt.Errorf("%w: there is no entry %d", models.ErrInvalid, n.Number-1)
	}
	return winner(n, row), nil
}

// winner returns the entry in a row, unless it comes from an earlier try of the same append.
func winner(n *shapes.Entry, row map[string]any) shapes.Entry {
	there := shapes.Entry{Number: n.Number}
	there.Token, _ = row["holder"].([]byte)
	there.Value, _ = row["value"].([]byte)
	if bytes.Equal(there.Token, n.Token) {
		return shapes.Entry{}
	}
	return there
}

func (e *engine) appendLong(ctx context.Context, t *table, part []byte, n *shapes.Entry) (there shapes.Entry, err error) {
	group := t.group(n.Number)
	if later, err := e.later(ctx, t, part, n.Number); err != nil || later.Number > 0 {
		return later, err
	}
	if n.Number == 1 || n.Number%t.Group == 0 { // the first entry of its group
		in := bucketOf{table: t.Name, part: string(part), bucket: group}
		if err := e.list(ctx, map[bucketOf]int64{in: 0}); err != nil {
			return there, err
		}
	}
	applied, row, err := e.cas(ctx, settling, `INSERT INTO `+t.Name+` (part, bucket, number, holder, value)
		VALUES (?, ?, ?, ?, ?) IF NOT EXISTS`, part, group, n.Number, filled(n.Token), filled(n.Value))
	if err != nil || applied {
		return there, err
	}
	return winner(n, row), nil
}

// later returns an entry of a long log that is there instead of one that was removed. Errors: models.ErrInvalid (the
// number before was never taken).
func (e *engine) later(ctx context.Context, t *table, part []byte, number int) (none shapes.Entry, err error) {
	if before := number - 1; before > 0 {
		found, err := query(ctx, &e.runner, column[int], `SELECT number FROM `+t.Name+`
			WHERE part = ? AND bucket = ? AND number = ?`, part, t.group(before), before)
		if err != nil || len(found) > 0 {
			return none, err
		}
	}
	found, err := e.readLong(ctx, t, part, number-1, 1)
	switch {
	case err != nil:
		return none, err
	case len(found) == 0 && number > 1:
		return none, fmt.Errorf("%w: there is no entry %d", models.ErrInvalid, number-1)
	case len(found) == 0 || found[0].Number == number: // who has the number is not decided by a plain read
		return none, nil
	}
	return found[0], nil
}

// entries returns entries of one partition of the keyspace.
func (e *engine) entries(
	ctx context.Context, t *table, part []byte, group int64, after, limit int,
) ([]shapes.Entry, error) {
	return query(ctx, &e.runner, readEntry, `SELECT number, holder, value FROM `+t.Name+` WHERE `+t.where+`
		AND number > ? LIMIT ?`, append(t.partOf(part, group), after, limit)...)
}

func readEntry(scan scanner) (n shapes.Entry, err error) {
	err = scan(&n.Number, &n.Token, &n.Value)
	return n, err
}

// Read implements shapes.Engine.
func (e *engine) Read(ctx context.Context, t *shapes.Table, part []byte, after, limit int) ([]shapes.Entry, error) {
	tb := e.tables[t]
	if limit <= 0 {
		return nil, nil
	}
	if tb.Group == 0 {
		out, err := e.entries(ctx, tb, part, 0, after, limit)
		return slices.DeleteFunc(out, func(n shapes.Entry) bool { return n.Number == 0 }), failed(err)
	}
	out, err := e.readLong(ctx, tb, part, after, limit)
	return out, failed(err)
}

func (e *engine) readLong(
	ctx context.Context, t *table, part []byte, after, limit int,
) (out []shapes.Entry, err error) {
	jumped := false
	for len(out) < limit {
		group := t.group(after + 1)
		found, err := e.entries(ctx, t, part, group, after, limit-len(out))
		if err != nil {
			return nil, err
		}
		if len(found) > 0 {
			out = append(out, found...)
			after = found[len(found)-1].Number // at the end of a group, the next query reads the next one
			continue
		}
		if len(out) > 0 {
			return out, nil
		}
		// Either there is nothing more, or the group was removed. It may have got its entries after it was read and
		// before the later group appeared: it is read again.
		later, err := e.listedBuckets(ctx, t, part, group+1, math.MaxInt64, false, 1)
		switch {
		case err != nil || len(later) == 0:
			return nil, err
		case !jumped:
			jumped = true
		default:
			after, jumped = int(later[0])*t.Group-1, false
		}
	}
	return out, nil
}

// ReadWith implements shapes.Engine. It reads both at the same time.
func (e *engine) ReadWith(
	ctx context.Context, log, rows *shapes.Table, part []byte, r shapes.Range,
) (entries []shapes.Entry, beside []shapes.Row, err error) {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		entries, err = e.Read(ctx, log, part, 0, math.MaxInt32)
		return err
	})
	g.Go(func() (err error) {
		r.Limit = math.MaxInt32
		beside, err = e.Scan(ctx, rows, part, r)
		return err
	})
	if err := g.Wait(); err != nil {
		return nil, nil, err
	}
	return entries, beside, nil
}

// Last implements shapes.Engine.
func (e *engine) Last(ctx context.Context, t *shapes.Table, part []byte) (shapes.Entry, error) {
	last, err := e.last(ctx, e.tables[t], part)
	return last, failed(err)
}

// last returns the last entry. The newest group may have none yet.
func (e *engine) last(ctx context.Context, t *table, part []byte) (last shapes.Entry, err error) {
	groups := []int64{0}
	if t.Group > 0 {
		if groups, err = e.listedBuckets(ctx, t, part, 0, math.MaxInt64, true, 2); err != nil {
			return last, err
		}
	}
	for _, group := range groups {
		found, err := query(ctx, &e.runner, readEntry, `SELECT number, holder, value FROM `+t.Name+` WHERE `+t.where+`
			ORDER BY number DESC LIMIT 1`, t.partOf(part, group)...)
		if err != nil || len(found) > 0 {
			return slices.Concat(found, []shapes.Entry{{}})[0], err
		}
	}
	return last, nil
}

// Trim implements shapes.Engine.
func (e *engine) Trim(ctx context.Context, t *shapes.Table, part []byte, before int) error {
	tb := e.tables[t]
	if tb.Group == 0 {
		return nil
	}
	last, err := e.last(ctx, tb, part)
	if err == nil && last.Number > 0 {
		err = e.trim(ctx, tb, part, min(before, last.Number))
	}
	return failed(err)
}

// trim removes entries of a long log, the oldest first, so that those which are left have no gap. It removes whole
// groups, and leaves one tombstone in the last.
func (e *engine) trim(ctx context.Context, t *table, part []byte, before int) error {
	groups, err := e.listedBuckets(ctx, t, part, 0, t.group(before), false, math.MaxInt32)
	for i := 0; i < len(groups) && err == nil; i++ {
		g := groups[i]
		if int64(before) < (g+1)*int64(t.Group) {
			return e.exec(ctx, plain, `DELETE FROM `+t.Name+` WHERE `+t.where+` AND number < ?`, part, g, before)
		}
		err = e.exec(ctx, plain, `DELETE FROM `+t.Name+` WHERE `+t.where, part, g)
		if err == nil {
			err = e.unlist(ctx, t, part, g)
		}
	}
	return err
}

// Rewrite implements shapes.Engine.
func (e *engine) Rewrite(
	ctx context.Context, t *shapes.Table, part []byte, entry shapes.Entry, was []byte,
) (bool, error) {
	tb := e.tables[t]
	args := append([]any{filled(entry.Value)}, tb.partOf(part, tb.group(entry.Number))...)
	done, _, err := e.cas(ctx, deciding, `UPDATE `+t.Name+` SET value = ? WHERE `+tb.where+` AND number = ? IF value = ?`,
		append(args, entry.Number, filled(was))...)
	return done, failed(err)
}
