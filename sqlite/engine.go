package sqlite

import (
	"bytes"
	"cmp"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store/shapes"
)

// engine implements shapes.Engine, and shapes.Leaser.
type engine struct {
	now        func() time.Time
	lock       *folderLock
	writer     *writer
	readers    chan *conn
	leases     leases
	statements map[*shapes.Table]*statements
}

// statements are the texts of the statements on a table. The parameters of a row are ?1 to ?6, and ?7 is the time. The
// driver makes a text for each number, so that what is written often has plain parameters. A limit is written ? + 0:
// SQLite prepares a statement anew when the parameter of a plain limit is bound.
type statements struct {
	ddl                                   string
	insert, insertPlain                   string
	newer, ended, update, replace         string
	remove, fenced, find, removeIn, sweep string
	append, read, last, trim, rewrite     string
	dropParts                             string
}

// sweepRows is how many rows are deleted with one write, so that other writes need not wait long.
const sweepRows = 500

const selectRow = `SELECT key, version, value, gone, ends FROM `

func newStatements(t *shapes.Table) *statements {
	s, name := &statements{}, t.Name
	rowid := ` WITHOUT ROWID`
	if t.Large {
		rowid = ``
	}
	if t.Log {
		s.ddl = `CREATE TABLE IF NOT EXISTS ` + name + ` (part BLOB NOT NULL, number INTEGER NOT NULL, token BLOB NOT NULL,
			value BLOB NOT NULL, PRIMARY KEY (part, number))` + rowid
		s.append = `INSERT INTO ` + name + ` (part, number, token, value) SELECT ?1, ?2, ?3, ?4
			WHERE iif(?2 = 1, NOT EXISTS (SELECT 1 FROM ` + name + ` WHERE part = ?1),
			EXISTS (SELECT 1 FROM ` + name + ` WHERE part = ?1 AND number = ?2 - 1)) ON CONFLICT DO NOTHING`
		s.read = `SELECT number, token, value FROM ` + name + ` WHERE part = ? AND number > ? ORDER BY number LIMIT ? + 0`
		s.last = `SELECT number, token, value FROM ` + name + ` WHERE part = ? ORDER BY number DESC LIMIT 1`
		s.trim = deleteSome(name, `part, number`, `part = ?1 AND number < min(?2, (SELECT max(number) FROM `+
			name+` WHERE part = ?1))`)
		s.rewrite = `UPDATE ` + name + ` SET value = ?3 WHERE part = ?1 AND number = ?2 AND value = ?4`
		s.dropParts = deleteSome(name, `part, number`, `part = ?1`)
		return s
	}
	s.ddl = `CREATE TABLE IF NOT EXISTS ` + name + ` (part BLOB NOT NULL, key BLOB NOT NULL, version INTEGER NOT NULL,
		value BLOB NOT NULL, gone INTEGER NOT NULL, ends INTEGER, PRIMARY KEY (part, key))` + rowid
	if t.Bucket == 0 {
		s.ddl += `; CREATE INDEX IF NOT EXISTS ` + name + `_ends ON ` + name + ` (ends) WHERE ends IS NOT NULL`
		s.sweep = deleteSome(name, `part, key`, `ends <= ?1`)
	}
	s.insert = `INSERT INTO ` + name + ` (part, key, version, value, gone, ends) VALUES (?, ?, ?, ?, ?, ?)
		ON CONFLICT DO NOTHING`
	s.insertPlain = `INSERT INTO ` + name + ` (part, key, version, value, gone) VALUES (?, ?, ?, ?, 0)
		ON CONFLICT DO NOTHING`
	const change, same = `SET version = ?3, value = ?4, gone = ?5, ends = ?6`, ` WHERE part = ?1 AND key = ?2`
	s.newer = `UPDATE ` + name + ` ` + change + same + ` AND (version < ?3 OR version = ?3 AND value < ?4 OR ends <= ?7)`
	s.ended = `UPDATE ` + name + ` ` + change + same + ` AND ends <= ?7`
	s.update = `UPDATE ` + name + ` ` + change + same + ` AND version = ?8 AND (ends IS NULL OR ends > ?7)`
	s.replace = `UPDATE ` + name + ` ` + change + same
	s.remove = `DELETE FROM ` + name + same + ` AND version = ?3 AND (ends IS NULL OR ends > ?4)`
	s.fenced = `SELECT 1 FROM ` + name + ` WHERE part = ? AND key = x'' AND version >= ? AND (ends IS NULL OR ends > ?)`
	s.find = selectRow + name + ` WHERE part = ? AND key >= ? AND key < ? AND (ends IS NULL OR ends > ?) ORDER BY key`
	s.removeIn = deleteSome(name, `part, key`, `part = ?1 AND key >= ?2 AND key < ?3`)
	s.dropParts = deleteSome(name, `part, key`, `part = ?1`)
	return s
}

