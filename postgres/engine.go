package postgres

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store/shapes"
)

// engine implements shapes.Engine.
type engine struct {
	pool       *pgxpool.Pool
	schema     string
	timeout    time.Duration
	statements map[*shapes.Table]*statements
}

// statements are the texts of the statements on a table.
type statements struct {
	table                                string
	put, create, update, remove          string
	find, findMany, removeRows, removeIn string
	append, read, last, trim, rewrite    string
	dropParts, fence, sweep              string
}

// The parts of statements on rows. A row that has ended does not exist.
const (
	columns = `(part, key, version, value, gone, ends)`
	// values are the parameters of a row; the first one has the number %d.
	endsAt    = `CASE WHEN %s > 0 THEN now() + interval '1 microsecond' * %[1]s END`
	lives     = `(t.ends IS NULL OR t.ends > now())`
	replace   = `version = excluded.version, value = excluded.value, gone = excluded.gone, ends = excluded.ends`
	selectRow = `t.key, t.version, t.value, t.gone, coalesce((extract(epoch FROM t.ends - now()) * 1000000)::bigint, 0)`
)

// rowValues returns the parameters of a row as a list, numbered from first.
func rowValues(first int) string {
	p := func(n int) string { return fmt.Sprintf("$%d", first+n) }
	return fmt.Sprintf("%s::bytea, %s::bytea, %s::bigint, %s::bytea, %s::boolean, ", p(0), p(1), p(2), p(3), p(4)) +
		fmt.Sprintf(endsAt, p(5)+"::bigint")
}

// rowArgs returns the values of rowValues.
func rowArgs(r *shapes.Row) []any {
	return []any{filled(r.Part), filled(r.Key), r.Version, filled(r.Value), r.Gone, r.TTL.Microseconds()}
}

