package cassandra

import (
	"bytes"
	"context"
	"errors"
	"sync"

	"github.com/safedelivr/safedelivr/models"
)

// listBucket is the time, by the IDs of batches, that one partition of a user's list
// covers, in milliseconds. It is recorded with the keyspace. At 1,000 batches a
// second a partition has 600,000 rows, each an ID.
const listBucket = 10 * 60 * 1000

// ownerBucket is one partition of a user's list.
type ownerBucket struct {
	owner  string
	bucket int64
}

func listBucketOf(id models.ID) int64 { return id.Time().UnixMilli() / listBucket }

// list adds a batch to its user's list. That a bucket is not empty is written once per
// process.
func (s *Store) list(ctx context.Context, user string, id models.ID) error {
	in := ownerBucket{user, listBucketOf(id)}
	if !s.listed.has(in) {
		if err := s.exec(ctx, plain, `INSERT INTO owner_buckets (owner, bucket) VALUES (?, ?) USING TIMESTAMP 1`, in.owner,
			in.bucket); err != nil {
			return err
		}
		s.listed.add(in)
	}
	return s.exec(ctx, plain, `INSERT INTO batches_by_owner (owner, bucket, batch_id) VALUES (?, ?, ?) USING TIMESTAMP 1`,
		in.owner, in.bucket, id[:])
}

// unlist removes an abandoned batch from the list. A failure does no harm, because
// readers leave out batches that do not exist.
func (s *Store) unlist(ctx context.Context, user string, id models.ID) {
	err := s.exec(ctx, plain, `DELETE FROM batches_by_owner USING TIMESTAMP 2
		WHERE owner = ? AND bucket = ? AND batch_id = ?`, user, listBucketOf(id), id[:])
	if err != nil {
		s.log.Warn("cannot remove an abandoned batch from its user's list", "batch_id", id.String(), "error", err)
	}
}

// Batches implements models.Store. Its cost grows with limit and not with the time
// between batches, because it does not read empty buckets.
func (s *Store) Batches(ctx context.Context, user string, before models.ID, limit int) (out []models.Batch, err error) {
	if before.IsZero() {
		copy(before[:], bytes.Repeat([]byte{0xff}, len(before)))
	}
	err = s.call(ctx, func() error {
		for len(out) < limit {
			ids, err := s.listedBefore(ctx, user, before, limit-len(out))
			if err != nil || len(ids) == 0 {
				return err
			}
			bs := make([]*models.Batch, len(ids))
			err = each(ctx, len(ids), func(ctx context.Context, i int) error {
				b, err := s.batch(ctx, ids[i])
				switch {
				case errors.Is(err, models.ErrNotFound): // it is being stored, or was abandoned
					return nil
				case errors.Is(err, models.ErrDamaged), errors.Is(err, models.ErrNewer):
					b, err = models.Batch{ID: ids[i], User: user, Damaged: true}, nil
				}
				bs[i] = &b
				return err
			})
			if err != nil {
				return err
			}
			for _, b := range bs {
				if b != nil {
					out = append(out, *b)
				}
			}
			before = ids[len(ids)-1]
		}
		return nil
	}, "batches of %s", user)
	if err != nil {
		return nil, err
	}
	return out, nil
}

// listedBefore returns up to n IDs of a user's list, newest first.
func (s *Store) listedBefore(ctx context.Context, user string, before models.ID, n int) (ids []models.ID, err error) {
	const some = 64 // buckets at a time
	for bucket := listBucketOf(before); len(ids) < n; {
		buckets, err := query(ctx, &s.runner, column[int64],
			`SELECT bucket FROM owner_buckets WHERE owner = ? AND bucket <= ? LIMIT ?`, user, bucket, min(some, n-len(ids)))
		if err != nil || len(buckets) == 0 {
			return ids, err
		}
		found := make([][]models.ID, len(buckets))
		err = each(ctx, len(buckets), func(ctx context.Context, i int) (err error) {
			found[i], err = query(ctx, &s.runner, readID,
				`SELECT batch_id FROM batches_by_owner WHERE owner = ? AND bucket = ? AND batch_id < ? LIMIT ?`, user, buckets[i],
				before[:], n-len(ids))
			return err
		})
		if err != nil {
			return nil, err
		}
		for _, f := range found {
			ids = append(ids, f...)
		}
		bucket = buckets[len(buckets)-1] - 1
	}
	return ids[:n], nil
}

// listedAfter returns up to n IDs of a user's list, oldest first.
func (s *Store) listedAfter(ctx context.Context, user string, after models.ID, n int) (ids []models.ID, err error) {
	const some = 64 // buckets at a time
	for bucket := listBucketOf(after); len(ids) < n; {
		buckets, err := query(ctx, &s.runner, column[int64],
			`SELECT bucket FROM owner_buckets WHERE owner = ? AND bucket >= ? ORDER BY bucket ASC LIMIT ?`, user, bucket,
			min(some, n-len(ids)))
		if err != nil || len(buckets) == 0 {
			return ids, err
		}
		found := make([][]models.ID, len(buckets))
		err = each(ctx, len(buckets), func(ctx context.Context, i int) (err error) {
			found[i], err = query(ctx, &s.runner, readID,
				`SELECT batch_id FROM batches_by_owner WHERE owner = ? AND bucket = ? AND batch_id > ?
				ORDER BY batch_id ASC LIMIT ?`, user, buckets[i], after[:], n-len(ids))
			return err
		})
		if err != nil {
			return nil, err
		}
		for _, f := range found {
			ids = append(ids, f...)
		}
		bucket = buckets[len(buckets)-1] + 1
	}
	return ids[:n], nil
}

// readID reads a row that has only an ID.
func readID(scan scanner) (id models.ID, err error) {
	var raw []byte
	if err := scan(&raw); err != nil {
		return id, err
	}
	return idOf(raw)
}

// idOf reads a column that holds an ID. Errors: models.ErrDamaged.
func idOf(raw []byte) (id models.ID, err error) {
	if len(raw) != len(id) {
		return id, damaged(errors.New("an id has the wrong length"))
	}
	return models.ID(raw), nil
}

// recent is a set of the last n keys that were added, and up to n older ones. It is for
// facts that stay true permanently.
type recent[K comparable] struct {
	mu       sync.Mutex
	n        int
	now, old map[K]struct{}
}

func newRecent[K comparable](n int) *recent[K] { return &recent[K]{n: n, now: map[K]struct{}{}} }

func (r *recent[K]) has(k K) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.now[k]; ok {
		return true
	}
	_, ok := r.old[k]
	return ok
}

func (r *recent[K]) add(k K) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.now) >= r.n {
		r.old, r.now = r.now, make(map[K]struct{}, r.n)
	}
	r.now[k] = struct{}{}
}