// deleteSome returns a statement that deletes at most sweepRows rows.
func deleteSome(table, key, condition string) string {
	return `DELETE FROM ` + table + ` WHERE (` + key + `) IN (SELECT ` + key + ` FROM ` + table + ` WHERE ` + condition +
		` LIMIT ` + fmt.Sprint(sweepRows) + `)`
}

// filled returns b, or an empty slice for nil, which would be NULL.
func filled(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// rowArgs returns the parameters ?1 to ?7 of a row.
func rowArgs(r *shapes.Row, now int64) []any {
	gone, ends := 0, any(nil)
	if r.Gone {
		gone = 1
	}
	if r.TTL > 0 {
		ends = now + r.TTL.Milliseconds()
	}
	return []any{filled(r.Part), filled(r.Key), r.Version, filled(r.Value), gone, ends, now}
}

// rowOf reads a row of selectRow.
func rowOf(part []byte, row []driver.Value, now int64) shapes.Row {
	version, _ := row[1].(int64)
	gone, _ := row[3].(int64)
	r := shapes.Row{Part: part, Key: blob(row[0]), Version: version, Value: blob(row[2]), Gone: gone != 0}
	if ends, ok := row[4].(int64); ok {
		r.TTL = time.Duration(ends-now) * time.Millisecond
	}
	return r
}

func (e *engine) millis() int64 { return e.now().UnixMilli() }

// Put implements shapes.Engine.
func (e *engine) Put(ctx context.Context, puts ...shapes.Put) error {
	if len(puts) == 0 {
		return nil
	}
	now := e.millis()
	return e.write(ctx, sizeOf(puts), func(c *conn) error { return e.put(c, puts, now) })
}

func sizeOf(puts []shapes.Put) (size int) {
	for i := range puts {
		size += 100 + len(puts[i].Key) + len(puts[i].Value)
	}
	return size
}

// put stores rows. An insert that does nothing if there is a row costs SQLite half of one that changes the row then.
func (e *engine) put(c *conn, puts []shapes.Put, now int64) error {
	for i := range puts {
		p := &puts[i]
		if p.Table.Fenced {
			if fenced, err := e.isFenced(c, p, now); err != nil {
				return err
			} else if fenced {
				continue
			}
		}
		then := e.statements[p.Table].newer
		if p.Table.FirstStays {
			then = ""
		}
		if _, err := e.insert(c, p, then, now); err != nil {
			return err
		}
	}
	return nil
}

// insert inserts a row. If there is one, it runs the statement then, unless that is empty. It returns the number of
// rows that were written.
func (e *engine) insert(c *conn, p *shapes.Put, then string, now int64) (int64, error) {
	var (
		s    = e.statements[p.Table]
		args []any
		n    int64
		err  error
	)
	if !p.Gone && (p.TTL <= 0 || p.Table.Bucket > 0) {
		n, err = c.exec(s.insertPlain, filled(p.Part), filled(p.Key), p.Version, filled(p.Value))
	} else {
		args = rowArgs(&p.Row, now)
		n, err = c.exec(s.insert, args[:6]...)
	}
	if err != nil || n > 0 || then == "" {
		return n, err
	}
	if args == nil {
		args = rowArgs(&p.Row, now)
	}
	if then == s.replace {
		args = args[:6]
	}
	return c.exec(then, args...)
}

// isFenced reports whether the partition of a row has a fence that keeps it away.
func (e *engine) isFenced(c *conn, p *shapes.Put, now int64) (fenced bool, err error) {
	err = c.query(e.statements[p.Table].fenced, func([]driver.Value) error {
		fenced = true
		return nil
	}, filled(p.Part), p.Version, now)
	return fenced, err
}

// Swap implements shapes.Engine. One transaction makes all swaps.
func (e *engine) Swap(ctx context.Context, swaps []shapes.Swap, also ...shapes.Put) ([]shapes.Refusal, error) {
	if len(swaps) == 0 {
		return nil, nil
	}
	size := sizeOf(also)
	for i := range swaps {
		size += 100 + len(swaps[i].Value)
	}
	now := e.millis()
	return decided(ctx, e, size, func(c *conn) (refused []shapes.Refusal, err error) {
		for i := range swaps {
			done, there, err := e.swap(c, &swaps[i], now)
			if err != nil {
				return nil, err
			}
			if !done {
				refused = append(refused, shapes.Refusal{Index: i, There: there})
			}
		}
		if len(refused) > 0 {
			return refused, nil
		}
		for i := range also {
			if _, err := e.insert(c, &also[i], e.statements[also[i].Table].newer, now); err != nil {
				return nil, err
			}
		}
		return nil, nil
	})
}

// swap makes a swap. If it is refused, it returns the row that is there.
func (e *engine) swap(c *conn, w *shapes.Swap, now int64) (done bool, there shapes.Row, err error) {
	s := e.statements[w.Table]
	var n int64
	switch {
	case w.Remove:
		n, err = c.exec(s.remove, filled(w.Part), filled(w.Key), w.Was, now)
	case w.Was == 0:
		n, err = e.insert(c, &w.Put, s.ended, now)
	default:
		n, err = c.exec(s.update, append(rowArgs(&w.Row, now), w.Was)...)
	}
	if err != nil || n > 0 {
		return true, there, err
	}
	err = e.find(c, shapes.Address{Table: w.Table, Part: w.Part, Key: w.Key}, now, func(r shapes.Row) {
		if bytes.Equal(r.Key, w.Key) {
			there = r
		}
	})
	repeat := !w.Remove && there.Version == w.Version && there.Gone == w.Gone && bytes.Equal(there.Value, w.Value)
	return repeat, there, err
}

// bounds returns the range of the keys that begin with prefix.
func bounds(prefix []byte) (low, high []byte) {
	high = bytes.Clone(prefix)
	for i := len(high) - 1; i >= 0; i-- {
		if high[i]++; high[i] != 0 {
			return filled(prefix), high[:i+1]
		}
	}
	return filled(prefix), endOfKeys
}

// endOfKeys is greater than every key.
var endOfKeys = bytes.Repeat([]byte{0xff}, 40)

func (e *engine) find(c *conn, at shapes.Address, now int64, found func(shapes.Row)) error {
	low, high := bounds(at.Key)
	return c.query(e.statements[at.Table].find, func(row []driver.Value) error {
		found(rowOf(at.Part, row, now))
		return nil
	}, filled(at.Part), low, high, now)
}

// Find implements shapes.Engine.
func (e *engine) Find(ctx context.Context, at ...shapes.Address) ([][]shapes.Row, error) {
	out := make([][]shapes.Row, len(at))
	now := e.millis()
	err := e.read(ctx, func(c *conn) error {
		for i := range at {
			if err := e.find(c, at[i], now, func(r shapes.Row) { out[i] = append(out[i], r) }); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Scan implements shapes.Engine.
func (e *engine) Scan(ctx context.Context, t *shapes.Table, part []byte, r shapes.Range) (out []shapes.Row, err error) {
	if r.Limit <= 0 {
		return nil, nil
	}
	low, high := r.From, r.To
	if high == nil {
		high = endOfKeys
	}
	text := selectRow + t.Name + ` WHERE part = ? AND key >= ? AND key < ? AND gone = 0 AND (ends IS NULL OR ends > ?)
		ORDER BY key LIMIT ? + 0`
	if r.Back {
		text = strings.Replace(text, `ORDER BY key`, `ORDER BY key DESC`, 1)
	}
	if r.Head > 0 {
		text = strings.Replace(text, ` value,`, fmt.Sprintf(` substr(value, 1, %d),`, r.Head), 1)
	}
	now := e.millis()
	err = e.read(ctx, func(c *conn) error {
		out = nil
		return c.query(text, func(row []driver.Value) error {
			out = append(out, rowOf(part, row, now))
			return nil
		}, filled(part), filled(low), high, now, r.Limit)
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// sweepAll repeats a statement that deletes at most sweepRows rows until it deletes fewer.
func (e *engine) sweepAll(ctx context.Context, statement string, args ...any) error {
	for {
		var n int64
		err := e.write(ctx, 100*sweepRows, func(c *conn) (err error) {
			n, err = c.exec(statement, args...)
			return err
		})
		if err != nil || n < sweepRows {
			return err
		}
	}
}

// RemoveRows implements shapes.Engine.
func (e *engine) RemoveRows(ctx context.Context, at ...shapes.Address) error {
	for i := range at {
		low, high := bounds(at[i].Key)
		if err := e.sweepAll(ctx, e.statements[at[i].Table].removeIn, filled(at[i].Part), low, high); err != nil {
			return err
		}
	}
	return nil
}

// RemoveRange implements shapes.Engine.
func (e *engine) RemoveRange(ctx context.Context, t *shapes.Table, part, from, to []byte) error {
	if to == nil {
		to = endOfKeys
	}
	return e.sweepAll(ctx, e.statements[t].removeIn, filled(part), filled(from), to)
}

// RemoveParts implements shapes.Engine. The fence, whose key is empty, comes first.
func (e *engine) RemoveParts(
	ctx context.Context, t *shapes.Table, fence int64, keep time.Duration, parts ...[]byte,
) error {
	s := e.statements[t]
	for _, part := range parts {
		statement, args := s.dropParts, []any{part}
		if fence > 0 {
			now := e.millis()
			row := shapes.Put{Table: t, Row: shapes.Row{Part: part, Version: fence, Gone: true, TTL: keep}}
			err := e.write(ctx, 100, func(c *conn) error {
				_, err := e.insert(c, &row, s.replace, now)
				return err
			})
			if err != nil {
				return err
			}
			statement, args = s.removeIn, []any{part, []byte{0}, endOfKeys}
		}
		if err := e.sweepAll(ctx, statement, args...); err != nil {
			return err
		}
	}
	return nil
}

// Append implements shapes.Engine.
func (e *engine) Append(
	ctx context.Context, t *shapes.Table, part []byte, entry shapes.Entry,
) (shapes.Entry, error) {
	s := e.statements[t]
	return decided(ctx, e, 100+len(entry.Value), func(c *conn) (there shapes.Entry, err error) {
		n, err := c.exec(s.append, part, entry.Number, filled(entry.Token), filled(entry.Value))
		if err != nil || n > 0 {
			return there, err
		}
		found, err := entries(c, s.read, part, entry.Number-1, 1)
		switch {
		case err != nil:
			return there, err
		case len(found) == 0:
			return there, fmt.Errorf("%w: there is no entry %d", models.ErrInvalid, entry.Number-1)
		case found[0].Number != entry.Number || !bytes.Equal(found[0].Token, entry.Token): // else it is a repeat
			there = found[0]
		}
		return there, nil
	})
}

// entries reads the entries that a query selects.
func entries(c *conn, query string, args ...any) (out []shapes.Entry, err error) {
	err = c.query(query, func(row []driver.Value) error {
		number, _ := row[0].(int64)
		out = append(out, shapes.Entry{Number: int(number), Token: blob(row[1]), Value: blob(row[2])})
		return nil
	}, args...)
	return out, err
}

// Read implements shapes.Engine.
func (e *engine) Read(
	ctx context.Context, t *shapes.Table, part []byte, after, limit int,
) (out []shapes.Entry, err error) {
	err = e.read(ctx, func(c *conn) (err error) {
		out, err = entries(c, e.statements[t].read, part, after, max(limit, 0))
		return err
	})
	return out, err
}

// ReadWith implements shapes.Engine. One statement reads both.
func (e *engine) ReadWith(
	ctx context.Context, log, rows *shapes.Table, part []byte, r shapes.Range,
) (es []shapes.Entry, out []shapes.Row, err error) {
	text := `SELECT number, token, value FROM ` + log.Name + ` WHERE part = ?1 UNION ALL
		SELECT key, version, value FROM ` + rows.Name + ` WHERE part = ?1 AND gone = 0 AND (ends IS NULL OR ends > ?2)`
	args := []any{part, e.millis()}
	if r.From != nil || r.To != nil {
		high := r.To
		if high == nil {
			high = endOfKeys
		}
		text, args = text+` AND key >= ?3 AND key < ?4`, append(args, filled(r.From), high)
	}
	err = e.read(ctx, func(c *conn) error {
		return c.query(text, func(row []driver.Value) error {
			if number, ok := row[0].(int64); ok {
				es = append(es, shapes.Entry{Number: int(number), Token: blob(row[1]), Value: blob(row[2])})
				return nil
			}
			version, _ := row[1].(int64)
			out = append(out, shapes.Row{Part: part, Key: blob(row[0]), Version: version, Value: blob(row[2])})
			return nil
		}, args...)
	})
	if err != nil {
		return nil, nil, err
	}
	// SQL promises no order for a union.
	slices.SortFunc(es, func(a, b shapes.Entry) int { return cmp.Compare(a.Number, b.Number) })
	slices.SortFunc(out, func(a, b shapes.Row) int { return bytes.Compare(a.Key, b.Key) })
	return es, out, nil
}

// Last implements shapes.Engine.
func (e *engine) Last(ctx context.Context, t *shapes.Table, part []byte) (last shapes.Entry, err error) {
	err = e.read(ctx, func(c *conn) error {
		found, err := entries(c, e.statements[t].last, part)
		if len(found) > 0 {
			last = found[0]
		}
		return err
	})
	return last, err
}

// Trim implements shapes.Engine.
func (e *engine) Trim(ctx context.Context, t *shapes.Table, part []byte, before int) error {
	return e.sweepAll(ctx, e.statements[t].trim, part, before)
}

// Rewrite implements shapes.Engine.
func (e *engine) Rewrite(
	ctx context.Context, t *shapes.Table, part []byte, entry shapes.Entry, was []byte,
) (bool, error) {
	return decided(ctx, e, 100+len(entry.Value), func(c *conn) (bool, error) {
		n, err := c.exec(e.statements[t].rewrite, part, entry.Number, filled(entry.Value), filled(was))
		return n > 0, err
	})
}

// Now implements shapes.Engine.
func (e *engine) Now(context.Context) (time.Time, error) { return e.now(), nil }

// Sweep implements shapes.Engine. Rows of tables with buckets end by their keys: package store removes them.
func (e *engine) Sweep(ctx context.Context) error {
	e.leases.dropEnded()
	for _, s := range e.statements {
		if s.sweep == "" {
			continue
		}
		if err := e.sweepAll(ctx, s.sweep, e.millis()); err != nil {
			return err
		}
	}
	return nil
}

// Ping implements shapes.Engine. After a failed write it tries another one, to find out whether the disk is still full.
func (e *engine) Ping(ctx context.Context) error {
	err := e.read(ctx, func(c *conn) error {
		_, err := schemaVersion(c)
		return err
	})
	if err == nil && e.writer.failing.Load() {
		err = e.write(ctx, 0, func(c *conn) error { return c.script(`CREATE TABLE ping (n); DROP TABLE ping`) })
	}
	return err
}

// Close implements shapes.Engine. It also copies the write-ahead log into the database.
func (e *engine) Close() error {
	e.writer.close() // it finishes writes whose callers did not wait
	return e.free(e.writer.conn)
}

// free closes the readers and the writer's connection and releases the lock.
func (e *engine) free(w *conn) error {
	var errs []error
	for len(e.readers) > 0 {
		errs = append(errs, (<-e.readers).close())
	}
	if w != nil {
		errs = append(errs, w.script("PRAGMA wal_checkpoint(TRUNCATE)"), w.close())
	}
	if err := errors.Join(append(errs, e.lock.release())...); err != nil {
		return fmt.Errorf("close store: %w", err)
	}
	return nil
}

// read waits for a connection for reads and runs f on it.
func (e *engine) read(ctx context.Context, f func(c *conn) error) error {
	if ctx.Err() != nil {
		return errors.Join(models.ErrUnavailable, ctx.Err())
	}
	select {
	case c := <-e.readers:
		defer func() { e.readers <- c }()
		e.writer.reading.RLock()
		defer e.writer.reading.RUnlock()
		return f(c)
	case <-ctx.Done():
		return errors.Join(models.ErrUnavailable, ctx.Err())
	}
}
