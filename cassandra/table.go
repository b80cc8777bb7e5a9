package cassandra

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store/shapes"
)

// table is a table of rows or a log, with the texts of its parts.
//
// A table of rows has the columns part, key and value. The value begins with a byte of flags, so that a row is replaced
// as a whole. Besides:
//
//   - Bucket: the partitions are (part, bucket), and the table NAME_buckets lists those that may have rows.
//   - Stem: a key of more than so many bytes is split into key and tail, so that one statement can ask for many stems.
//   - Decided: all columns are written by compare-and-set, and version is a column of its own.
//   - Vetoed: see veto.go.
//
// A log has the columns part, number, holder (the token) and value. With Group its partitions are (part, bucket), and
// the table NAME_buckets lists the groups.
type table struct {
	*shapes.Table
	bucket  int64  // in milliseconds
	where   string // selects a partition
	key     string // the columns of a key
	columns string // of a row, for read
	insert  string // of a plain write, up to its TTL
}

func newTable(t *shapes.Table) *table {
	tb := &table{Table: t, bucket: t.Bucket.Milliseconds(), where: `part = ?`, key: `key`}
	names := `part`
	if tb.split() {
		tb.where, names = tb.where+` AND bucket = ?`, `part, bucket`
	}
	if t.Log {
		return tb
	}
	if t.Stem > 0 {
		tb.key = `key, tail`
	}
	tb.columns = tb.key + `, value, WRITETIME(value), TTL(value)`
	switch {
	case t.Vetoed:
		tb.columns += `, veto, TTL(veto), verdict`
	case t.Decided:
		tb.columns = tb.key + `, value, version, TTL(value)`
	}
	names += `, ` + tb.key
	tb.insert = `INSERT INTO ` + t.Name + ` (` + names + `, value) VALUES (` + strings.Repeat(`?, `, 1+strings.Count(names, `,`)) +
		`?) USING TIMESTAMP ?`
	return tb
}

// split reports whether the partitions of the store are split into buckets or groups.
func (t *table) split() bool { return t.bucket > 0 || t.Group > 0 }

// at returns a condition on a key: op is a comparison.
func (t *table) at(op string) string {
	if t.Stem > 0 {
		return `(key, tail) ` + op + ` (?, ?)`
	}
	return `key ` + op + ` ?`
}

// exact selects a row.
func (t *table) exact() string {
	if t.Stem > 0 {
		return t.where + ` AND key = ? AND tail = ?`
	}
	return t.where + ` AND key = ?`
}

// keyOf returns the columns of a key.
func (t *table) keyOf(key []byte) []any {
	if t.Stem <= 0 {
		return []any{filled(key)}
	}
	n := min(t.Stem, len(key))
	return []any{filled(key[:n]), filled(key[n:])}
}

// partOf returns the columns of a partition.
func (t *table) partOf(part []byte, bucket int64) []any {
	if t.split() {
		return []any{part, bucket}
	}
	return []any{part}
}

// place returns the columns of the primary key of a row.
func (t *table) place(r *shapes.Row) []any {
	return append(t.partOf(r.Part, t.bucketOf(r.Key)), t.keyOf(r.Key)...)
}

// bucketOf returns the bucket of a key.
func (t *table) bucketOf(key []byte) int64 {
	if t.bucket == 0 {
		return 0
	}
	return millis(key) / t.bucket
}

// start returns the least key of a bucket.
func (t *table) start(bucket int64) []byte {
	return binary.BigEndian.AppendUint64(nil, uint64(bucket*t.bucket))[2:] //nolint:gosec // 48 bits
}

// millis returns the time at the beginning of a key. A short key is continued by zeros.
func millis(key []byte) int64 {
	var b [8]byte
	copy(b[2:], key[:min(len(key), 6)])
	return int64(binary.BigEndian.Uint64(b[:])) //nolint:gosec // 48 bits
}