// filled returns b, or an empty slice for nil, which would be NULL.
func filled(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

func newStatements(schema string, t *shapes.Table) *statements {
	s := &statements{table: schema + "." + t.Name}
	s.dropParts = `DELETE FROM ` + s.table + ` WHERE part = ANY($1)`
	if t.Log {
		s.append = `INSERT INTO ` + s.table + ` (part, number, token, value)
			SELECT $1::bytea, $2::bigint, $3::bytea, $4::bytea
			WHERE CASE WHEN $2 = 1 THEN NOT EXISTS (SELECT FROM ` + s.table + ` WHERE part = $1)
			ELSE EXISTS (SELECT FROM ` + s.table + ` WHERE part = $1 AND number = $2 - 1) END ON CONFLICT DO NOTHING`
		s.read = `SELECT number, token, value FROM ` + s.table + ` WHERE part = $1 AND number > $2 ORDER BY number LIMIT $3`
		s.last = `SELECT number, token, value FROM ` + s.table + ` WHERE part = $1 ORDER BY number DESC LIMIT 1`
		s.trim = `DELETE FROM ` + s.table + ` WHERE part = $1
			AND number < LEAST($2, (SELECT max(number) FROM ` + s.table + ` WHERE part = $1))`
		s.rewrite = `UPDATE ` + s.table + ` SET value = $3 WHERE part = $1 AND number = $2 AND value = $4`
		return s
	}
	s.put = s.insert(t, 1, "true")
	if t.Fenced {
		s.put = s.insert(t, 1, `NOT EXISTS (SELECT FROM `+s.table+` AS t
			WHERE t.part = $1 AND t.key = '' AND t.version >= $3 AND `+lives+`)`)
	}
	s.create = `INSERT INTO ` + s.table + ` AS t ` + columns + ` VALUES (` + rowValues(1) + `)
		ON CONFLICT (part, key) DO UPDATE SET ` + replace + ` WHERE t.ends <= now()`
	s.update = `UPDATE ` + s.table + ` AS t SET (part, key, version, value, gone, ends) = (` + rowValues(1) + `)
		WHERE t.part = $1 AND t.key = $2 AND t.version = $7 AND ` + lives
	s.remove = `DELETE FROM ` + s.table + ` AS t WHERE t.part = $1 AND t.key = $2 AND t.version = $3 AND ` + lives
	s.find = `SELECT ` + selectRow + ` FROM ` + s.table + ` AS t
		WHERE t.part = $1 AND t.key >= $2 AND t.key < $3 AND ` + lives + ` ORDER BY t.key`
	s.findMany = `SELECT ` + selectRow + `, a.n FROM unnest($1::bytea[], $2::bytea[], $3::bytea[]) WITH ORDINALITY
		AS a (part, low, high, n) JOIN LATERAL (SELECT * FROM ` + s.table + ` AS r
		WHERE r.part = a.part AND r.key >= a.low AND r.key < a.high OFFSET 0) AS t ON true
		WHERE ` + lives + ` ORDER BY a.n, t.key`
	s.removeRows = `DELETE FROM ` + s.table + ` AS t
		USING unnest($1::bytea[], $2::bytea[], $3::bytea[]) AS a (part, low, high)
		WHERE t.part = a.part AND t.key >= a.low AND t.key < a.high`
	s.removeIn = `WITH piece AS (SELECT (SELECT key FROM ` + s.table + ` WHERE part = $1 AND key >= $2 AND key < $3
		ORDER BY key OFFSET ` + fmt.Sprint(sweepRows) + ` LIMIT 1) AS high),
		gone AS (DELETE FROM ` + s.table + ` AS t USING piece
		WHERE t.part = $1 AND t.key >= $2 AND t.key < coalesce(piece.high, $3)) SELECT high FROM piece`
	s.fence = `INSERT INTO ` + s.table + ` AS t ` + columns + ` VALUES (` + rowValues(1) + `)
		ON CONFLICT (part, key) DO UPDATE SET ` + replace
	s.sweep = `DELETE FROM ` + s.table + ` WHERE ends <= now() AND ctid = ANY(ARRAY(SELECT ctid FROM ` + s.table + `
		WHERE ends <= now() LIMIT ` + fmt.Sprint(sweepRows) + ` FOR UPDATE SKIP LOCKED))`
	return s
}

// insert returns the statement that puts a row whose parameters are numbered from first, if a condition holds.
func (s *statements) insert(t *shapes.Table, first int, condition string) string {
	text := `INSERT INTO ` + s.table + ` AS t ` + columns + ` SELECT ` + rowValues(first) + ` WHERE ` + condition
	if t.FirstStays {
		return text + ` ON CONFLICT DO NOTHING`
	}
	return text + ` ON CONFLICT (part, key) DO UPDATE SET ` + replace + ` WHERE excluded.version > t.version
		OR excluded.version = t.version AND excluded.value > t.value OR t.ends <= now()`
}

// pipeline runs statements in one implicit transaction.
func (e *engine) pipeline(ctx context.Context, b *pgx.Batch) error {
	return e.pool.SendBatch(ctx, b).Close()
}

// Put implements shapes.Engine. Rows are written in the order of their keys, so that two calls cannot wait for each
// other.
func (e *engine) Put(ctx context.Context, puts ...shapes.Put) error {
	if len(puts) == 0 {
		return nil
	}
	if p := &puts[0]; len(puts) == 1 && !p.Table.Fenced {
		return failed(e.try(ctx, plain, func(ctx context.Context) error {
			_, err := e.pool.Exec(ctx, e.statements[p.Table].put, rowArgs(&p.Row)...)
			return err
		}))
	}
	puts = slices.Clone(puts)
	slices.SortStableFunc(puts, func(a, b shapes.Put) int {
		return cmp.Or(cmp.Compare(a.Table.Name, b.Table.Name), bytes.Compare(a.Part, b.Part), bytes.Compare(a.Key, b.Key))
	})
	return failed(e.try(ctx, plain, func(ctx context.Context) error {
		b := &pgx.Batch{}
		for i := range puts {
			p := &puts[i]
			if p.Table.Fenced && (i == 0 || !bytes.Equal(p.Part, puts[i-1].Part)) {
				b.Queue(`SELECT pg_advisory_xact_lock_shared($1)`, e.lock(p.Table.Name, p.Part))
			}
			b.Queue(e.statements[p.Table].put, rowArgs(&p.Row)...)
		}
		return e.pipeline(ctx, b)
	}))
}

// swapTries is how often a swap is tried that other callers overtake.
const swapTries = 20

// Swap implements shapes.Engine.
func (e *engine) Swap(
	ctx context.Context, swaps []shapes.Swap, also ...shapes.Put,
) (refused []shapes.Refusal, err error) {
	if len(swaps) == 0 {
		return nil, nil
	}
	order := make([]int, len(swaps))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return bytes.Compare(swaps[a].Key, swaps[b].Key) })
	tries := 0
	err = e.try(ctx, deciding, func(ctx context.Context) error {
		if tries++; tries > swapTries {
			return fmt.Errorf("%w: other callers change the same row again and again", models.ErrUnavailable)
		}
		applied, err := e.swapOnce(ctx, swaps, order, also)
		if err != nil {
			return err
		}
		refused, err = e.refusals(ctx, swaps, applied)
		return err
	})
	if err != nil {
		return nil, failed(err)
	}
	return refused, nil
}

