package cassandra

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/gocql/gocql"

	"github.com/safedelivr/safedelivr/store/shapes"
)

// write is the plain write of a row, and its size in bytes.
type write struct {
	cql  string
	args []any
	size int
}

// writer makes plain writes and removals. What is no version has the time of the servers.
type writer struct {
	*runner
	clock   *clock       // of the servers
	falling atomic.Int64 // the last falling timestamp
}

// write returns the plain write of a row. The timestamps of a table whose first rows stay fall with the servers' time,
// even within a call.
func (w *writer) write(ctx context.Context, t *table, r *shapes.Row) (write, error) {
	version := r.Version
	if t.FirstStays {
		now, err := w.clock.time(ctx)
		if err != nil {
			return write{}, err
		}
		version = w.fall(now)
	}
	return t.write(r, version), nil
}

func (t *table) write(r *shapes.Row, timestamp int64) write {
	using, more := ttl(` AND`, r.TTL)
	value := t.pack(r)
	args := append(append(t.place(r), value, timestamp), more...)
	return write{t.insert + using, args, len(value) + len(r.Key)}
}

// send makes writes with one request. They are independent, unless all are of one partition.
func (w *writer) send(ctx context.Context, how effort, g []write) error {
	if len(g) == 1 {
		return w.exec(ctx, how, g[0].cql, g[0].args...)
	}
	return w.try(ctx, how, func() error {
		b := w.session.NewBatch(gocql.UnloggedBatch).WithContext(ctx)
		for _, w := range g {
			b.Query(w.cql, w.args...)
		}
		return w.session.ExecuteBatch(b)
	})
}

// remove removes rows of a table with the time of the servers as the timestamp.
func (w *writer) remove(ctx context.Context, table, condition string, args ...any) error {
	now, err := w.clock.time(ctx)
	if err != nil {
		return err
	}
	return w.removeAt(ctx, now.UnixMicro(), table, condition, args...)
}

func (w *writer) removeAt(ctx context.Context, stamp int64, table, condition string, args ...any) error {
	return w.exec(ctx, plain, `DELETE FROM `+table+` USING TIMESTAMP ? WHERE `+condition, append([]any{stamp}, args...)...)
}

// removeRow removes a row of plain writes, whatever its version.
func (w *writer) removeRow(ctx context.Context, t *table, r *shapes.Row) error {
	now, err := w.clock.time(ctx)
	if err != nil {
		return err
	}
	return w.removeAt(ctx, max(now.UnixMicro(), r.Version), t.Name, t.exact(), t.place(r)...)
}

// fallFrom minus the microseconds since 1970 is a timestamp that falls with time. It lies in the past, so that a
// removal with the server's timestamp wins, and is above zero until 2061.
const fallFrom = 2_900_000_000_000_000

// fall returns a timestamp that is lower than all that it returned before, so that the first of several writes stays.
// now is the servers' time.
func (w *writer) fall(now time.Time) int64 {
	for {
		last, next := w.falling.Load(), fallFrom-now.UnixMicro()
		if last != 0 && next >= last {
			next = last - 1
		}
		if w.falling.CompareAndSwap(last, next) {
			return next
		}
	}
}
