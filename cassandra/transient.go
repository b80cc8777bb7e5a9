package cassandra

import (
	"context"
	"errors"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// removalKeep is how long a removal is kept at least. It must outlast a write
// that timed out, which PutTransient does not see.
const removalKeep = 24 * time.Hour

// PutTransient implements models.Store. The new value has a higher timestamp
// than the value that is there, whatever clocks say, and than values that have
// ended by the servers' time. A removal is a row that says so, for as long as
// what it removes would have lasted: a tombstone could be dropped while a node
// that missed it still has the value.
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
		}, `SELECT WRITETIME(value), TTL(value) FROM transients WHERE kind = ? AND name = ?`, kind, name)
		if err != nil && !errors.Is(err, models.ErrNotFound) {
			return err
		}
		remove, keep := ttl <= 0, seconds(ttl)
		if remove {
			value, keep = nil, max(there.left+1, seconds(removalKeep))
		}
		return s.exec(ctx, plain,
			`INSERT INTO transients (kind, name, value, removed) VALUES (?, ?, ?, ?) USING TTL ? AND TIMESTAMP ?`,
			kind, name, append([]byte{}, value...), remove, keep, max(now.UnixMicro(), there.stamp+1))
	}, "put %s value of %s", kind, name)
}

// transient is a row of transients.
type transient struct {
	name    string
	value   []byte
	removed bool
}

// Transients implements models.Store.
func (s *Store) Transients(ctx context.Context, kind string) (out map[string][]byte, err error) {
	err = s.call(ctx, func() error {
		rows, err := query(ctx, &s.runner, func(scan scanner) (r transient, err error) {
			err = scan(&r.name, &r.value, &r.removed)
			return r, err
		}, `SELECT name, value, removed FROM transients WHERE kind = ?`, kind)
		out = make(map[string][]byte, len(rows))
		for _, r := range rows {
			if !r.removed {
				out[r.name] = append([]byte{}, r.value...)
			}
		}
		return err
	}, "read %s values", kind)
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Transient implements models.Store.
func (s *Store) Transient(ctx context.Context, kind, name string) (out []byte, err error) {
	err = s.call(ctx, func() error {
		r, err := single(ctx, &s.runner, func(scan scanner) (r transient, err error) {
			err = scan(&r.value, &r.removed)
			return r, err
		}, `SELECT value, removed FROM transients WHERE kind = ? AND name = ?`, kind, name)
		if err == nil && r.removed {
			err = models.ErrNotFound
		}
		out = append([]byte{}, r.value...)
		return err
	}, "read %s value of %s", kind, name)
	if err != nil {
		return nil, err
	}
	return out, nil
}