// statement returns the statement of a swap.
func (e *engine) statement(w *shapes.Swap) (text string, args []any) {
	s := e.statements[w.Table]
	switch {
	case w.Remove:
		return s.remove, []any{filled(w.Part), filled(w.Key), w.Was}
	case w.Was == 0:
		return s.create, rowArgs(&w.Row)
	}
	return s.update, append(rowArgs(&w.Row), w.Was)
}

// swapOnce tries swaps, in an order, and reports which were applied.
func (e *engine) swapOnce(ctx context.Context, swaps []shapes.Swap, order []int, also []shapes.Put) ([]bool, error) {
	applied := make([]bool, len(swaps))
	if len(swaps) == 1 {
		text, args := e.statement(&swaps[0])
		if len(also) == 0 {
			tag, err := e.pool.Exec(ctx, text, args...)
			applied[0] = tag.RowsAffected() > 0
			return applied, err
		}
		text = `WITH swap AS (` + text + ` RETURNING 1)`
		for i := range also {
			t := also[i].Table
			text += fmt.Sprintf(`, also%d AS (%s)`, i, e.statements[t].insert(t, len(args)+1, `EXISTS (SELECT FROM swap)`))
			args = append(args, rowArgs(&also[i].Row)...)
		}
		n := 0
		err := e.pool.QueryRow(ctx, text+` SELECT count(*) FROM swap`, args...).Scan(&n)
		applied[0] = n > 0
		return applied, err
	}
	b := &pgx.Batch{}
	for _, i := range order {
		text, args := e.statement(&swaps[i])
		b.Queue(text, args...)
	}
	results := e.pool.SendBatch(ctx, b)
	for _, i := range order {
		tag, err := results.Exec()
		if err != nil {
			_ = results.Close() // the same failure
			return nil, err
		}
		applied[i] = tag.RowsAffected() > 0
	}
	return applied, results.Close()
}

// refusals reads what is there instead of the swaps that were not applied. Errors: errAgain (a swap would succeed now).
func (e *engine) refusals(ctx context.Context, swaps []shapes.Swap, applied []bool) (out []shapes.Refusal, err error) {
	for i := range swaps {
		w := &swaps[i]
		if applied[i] {
			continue
		}
		there := shapes.Row{}
		found, err := e.findOnce(ctx, shapes.Address{Table: w.Table, Part: w.Part, Key: w.Key})
		if err != nil {
			return nil, err
		}
		for _, row := range found {
			if bytes.Equal(row.Key, w.Key) {
				there = row
			}
		}
		switch {
		case !w.Remove && there.Version == w.Version && there.Gone == w.Gone && bytes.Equal(there.Value, w.Value):
			continue // a repeat
		case there.Version == w.Was && !(w.Remove && w.Was == 0):
			return nil, errAgain
		}
		out = append(out, shapes.Refusal{Index: i, There: there})
	}
	return out, nil
}

