package cassandra

import (
	"context"
	"errors"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

const (
	// reportEpoch is where the timestamps of reports begin: above all that a
	// clock may have given one. Those of earlier builds are the time of whoever
	// wrote them, and lie below.
	reportEpoch = 1 << 62
	// removalKept is how long a removal is kept at least, for what it does not
	// see: a write that timed out.
	removalKept = 24 * time.Hour
)

// PutTransient implements models.Store. Of what is seen there it stands above,
// whatever clocks say, and above what has ended by the servers' time. A removal
// is a row that says so for as long as what it removes would have lasted: a
// tombstone would be forgotten while a node that missed it may still have that.
func (s *Store) PutTransient(ctx context.Context, kind, name string, value []byte, ttl time.Duration) error {
	return s.call(ctx, func() error {
		now, err := s.clock.time(ctx)
		if err != nil {
			return err
		}
		type row struct{ stamp, left int64 }
		there, err := single(ctx, &s.runner, func(scan scanner) (r row, err error) {
			err = scan(&r.stamp, &r.left)
			return r, err
		}, `SELECT WRITETIME(value), TTL(value) FROM reports WHERE kind = ? AND name = ?`, kind, name)
		if err != nil && !errors.Is(err, models.ErrNotFound) {
			return err
		}
		gone, keep := ttl <= 0, seconds(ttl)
		if gone {
			value, keep = nil, max(there.left+1, seconds(removalKept))
		}
		return s.exec(ctx, plain, `INSERT INTO reports (kind, name, value, gone) VALUES (?, ?, ?, ?) USING TTL ? AND TIMESTAMP ?`,
			kind, name, append([]byte{}, value...), gone, keep, max(reportEpoch+now.UnixMicro(), there.stamp+1))
	}, "report %s of %s", kind, name)
}

// report is a row of reports; gone: it was removed.
type report struct {
	name  string
	value []byte
	gone  bool
}

// Reports implements models.Store.
func (s *Store) Transients(ctx context.Context, kind string) (out map[string][]byte, err error) {
	err = s.call(ctx, func() error {
		rs, err := query(ctx, &s.runner, func(scan scanner) (r report, err error) {
			err = scan(&r.name, &r.value, &r.gone)
			return r, err
		}, `SELECT name, value, gone FROM reports WHERE kind = ?`, kind)
		out = make(map[string][]byte, len(rs))
		for _, r := range rs {
			if !r.gone {
				out[r.name] = append([]byte{}, r.value...)
			}
		}
		return err
	}, "reports %s", kind)
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Report implements models.Store.
func (s *Store) Transient(ctx context.Context, kind, name string) (out []byte, err error) {
	err = s.call(ctx, func() error {
		r, err := single(ctx, &s.runner, func(scan scanner) (r report, err error) {
			err = scan(&r.value, &r.gone)
			return r, err
		}, `SELECT value, gone FROM reports WHERE kind = ? AND name = ?`, kind, name)
		if err == nil && r.gone {
			err = models.ErrNotFound
		}
		out = append([]byte{}, r.value...)
		return err
	}, "report %s of %s", kind, name)
	if err != nil {
		return nil, err
	}
	return out, nil
}
