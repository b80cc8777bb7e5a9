package cassandra

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store/shapes"
)

// The limits of one request. Rows of one partition are one mutation. For several
// partitions the server warns above 10 partitions or 5 KiB and refuses 50 KiB.
const (
	groupRows  = 100
	groupBytes = 1 << 20
	fewRows    = 10
	fewBytes   = 4 << 10
)

// Put implements shapes.Engine.
func (e *engine) Put(ctx context.Context, puts ...shapes.Put) error { return failed(e.put(ctx, puts)) }

func (e *engine) put(ctx context.Context, puts []shapes.Put) error {
	var decided []*shapes.Put
	var writes []write
	var places []string
	listed := map[bucketOf]int64{}
	for i := range puts {
		p, t := &puts[i], e.tables[puts[i].Table]
		if t.Decided && !t.Vetoed {
			decided = append(decided, p)
			continue
		}
		if t.bucket > 0 && !t.Short {
			e.buckets.add(listed, t, &p.Row)
		}
		w, err := e.writer.write(ctx, t, &p.Row)
		if err != nil {
			return err
		}
		writes, places = append(writes, w), append(places, fmt.Sprint(t.Name, t.bucketOf(p.Key), string(p.Part)))
	}
	if err := e.buckets.list(ctx, listed); err != nil {
		return err
	}
	groups := fewer(grouped(places, writes))
	return each(ctx, len(groups)+len(decided), func(ctx context.Context, i int) error {
		if i < len(groups) {
			return e.writer.send(ctx, plain, groups[i])
		}
		return e.raise(ctx, decided[i-len(groups)])
	})
}

// grouped groups writes to the same place, up to a number of rows and bytes per group.
func grouped(places []string, writes []write) (groups [][]write) {
	open, sizes := map[string]int{}, []int{}
	for i, w := range writes {
		g, ok := open[places[i]]
		if !ok || len(groups[g]) == groupRows || sizes[g]+w.size > groupBytes {
			g = len(groups)
			groups, sizes = append(groups, nil), append(sizes, 0)
			open[places[i]] = g
		}
		groups[g] = append(groups[g], w)
		sizes[g] += w.size
	}
	return groups
}

// fewer joins small groups, because a request costs a node more than a small row.
func fewer(groups [][]write) (out [][]write) {
	var some []write
	room := 0
	for _, g := range groups {
		size := 0
		for i := range g {
			size += g[i].size
		}
		switch {
		case len(g) > fewRows || size > fewBytes:
			out = append(out, g)
		case some == nil || len(some)+len(g) > fewRows || size > room:
			if some != nil {
				out = append(out, some)
			}
			some, room = g, fewBytes-size
		default:
			some, room = append(some, g...), room-size
		}
	}
	if some != nil {
		out = append(out, some)
	}
	return out
}

// keysAtOnce is how many partitions or keys one statement reads.
const keysAtOnce = 16

// ask is a statement that reads the rows at some addresses.
type ask struct {
	t      *table
	part   []byte // nil: keys are partitions
	bucket int64
	keys   [][]byte
	whole  bool  // keys are stems or partitions, and not any beginnings
	index  []int // of the addresses of keys
}

// asks groups addresses for as few statements as possible.
func (e *engine) asks(at []shapes.Address) (out []*ask) {
	open := map[string]*ask{}
	for i := range at {
		a, t := &at[i], e.tables[at[i].Table]
		q := &ask{t: t, part: a.Part, bucket: t.bucketOf(a.Key), keys: [][]byte{a.Key}, index: []int{i}}
		place := ``
		switch {
		case len(a.Key) == 0 && t.bucket == 0:
			q.part, q.keys, q.whole = nil, [][]byte{a.Part}, true
			place = t.Name
		case t.Stem < 0, t.Stem > 0 && len(a.Key) == t.Stem:
			q.whole = true
			place = fmt.Sprint(t.Name, " ", q.bucket, string(a.Part))
		}
		if there := open[place]; place != `` && there != nil && len(there.keys) < keysAtOnce {
			there.keys, there.index = append(there.keys, q.keys[0]), append(there.index, i)
			continue
		}
		out = append(out, q)
		if place != `` {
			open[place] = q
		}
	}
	return out
}

// Find implements shapes.Engine.
func (e *engine) Find(ctx context.Context, at ...shapes.Address) ([][]shapes.Row, error) {
	out := make([][]shapes.Row, len(at))
	asks := e.asks(at)
	err := each(ctx, len(asks), func(ctx context.Context, i int) error {
		q := asks[i]
		rows, err := e.ask(ctx, q)
		for k, key := range q.keys {
			for _, row := range rows {
				if row.Version > 0 && q.names(key, &row) {
					out[q.index[k]] = append(out[q.index[k]], row)
				}
			}
		}
		return err
	})
	if err != nil {
		return nil, failed(err)
	}
	return out, nil
}

