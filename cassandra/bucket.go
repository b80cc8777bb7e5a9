package cassandra

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/store"
	"github.com/safedelivr/safedelivr/store/shapes"
)

// A partition of the store that grows for ever is split into buckets by time, or groups by number. A second table
// lists those that may have rows, so that empty ones are not read.

// bucketOf is a bucket or group of a partition, and the day after which its entry in the list has ended; 0: never.
type bucketOf struct {
	table, part string
	bucket, day int64
}

// listMore is for how much longer than a row its bucket is listed: a day, because a process lists a bucket once for the
// rows that end on the same day.
const listMore = 25 * time.Hour

// buckets are the lists of buckets and groups.
type buckets struct {
	writer   *writer
	nonEmpty *store.Recent[bucketOf] // those that are known to be listed
}

// add adds the bucket of a row to those that must be listed before it is written.
func (l *buckets) add(listed map[bucketOf]int64, t *table, r *shapes.Row) {
	b := bucketOf{table: t.Name, part: string(r.Part), bucket: t.bucketOf(r.Key)}
	ends := int64(0)
	if r.TTL > 0 {
		ends = l.writer.clock.about().Add(r.TTL).UnixMicro()
		b.day = ends/(24*time.Hour).Microseconds() + 1
	}
	if !l.nonEmpty.Has(b) {
		listed[b] = max(listed[b], ends)
	}
}

// list lists buckets whose last row ends at a time, in microseconds; 0: never. Of two entries the one that ends later
// stays.
func (l *buckets) list(ctx context.Context, listed map[bucketOf]int64) error {
	if len(listed) == 0 {
		return nil
	}
	now, err := l.writer.clock.time(ctx)
	if err != nil {
		return err
	}
	keys := slices.Collect(maps.Keys(listed))
	return each(ctx, len(keys), func(ctx context.Context, i int) error {
		b, ends := keys[i], listed[keys[i]]
		cql, args := `INSERT INTO `+b.table+`_buckets (part, bucket) VALUES (?, ?) USING TIMESTAMP ?`, []any{[]byte(b.part), b.bucket}
		if ends > 0 {
			cql, args = cql+` AND TTL ?`, append(args, ends, seconds(time.UnixMicro(ends).Sub(now)+listMore))
		} else {
			args = append(args, now.UnixMicro())
		}
		err := l.writer.exec(ctx, plain, cql, args...)
		if err == nil {
			l.nonEmpty.Add(b)
		}
		return err
	})
}

// listed returns buckets of a partition that may have rows, both ends included, in order. Few are not looked
// up in the list.
func (l *buckets) listed(
	ctx context.Context, t *table, part []byte, first, last int64, back bool, limit int,
) (out []int64, err error) {
	if t.bucket > 0 && (t.Short || last-first < nearBuckets) {
		for b := first; b <= last; b++ {
			out = append(out, b)
		}
		if back {
			slices.Reverse(out)
		}
		return out, nil
	}
	order := `ASC`
	if back {
		order = `DESC`
	}
	return query(ctx, l.writer.runner, column[int64], `SELECT bucket FROM `+t.Name+`_buckets WHERE part = ? AND bucket >= ?
		AND bucket <= ? ORDER BY bucket `+order+` LIMIT ?`, part, first, last, limit)
}

// unlist removes a bucket that is empty from the list.
func (l *buckets) unlist(ctx context.Context, t *table, part []byte, bucket int64) error {
	l.nonEmpty.Remove(bucketOf{table: t.Name, part: string(part), bucket: bucket})
	return l.writer.remove(ctx, t.Name+`_buckets`, `part = ? AND bucket = ?`, part, bucket)
}

// The numbers of buckets.
const (
	nearBuckets = 8  // so few are read without a look at the list
	someBuckets = 64 // are listed at a time
)

// bounds returns the first and the last bucket of a range.
func (t *table) bounds(r *shapes.Range) (first, last int64) {
	first, last = 0, (1<<48-1)/t.bucket
	if r.From != nil {
		first = millis(r.From) / t.bucket
	}
	if r.To != nil {
		if last = millis(r.To) / t.bucket; bytes.Compare(r.To, t.start(last)) <= 0 {
			last--
		}
	}
	return first, last
}

// scanBuckets scans a partition of the store.
func (e *engine) scanBuckets(ctx context.Context, t *table, part []byte, r shapes.Range) (out []shapes.Row, err error) {
	first, last := t.bounds(&r)
	for len(out) < r.Limit && first <= last {
		buckets, err := e.buckets.listed(ctx, t, part, first, last, r.Back, min(someBuckets, r.Limit-len(out)))
		if err != nil || len(buckets) == 0 {
			return out, err
		}
		for n := 0; n < len(buckets); { // the first two may have enough
			some := buckets[n:min(len(buckets), n+max(2, min(n, 1)*atOnce))]
			if out, err = e.scanSome(ctx, t, part, r, some, out); err != nil || len(out) >= r.Limit {
				return out, err
			}
			n += len(some)
		}
		if end := buckets[len(buckets)-1]; r.Back {
			last = end - 1
		} else {
			first = end + 1
		}
	}
	return out, nil
}

// scanSome reads some buckets at the same time and appends their rows.
func (e *engine) scanSome(
	ctx context.Context, t *table, part []byte, r shapes.Range, buckets []int64, out []shapes.Row,
) ([]shapes.Row, error) {
	limit := r.Limit
	r.Limit -= len(out)
	found := make([][]shapes.Row, len(buckets))
	err := each(ctx, len(buckets), func(ctx context.Context, i int) (err error) {
		found[i], err = e.scanPart(ctx, t, part, buckets[i], r)
		return err
	})
	if err != nil {
		return nil, err
	}
	out = slices.Concat(append([][]shapes.Row{out}, found...)...)
	return out[:min(len(out), limit)], nil
}
