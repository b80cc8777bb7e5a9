package cassandra

import (
	"context"
	"fmt"
	"slices"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store/shapes"
)

// How it is decided which row is in a table that is Vetoed:
//
// All callers but one make the same row, so making it needs no compare-and-set unless a veto is there. A veto is
// written and then the row is read. The row is written and then the veto is read. Each reads after its own write, so at
// least one of them sees the other, and then the verdict is decided by compare-and-set. Who made the row, and readers
// that see both, decide that it is made. Who vetoed it decides that it is vetoed if it saw no row, and that it is made
// otherwise. So making a row costs only one read more, and a row that is written after a veto, even hours later, does
// not count.

// The values of the column verdict.
const (
	verdictMade   = "made"
	verdictVetoed = "vetoed"
)

// contested is a row with its veto. The version of either is 0 if it is not there.
type contested struct {
	row, veto shapes.Row
	verdict   string
}

// vetoes decides which rows are in a table that is Vetoed.
type vetoes struct {
	writer *writer
	t      *table
}

// contest returns the rows of a condition with their vetoes.
func (v vetoes) contest(ctx context.Context, condition string, args ...any) ([]contested, error) {
	return query(ctx, v.writer.runner, func(scan scanner) (c contested, err error) {
		var part, key, raw, veto []byte
		var left, vetoLeft int64
		if err := scan(&part, &key, &raw, &c.row.Version, &left, &veto, &vetoLeft, &c.verdict); err != nil {
			return c, err
		}
		c.row.Part, c.row.Key, c.row.TTL = part, key, lasts(left)
		c.veto = shapes.Row{Part: part, Key: key, TTL: lasts(vetoLeft)}
		if c.row.Version > 0 {
			err = unpack(raw, &c.row)
		}
		if err == nil && veto != nil {
			c.veto.Version = 1
			err = unpack(veto, &c.veto)
		}
		return c, err
	}, `SELECT part, `+v.t.columns+` FROM `+v.t.Name+` WHERE `+condition, args...)
}

// settled returns the rows of a condition that exist, or their vetoes.
func (v vetoes) settled(ctx context.Context, condition string, args ...any) ([]shapes.Row, error) {
	found, err := v.contest(ctx, condition, args...)
	if err != nil {
		return nil, err
	}
	rows := make([]shapes.Row, len(found))
	err = each(ctx, len(found), func(ctx context.Context, i int) error {
		c := &found[i]
		if c.row.Version > 0 && c.veto.Version > 0 && c.verdict == "" {
			// A read has no outcome.
			if err := v.judge(ctx, plain, c, verdictMade); err != nil {
				return err
			}
		}
		if rows[i] = c.row; c.verdict == verdictVetoed {
			rows[i] = c.veto
		}
		return nil
	})
	return slices.DeleteFunc(rows, func(r shapes.Row) bool { return r.Version == 0 }), err
}

// judge decides a verdict, unless another is there already.
func (v vetoes) judge(ctx context.Context, how effort, c *contested, verdict string) error {
	using, args := ``, []any(nil)
	if verdict == verdictVetoed {
		using, args = ttl(` USING`, c.veto.TTL)
	}
	cql := `UPDATE ` + v.t.Name + using + ` SET verdict = ? WHERE ` + v.t.exact() + ` IF verdict = ?`
	applied, row, err := v.writer.cas(ctx, how, cql,
		slices.Concat(args, []any{verdict}, v.t.place(&c.row), []any{nil})...)
	if err != nil {
		return err
	}
	if c.verdict = verdict; !applied {
		c.verdict, _ = row["verdict"].(string)
	}
	return nil
}

// make makes a row, or vetoes it. It returns what is there if that was refused.
func (v vetoes) make(ctx context.Context, w *shapes.Swap) (*shapes.Row, error) {
	if w.Was != 0 || w.Remove || w.Veto && w.Version != 1 {
		return nil, fmt.Errorf("%w: swap in %s", models.ErrInvalid, v.t.Name)
	}
	if w.Veto {
		return v.veto(ctx, w)
	}
	if err := v.writer.send(ctx, deciding, []write{v.t.write(&w.Row, w.Version)}); err != nil {
		return nil, err
	}
	quick := func(scan scanner) (fine bool, err error) { // it reads no value
		var version int64
		var veto []byte
		err = scan(&version, &veto)
		return version == w.Version && veto == nil, err
	}
	fine, err := query(ctx, v.writer.runner, quick, `SELECT WRITETIME(value), veto FROM `+v.t.Name+` WHERE `+v.t.exact(),
		v.t.place(&w.Row)...)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", models.ErrOutcomeUnknown, err)
	}
	if len(fine) == 1 && fine[0] {
		return nil, nil
	}
	rows, err := v.settled(ctx, v.t.exact(), v.t.place(&w.Row)...)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", models.ErrOutcomeUnknown, err) // who vetoed may decide that it is made
	case len(rows) == 0:
		return &shapes.Row{}, nil // it was removed
	case same(&rows[0], &w.Row):
		return nil, nil
	}
	return &rows[0], nil
}

// veto keeps a row away that does not exist yet.
func (v vetoes) veto(ctx context.Context, w *shapes.Swap) (*shapes.Row, error) {
	using, args := ttl(` AND`, w.TTL)
	if err := v.writer.exec(ctx, plain, `UPDATE `+v.t.Name+` USING TIMESTAMP 1`+using+` SET veto = ? WHERE `+v.t.exact(),
		slices.Concat(args, []any{v.t.pack(&w.Row)}, v.t.place(&w.Row))...); err != nil {
		return nil, err
	}
	read := func() (contested, error) {
		found, err := v.contest(ctx, v.t.exact(), v.t.place(&w.Row)...)
		if err != nil || len(found) == 0 {
			return contested{row: shapes.Row{Part: w.Part, Key: w.Key}, veto: w.Row}, err
		}
		return found[0], nil
	}
	c, err := read()
	if err != nil {
		return nil, err
	}
	if c.verdict == "" {
		verdict := verdictVetoed
		if c.row.Version > 0 {
			verdict = verdictMade
		}
		if err := v.judge(ctx, deciding, &c, verdict); err != nil {
			return nil, err
		}
	}
	if c.verdict == verdictVetoed {
		return nil, nil
	}
	if c.row.Version == 0 { // it was written meanwhile
		if c, err = read(); err != nil {
			return nil, err
		}
	}
	return &c.row, nil
}