// names reports whether a row is at a key.
func (q *ask) names(key []byte, row *shapes.Row) bool {
	switch {
	case q.part == nil:
		return bytes.Equal(row.Part, key)
	case q.t.Stem < 0:
		return bytes.Equal(row.Key, key)
	}
	return bytes.HasPrefix(row.Key, key)
}

// ask reads the rows of a statement.
func (e *engine) ask(ctx context.Context, q *ask) ([]shapes.Row, error) {
	t := q.t
	switch {
	case q.part == nil && len(q.keys) == 1:
		return e.rows(ctx, t, q.keys[0], t.where, q.keys[0])
	case q.part == nil:
		return e.rows(ctx, t, nil, `part IN ?`, q.keys)
	case q.whole:
		return e.rows(ctx, t, q.part, t.where+` AND key IN ?`, append(t.partOf(q.part, q.bucket), q.keys)...)
	}
	return e.rows(ctx, t, q.part, t.where+` AND `+t.at(`>=`)+` AND `+t.at(`<`), slices.Concat(
		t.partOf(q.part, q.bucket), t.keyOf(q.keys[0]), t.keyOf(above(q.keys[0])))...)
}

// rows returns the rows of a condition. The rows of many partitions bring theirs: part is nil.
func (e *engine) rows(ctx context.Context, t *table, part []byte, condition string, args ...any) ([]shapes.Row, error) {
	if t.Vetoed {
		return vetoes{e.writer, t}.settled(ctx, condition, args...)
	}
	columns, read := t.columns, t.read(part)
	if part == nil {
		columns = `part, ` + columns
		read = func(scan scanner) (shapes.Row, error) {
			var from []byte
			r, err := t.read(nil)(func(dest ...any) error { return scan(append([]any{&from}, dest...)...) })
			r.Part = from
			return r, err
		}
	}
	return query(ctx, &e.runner, read, `SELECT `+columns+` FROM `+t.Name+` WHERE `+condition, args...)
}

// above returns the least key that is greater than all that begin with a prefix.
func above(prefix []byte) []byte {
	high := bytes.Clone(prefix)
	for i := len(high) - 1; i >= 0; i-- {
		if high[i]++; high[i] != 0 {
			return high[:i+1]
		}
	}
	return bytes.Repeat([]byte{0xff}, 100) // no key is greater
}

// row returns the row with a key. Its version is 0 if there is none.
func (e *engine) row(ctx context.Context, t *table, part, key []byte) (shapes.Row, error) {
	at := shapes.Row{Part: part, Key: key}
	rows, err := e.rows(ctx, t, part, t.exact(), t.place(&at)...)
	if err != nil || len(rows) == 0 {
		return shapes.Row{}, err
	}
	return rows[0], nil
}

// largeRows is the most rows of a page if most of their values is not needed, which may be large.
const largeRows = 20

// Scan implements shapes.Engine.
func (e *engine) Scan(ctx context.Context, t *shapes.Table, part []byte, r shapes.Range) ([]shapes.Row, error) {
	tb := e.tables[t]
	if tb.Vetoed {
		return nil, fmt.Errorf("%w: scan of %s", models.ErrInvalid, t.Name)
	}
	if r.Limit <= 0 {
		return nil, nil
	}
	if tb.bucket > 0 {
		rows, err := e.scanBuckets(ctx, tb, part, r)
		return rows, failed(err)
	}
	rows, err := e.scanPart(ctx, tb, part, 0, r)
	return rows, failed(err)
}

// scanPart scans a partition of the keyspace.
func (e *engine) scanPart(
	ctx context.Context, t *table, part []byte, bucket int64, r shapes.Range,
) (out []shapes.Row, err error) {
	cql, args := `SELECT `+t.columns+` FROM `+t.Name+` WHERE `+t.where, t.partOf(part, bucket)
	if r.From != nil {
		cql, args = cql+` AND `+t.at(`>=`), append(args, t.keyOf(r.From)...)
	}
	if r.To != nil {
		cql, args = cql+` AND `+t.at(`<`), append(args, t.keyOf(r.To)...)
	}
	if r.Back {
		cql += ` ORDER BY key DESC`
		if t.Stem > 0 {
			cql += `, tail DESC`
		}
	}
	most := pageRows
	if r.Head > 0 {
		most = largeRows
	}
	for state := []byte(nil); ; {
		var rows []shapes.Row
		rows, state, err = page(ctx, &e.runner, min(most, r.Limit-len(out)), state, t.read(part), cql, args...)
		if err != nil {
			return nil, err
		}
		for i := range rows {
			if rows[i].Version == 0 || rows[i].Gone {
				continue
			}
			if r.Head > 0 && len(rows[i].Value) > r.Head {
				rows[i].Value = bytes.Clone(rows[i].Value[:r.Head])
			}
			out = append(out, rows[i])
		}
		if len(state) == 0 || len(out) >= r.Limit {
			return out, nil
		}
	}
}