// filled returns b, or an empty slice for nil, which would be null.
func filled(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// The flags of a value.
const (
	flagGone    = 1
	flagVersion = 2 // the version follows, because the timestamp is something else
)

// pack returns the value of a row as it is stored.
func (t *table) pack(r *shapes.Row) []byte {
	out := make([]byte, 1, len(r.Value)+10)
	if r.Gone {
		out[0] |= flagGone
	}
	if t.FirstStays {
		out[0] |= flagVersion
		out = binary.AppendVarint(out, r.Version)
	}
	return append(out, r.Value...)
}

// unpack reads a stored value into a row.
func unpack(raw []byte, r *shapes.Row) error {
	bad := fmt.Errorf("%w: a value has no flags", models.ErrDamaged)
	if len(raw) == 0 {
		return bad
	}
	r.Gone, r.Value = raw[0]&flagGone != 0, raw[1:]
	if raw[0]&flagVersion != 0 {
		version, n := binary.Varint(r.Value)
		if n <= 0 {
			return bad
		}
		r.Version, r.Value = version, r.Value[n:]
	}
	return nil
}

// read returns the reader of the columns of a row that is not Vetoed. A row without a version does not exist.
func (t *table) read(part []byte) func(scan scanner) (shapes.Row, error) {
	return func(scan scanner) (shapes.Row, error) {
		r := shapes.Row{Part: part}
		var raw, tail []byte
		var left int64
		dest := []any{&r.Key, &raw, &r.Version, &left}
		if t.Stem > 0 {
			dest = []any{&r.Key, &tail, &raw, &r.Version, &left}
		}
		if err := scan(dest...); err != nil {
			return r, err
		}
		r.Key = append(r.Key, tail...)
		r.TTL = lasts(left)
		if r.Version == 0 {
			return r, nil
		}
		return r, unpack(raw, &r)
	}
}

// same reports whether two rows are the same, without their TTLs.
func same(a, b *shapes.Row) bool {
	return a.Version == b.Version && a.Gone == b.Gone && bytes.Equal(a.Value, b.Value)
}

// longestTTL is a little less than the server's limit.
const longestTTL = 19 * 365 * 24 * time.Hour

// seconds returns the TTL for d, rounded up. It adds one because the server counts
// whole seconds, and counts the current one.
func seconds(d time.Duration) int64 {
	return int64((min(d, longestTTL)+time.Second-1)/time.Second) + 1
}

// lasts reverses seconds, for what is left of a TTL.
func lasts(left int64) time.Duration {
	if left == 0 {
		return 0
	}
	return time.Duration(max(left-1, 1)) * time.Second
}

// ttl returns the option of a statement that has others, and its argument.
func ttl(word string, d time.Duration) (cql string, args []any) {
	if d <= 0 {
		return ``, nil
	}
	return word + ` TTL ?`, []any{seconds(d)}
}

// ddl returns the statements that create a table.
func (t *table) ddl() (out []string) {
	part := `part`
	var text strings.Builder
	fmt.Fprintf(&text, `CREATE TABLE IF NOT EXISTS %s (part blob, value blob, `, t.Name)
	if t.split() {
		text.WriteString(`bucket bigint, `)
		part = `part, bucket`
		out = append(out, `CREATE TABLE IF NOT EXISTS `+t.Name+`_buckets (part blob, bucket bigint,
			PRIMARY KEY ((part), bucket)) WITH CLUSTERING ORDER BY (bucket DESC)`+t.options())
	}
	order := t.key
	switch {
	case t.Log:
		text.WriteString(`holder blob, number int, `)
		if order = `number`; t.Group == 0 {
			text.WriteString(`last int static, `)
		}
	case t.Vetoed:
		text.WriteString(`key blob, veto blob, verdict text, `)
	case t.Decided:
		text.WriteString(`key blob, version bigint, `)
	case t.Stem > 0:
		text.WriteString(`key blob, tail blob, `)
	default:
		text.WriteString(`key blob, `)
	}
	fmt.Fprintf(&text, `PRIMARY KEY ((%s), %s)) WITH compression = {'class': 'LZ4Compressor'}`, part, order)
	ddl := text.String() + t.options()
	if t.Packed {
		ddl = strings.Replace(ddl, `{'class': 'LZ4Compressor'}`, `{'enabled': 'false'}`, 1)
	}
	return append(out, ddl)
}

// options returns more options of a table. Rows that end by their TTL alone are compacted by time, so that whole files
// are dropped.
func (t *table) options() (out string) {
	if t.Brief == 0 {
		return ``
	}
	out = ` AND gc_grace_seconds = 86400`
	if t.bucket > 0 {
		out += fmt.Sprintf(` AND compaction = {'class': 'TimeWindowCompactionStrategy',
			'compaction_window_unit': 'HOURS', 'compaction_window_size': '%d'}`, max(1, int(t.Brief.Hours())/21))
	}
	return out
}