// bounds returns the range of the keys that begin with prefix.
func bounds(prefix []byte) (low, high []byte) {
	high = bytes.Clone(prefix)
	for i := len(high) - 1; i >= 0; i-- {
		if high[i]++; high[i] != 0 {
			return filled(prefix), high[:i+1]
		}
	}
	return filled(prefix), bytes.Repeat([]byte{0xff}, 40) // no key begins with that
}

// scanRow reads a row of selectRow. more are columns after it.
func scanRow(rows pgx.Rows, r *shapes.Row, more ...any) error {
	var left int64
	err := rows.Scan(append([]any{&r.Key, &r.Version, &r.Value, &r.Gone, &left}, more...)...)
	if left > 0 {
		r.TTL = time.Duration(left) * time.Microsecond
	}
	return err
}

func (e *engine) findOnce(ctx context.Context, at shapes.Address) (out []shapes.Row, err error) {
	low, high := bounds(at.Key)
	rows, err := e.pool.Query(ctx, e.statements[at.Table].find, filled(at.Part), low, high)
	if err != nil {
		return nil, err
	}
	return scanRows(rows, at.Part)
}

// scanRows reads and closes rows of a partition.
func scanRows(rows pgx.Rows, part []byte) (out []shapes.Row, err error) {
	defer rows.Close()
	for rows.Next() {
		r := shapes.Row{Part: part}
		if err := scanRow(rows, &r); err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, rows.Err()
}

// addresses are addresses of one table, as arrays.
type addresses struct {
	table            *shapes.Table
	parts, low, high [][]byte
	index            []int // in the arguments of the call
}

// byTable groups addresses.
func byTable(at []shapes.Address) (groups []*addresses) {
	for i := range at {
		n := slices.IndexFunc(groups, func(g *addresses) bool { return g.table == at[i].Table })
		if n < 0 {
			n, groups = len(groups), append(groups, &addresses{table: at[i].Table})
		}
		g := groups[n]
		low, high := bounds(at[i].Key)
		g.parts, g.low, g.high = append(g.parts, filled(at[i].Part)), append(g.low, low), append(g.high, high)
		g.index = append(g.index, i)
	}
	return groups
}

// Find implements shapes.Engine.
func (e *engine) Find(ctx context.Context, at ...shapes.Address) (out [][]shapes.Row, err error) {
	if len(at) == 0 {
		return nil, nil
	}
	groups := byTable(at)
	err = e.try(ctx, plain, func(ctx context.Context) (err error) {
		out = make([][]shapes.Row, len(at))
		if len(at) == 1 {
			out[0], err = e.findOnce(ctx, at[0])
			return err
		}
		b := &pgx.Batch{}
		for _, g := range groups {
			b.Queue(e.statements[g.table].findMany, g.parts, g.low, g.high).Query(func(rows pgx.Rows) error {
				for rows.Next() {
					var (
						r shapes.Row
						n int
					)
					if err := scanRow(rows, &r, &n); err != nil {
						return err
					}
					i := g.index[n-1]
					r.Part = at[i].Part
					out[i] = append(out[i], r)
				}
				return rows.Err()
			})
		}
		return e.pipeline(ctx, b)
	})
	if err != nil {
		return nil, failed(err)
	}
	return out, nil
}

// Scan implements shapes.Engine.
func (e *engine) Scan(ctx context.Context, t *shapes.Table, part []byte, r shapes.Range) (out []shapes.Row, err error) {
	if r.Limit <= 0 {
		return nil, nil
	}
	text, args := `SELECT `+selectRow, []any{filled(part), r.Limit}
	if r.Head > 0 {
		text = strings.Replace(text, `t.value`, `substring(t.value FROM 1 FOR $3)`, 1)
		args = append(args, r.Head)
	}
	text += ` FROM ` + e.statements[t].table + ` AS t WHERE t.part = $1 AND NOT t.gone AND ` + lives
	for _, bound := range []struct {
		op  string
		key []byte
	}{{`>=`, r.From}, {`<`, r.To}} {
		if bound.key != nil {
			args = append(args, bound.key)
			text += fmt.Sprintf(` AND t.key %s $%d`, bound.op, len(args))
		}
	}
	text += ` ORDER BY t.key`
	if r.Back {
		text += ` DESC`
	}
	err = e.try(ctx, plain, func(ctx context.Context) error {
		rows, err := e.pool.Query(ctx, text+` LIMIT $2`, args...)
		if err == nil {
			out, err = scanRows(rows, part)
		}
		return err
	})
	if err != nil {
		return nil, failed(err)
	}
	return out, nil
}

// exec runs a statement that may be repeated.
func (e *engine) exec(ctx context.Context, text string, args ...any) error {
	return failed(e.try(ctx, plain, func(ctx context.Context) error {
		_, err := e.pool.Exec(ctx, text, args...)
		return err
	}))
}

// RemoveRows implements shapes.Engine.
func (e *engine) RemoveRows(ctx context.Context, at ...shapes.Address) error {
	for _, g := range byTable(at) {
		if err := e.exec(ctx, e.statements[g.table].removeRows, g.parts, g.low, g.high); err != nil {
			return err
		}
	}
	return nil
}

// RemoveRange implements shapes.Engine.
func (e *engine) RemoveRange(ctx context.Context, t *shapes.Table, part, from, to []byte) error {
	if to == nil {
		_, to = bounds(nil)
	}
	for from = filled(from); from != nil; {
		err := e.try(ctx, plain, func(ctx context.Context) error {
			var next []byte // what is left begins here
			err := e.pool.QueryRow(ctx, e.statements[t].removeIn, filled(part), from, to).Scan(&next)
			if err == nil {
				from = next
			}
			return err
		})
		if err != nil {
			return failed(err)
		}
	}
	return nil
}

// RemoveParts implements shapes.Engine. A lock makes sure that no row that was on its way is left behind a fence.
func (e *engine) RemoveParts(
	ctx context.Context, t *shapes.Table, fence int64, keep time.Duration, parts ...[]byte,
) error {
	s := e.statements[t]
	if fence == 0 {
		return e.exec(ctx, s.dropParts, parts)
	}
	return failed(e.try(ctx, plain, func(ctx context.Context) error {
		b := &pgx.Batch{}
		for _, part := range parts {
			b.Queue(`SELECT pg_advisory_xact_lock($1)`, e.lock(t.Name, part))
			b.Queue(s.dropParts, [][]byte{part})
			b.Queue(s.fence, rowArgs(&shapes.Row{Part: part, Version: fence, Gone: true, TTL: keep})...)
		}
		return e.pipeline(ctx, b)
	}))
}

// Append implements shapes.Engine.
func (e *engine) Append(
	ctx context.Context, t *shapes.Table, part []byte, entry shapes.Entry,
) (there shapes.Entry, err error) {
	s := e.statements[t]
	err = e.try(ctx, settling, func(ctx context.Context) error {
		there = shapes.Entry{}
		tag, err := e.pool.Exec(ctx, s.append, part, entry.Number, filled(entry.Token), filled(entry.Value))
		if err != nil || tag.RowsAffected() > 0 {
			return err
		}
		found, err := e.entries(ctx, s.read, part, entry.Number-1, 1)
		switch {
		case err != nil:
			return err
		case len(found) == 0:
			return fmt.Errorf("%w: there is no entry %d", models.ErrInvalid, entry.Number-1)
		case found[0].Number == entry.Number && bytes.Equal(found[0].Token, entry.Token):
			return nil // a repeat
		}
		there = found[0]
		return nil
	})
	return there, failed(err)
}

func (e *engine) entries(ctx context.Context, text string, args ...any) (out []shapes.Entry, err error) {
	rows, err := e.pool.Query(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	return scanEntries(rows)
}

// scanEntries reads and closes entries.
func scanEntries(rows pgx.Rows) (out []shapes.Entry, err error) {
	defer rows.Close()
	for rows.Next() {
		var entry shapes.Entry
		if err := rows.Scan(&entry.Number, &entry.Token, &entry.Value); err != nil {
			return nil, err
		}
		out = append(out, entry)
	}
	return out, rows.Err()
}

// Read implements shapes.Engine.
func (e *engine) Read(
	ctx context.Context, t *shapes.Table, part []byte, after, limit int,
) (out []shapes.Entry, err error) {
	err = e.try(ctx, plain, func(ctx context.Context) (err error) {
		out, err = e.entries(ctx, e.statements[t].read, part, after, max(limit, 0))
		return err
	})
	return out, failed(err)
}

// ReadWith implements shapes.Engine. One round trip reads both.
func (e *engine) ReadWith(
	ctx context.Context, log, rows *shapes.Table, part []byte, r shapes.Range,
) (es []shapes.Entry, out []shapes.Row, err error) {
	low, high := filled(r.From), r.To
	if high == nil {
		_, high = bounds(nil)
	}
	err = e.try(ctx, plain, func(ctx context.Context) error {
		es, out = nil, nil
		b := &pgx.Batch{}
		b.Queue(e.statements[log].read, part, 0, math.MaxInt32).Query(func(found pgx.Rows) (err error) {
			es, err = scanEntries(found)
			return err
		})
		b.Queue(e.statements[rows].find, part, low, high).Query(func(found pgx.Rows) (err error) {
			out, err = scanRows(found, part)
			return err
		})
		return e.pipeline(ctx, b)
	})
	if err != nil {
		return nil, nil, failed(err)
	}
	return es, slices.DeleteFunc(out, func(r shapes.Row) bool { return r.Gone }), nil
}

// Last implements shapes.Engine.
func (e *engine) Last(ctx context.Context, t *shapes.Table, part []byte) (last shapes.Entry, err error) {
	err = e.try(ctx, plain, func(ctx context.Context) error {
		found, err := e.entries(ctx, e.statements[t].last, part)
		if len(found) > 0 {
			last = found[0]
		}
		return err
	})
	return last, failed(err)
}

// Trim implements shapes.Engine.
func (e *engine) Trim(ctx context.Context, t *shapes.Table, part []byte, before int) error {
	return e.exec(ctx, e.statements[t].trim, part, before)
}

// Rewrite implements shapes.Engine.
func (e *engine) Rewrite(
	ctx context.Context, t *shapes.Table, part []byte, entry shapes.Entry, was []byte,
) (done bool, err error) {
	err = e.try(ctx, deciding, func(ctx context.Context) error {
		tag, err := e.pool.Exec(ctx, e.statements[t].rewrite, part, entry.Number, filled(entry.Value), filled(was))
		done = tag.RowsAffected() > 0
		return err
	})
	return done, failed(err)
}

// Now implements shapes.Engine.
func (e *engine) Now(ctx context.Context) (now time.Time, err error) {
	err = e.try(ctx, plain, func(ctx context.Context) error {
		return e.pool.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now)
	})
	return now.UTC(), failed(err)
}

// sweepRows is how many rows Sweep deletes with one statement.
const sweepRows = 1000

// Sweep implements shapes.Engine.
func (e *engine) Sweep(ctx context.Context) error {
	for t, s := range e.statements {
		if t.Log || t.Bucket > 0 {
			continue
		}
		for n := int64(sweepRows); n >= sweepRows; {
			err := e.try(ctx, plain, func(ctx context.Context) error {
				tag, err := e.pool.Exec(ctx, s.sweep)
				n = tag.RowsAffected()
				return err
			})
			if err != nil {
				return failed(err)
			}
		}
	}
	return nil
}

// Ping implements shapes.Engine. It tries only briefly, and asks for a server that can write.
func (e *engine) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	only := ""
	if err := e.pool.QueryRow(ctx, `SHOW transaction_read_only`).Scan(&only); err != nil {
		return fmt.Errorf("%w: %w", models.ErrUnavailable, err)
	}
	if only == "on" {
		return fmt.Errorf("%w: the server only reads", models.ErrUnavailable)
	}
	return nil
}

// Close implements shapes.Engine.
func (e *engine) Close() error {
	e.pool.Close()
	return nil
}
