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

// partLog is the log of a partition.
type partLog struct {
	runner  *runner
	buckets *buckets
	t       *table
	part    []byte
}

// logOf returns the log of a partition.
func (e *engine) logOf(t *shapes.Table, part []byte) partLog {
	return partLog{&e.runner, e.buckets, e.tables[t], part}
}

// Append implements shapes.Engine. After a time-out it asks again with the same token. The entry that is there then
// says who won.
func (e *engine) Append(
	ctx context.Context, t *shapes.Table, part []byte, entry shapes.Entry,
) (there shapes.Entry, err error) {
	l := e.logOf(t, part)
	if l.t.Group == 0 {
		there, err = l.appendShort(ctx, &entry)
	} else {
		there, err = l.appendLong(ctx, &entry)
	}
	return there, failed(err)
}

// appendShort compares holder and value, too, so that a refusal returns them.
func (l partLog) appendShort(ctx context.Context, n *shapes.Entry) (there shapes.Entry, err error) {
	before := any(n.Number - 1)
	if n.Number <= 1 {
		before = nil
	}
	applied, row, err := l.runner.cas(ctx, settling, `UPDATE `+l.t.Name+` SET last = ?, holder = ?, value = ?
		WHERE part = ? AND number = ? IF last = ? AND holder = null AND value = null`,
		n.Number, filled(n.Token), filled(n.Value), l.part, n.Number, before)
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

func (l partLog) appendLong(ctx context.Context, n *shapes.Entry) (there shapes.Entry, err error) {
	group := l.t.group(n.Number)
	if later, err := l.later(ctx, n.Number); err != nil || later.Number > 0 {
		return later, err
	}
	if n.Number == 1 || n.Number%l.t.Group == 0 { // the first entry of its group
		in := bucketOf{table: l.t.Name, part: string(l.part), bucket: group}
		if err := l.buckets.list(ctx, map[bucketOf]int64{in: 0}); err != nil {
			return there, err
		}
	}
	applied, row, err := l.runner.cas(ctx, settling, `INSERT INTO `+l.t.Name+` (part, bucket, number, holder, value)
		VALUES (?, ?, ?, ?, ?) IF NOT EXISTS`, l.part, group, n.Number, filled(n.Token), filled(n.Value))
	if err != nil || applied {
		return there, err
	}
	return winner(n, row), nil
}

// later returns an entry of a long log that is there instead of one that was removed. Errors: models.ErrInvalid (the
// number before was never taken).
func (l partLog) later(ctx context.Context, number int) (none shapes.Entry, err error) {
	if before := number - 1; before > 0 {
		found, err := query(ctx, l.runner, column[int], `SELECT number FROM `+l.t.Name+`
			WHERE part = ? AND bucket = ? AND number = ?`, l.part, l.t.group(before), before)
		if err != nil || len(found) > 0 {
			return none, err
		}
	}
	found, err := l.readLong(ctx, number-1, 1)
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
func (l partLog) entries(ctx context.Context, group int64, after, limit int) ([]shapes.Entry, error) {
	return query(ctx, l.runner, readEntry, `SELECT number, holder, value FROM `+l.t.Name+` WHERE `+l.t.where+`
		AND number > ? LIMIT ?`, append(l.t.partOf(l.part, group), after, limit)...)
}

func readEntry(scan scanner) (n shapes.Entry, err error) {
	err = scan(&n.Number, &n.Token, &n.Value)
	return n, err
}

// Read implements shapes.Engine.
func (e *engine) Read(ctx context.Context, t *shapes.Table, part []byte, after, limit int) ([]shapes.Entry, error) {
	l := e.logOf(t, part)
	if limit <= 0 {
		return nil, nil
	}
	if l.t.Group == 0 {
		out, err := l.entries(ctx, 0, after, limit)
		return slices.DeleteFunc(out, func(n shapes.Entry) bool { return n.Number == 0 }), failed(err)
	}
	out, err := l.readLong(ctx, after, limit)
	return out, failed(err)
}

func (l partLog) readLong(ctx context.Context, after, limit int) (out []shapes.Entry, err error) {
	jumped := false
	for len(out) < limit {
		group := l.t.group(after + 1)
		found, err := l.entries(ctx, group, after, limit-len(out))
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
		later, err := l.buckets.listed(ctx, l.t, l.part, group+1, math.MaxInt64, false, 1)
		switch {
		case err != nil || len(later) == 0:
			return nil, err
		case !jumped:
			jumped = true
		default:
			after, jumped = int(later[0])*l.t.Group-1, false
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
	last, err := e.logOf(t, part).last(ctx)
	return last, failed(err)
}

// last returns the last entry. The newest group may have none yet.
func (l partLog) last(ctx context.Context) (last shapes.Entry, err error) {
	groups := []int64{0}
	if l.t.Group > 0 {
		if groups, err = l.buckets.listed(ctx, l.t, l.part, 0, math.MaxInt64, true, 2); err != nil {
			return last, err
		}
	}
	for _, group := range groups {
		found, err := query(ctx, l.runner, readEntry, `SELECT number, holder, value FROM `+l.t.Name+` WHERE `+l.t.where+`
			ORDER BY number DESC LIMIT 1`, l.t.partOf(l.part, group)...)
		if err != nil || len(found) > 0 {
			return slices.Concat(found, []shapes.Entry{{}})[0], err
		}
	}
	return last, nil
}

// Trim implements shapes.Engine.
func (e *engine) Trim(ctx context.Context, t *shapes.Table, part []byte, before int) error {
	l := e.logOf(t, part)
	if l.t.Group == 0 {
		return nil
	}
	last, err := l.last(ctx)
	if err == nil && last.Number > 0 {
		err = l.trim(ctx, min(before, last.Number))
	}
	return failed(err)
}

// trim removes entries of a long log, the oldest first, so that those which are left have no gap. It removes whole
// groups, and leaves one tombstone in the last.
func (l partLog) trim(ctx context.Context, before int) error {
	groups, err := l.buckets.listed(ctx, l.t, l.part, 0, l.t.group(before), false, math.MaxInt32)
	for i := 0; i < len(groups) && err == nil; i++ {
		g := groups[i]
		if int64(before) < (g+1)*int64(l.t.Group) {
			return l.runner.exec(ctx, plain, `DELETE FROM `+l.t.Name+` WHERE `+l.t.where+` AND number < ?`, l.part, g, before)
		}
		err = l.runner.exec(ctx, plain, `DELETE FROM `+l.t.Name+` WHERE `+l.t.where, l.part, g)
		if err == nil {
			err = l.buckets.unlist(ctx, l.t, l.part, g)
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
