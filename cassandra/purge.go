package cassandra

import (
	"bytes"
	"context"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// BatchIDs implements models.Store.
func (s *Store) BatchIDs(ctx context.Context, user string, before models.ID, limit int) (ids []models.ID, err error) {
	if before.IsZero() {
		copy(before[:], bytes.Repeat([]byte{0xff}, len(before)))
	}
	err = s.call(ctx, func() error {
		ids, err = s.listedBefore(ctx, user, before, max(limit, 0))
		return err
	}, "list of %s", user)
	if err != nil {
		return nil, err
	}
	return ids, nil
}

// Purge implements models.Store. The number of chunks is removed late, so that a repeat
// reaches all of them, and the entry of the list at last. Ledgers and the commit are
// removed by plain writes, because nothing is decided about the batch any more.
func (s *Store) Purge(ctx context.Context, user string, batch models.ID) error {
	return s.call(ctx, func() error {
		rows, err := query(ctx, &s.runner, column[int], `SELECT chunks FROM chunks WHERE chunk_id = ?`, batch[:])
		if err != nil {
			return err
		}
		chunks := 1
		for _, n := range rows {
			chunks = max(chunks, n)
		}
		if err := s.exec(ctx, plain, `DELETE head, recipients FROM chunks USING TIMESTAMP ? WHERE chunk_id = ?`,
			purgedStamp, batch[:]); err != nil {
			return err
		}
		if err := each(ctx, chunks-1, func(ctx context.Context, n int) error {
			id := batch.Chunk(n + 1)
			return s.exec(ctx, plain, `DELETE FROM chunks USING TIMESTAMP ? WHERE chunk_id = ?`, purgedStamp, id[:])
		}); err != nil {
			return err
		}
		first, last := batch.Chunk(0), batch.Chunk(models.MaxChunks-1)
		if err := s.exec(ctx, plain, `DELETE FROM summaries
			WHERE owner = ? AND second = ? AND chunk_id >= ? AND chunk_id <= ?`,
			user, batch.Time().Unix(), first[:], last[:]); err != nil {
			return err
		}
		for _, cql := range []string{`DELETE FROM facts WHERE chunk_id = ?`, `DELETE FROM ledger WHERE chunk_id = ?`} {
			if err := each(ctx, chunks, func(ctx context.Context, n int) error {
				id := batch.Chunk(n)
				return s.exec(ctx, plain, cql, id[:])
			}); err != nil {
				return err
			}
		}
		if err := s.exec(ctx, plain, `DELETE FROM batch_commits WHERE batch_id = ?`, batch[:]); err != nil {
			return err
		}
		if err := s.exec(ctx, plain, `DELETE FROM chunks USING TIMESTAMP ? WHERE chunk_id = ?`,
			purgedStamp, batch[:]); err != nil {
			return err
		}
		return s.purgeList(ctx, user, batch)
	}, "purge %s", batch)
}

// purgeList removes a batch from its user's list, and the bucket if it is empty then.
func (s *Store) purgeList(ctx context.Context, user string, batch models.ID) error {
	bucket := listBucketOf(batch)
	if err := s.exec(ctx, plain, `DELETE FROM batches_by_owner USING TIMESTAMP 2
		WHERE owner = ? AND bucket = ? AND batch_id = ?`, user, bucket, batch[:]); err != nil {
		return err
	}
	left, err := query(ctx, &s.runner, readID,
		`SELECT batch_id FROM batches_by_owner WHERE owner = ? AND bucket = ? LIMIT 1`, user, bucket)
	if err != nil || len(left) > 0 {
		return err
	}
	return s.exec(ctx, plain, `DELETE FROM owner_buckets USING TIMESTAMP 2 WHERE owner = ? AND bucket = ?`, user, bucket)
}

// DropSums implements models.Store.
func (s *Store) DropSums(ctx context.Context, user string, t time.Time) error {
	day := models.DayOf(t)
	from, to := day.UnixMilli(), day.AddDate(0, 0, 1).UnixMilli()
	return s.call(ctx, func() error {
		for _, level := range []models.Level{models.Second, models.Minute, models.Hour} {
			length := spanBucket(level)
			buckets := (to-1)/length - from/length + 1
			if err := each(ctx, int(buckets), func(ctx context.Context, i int) error {
				return s.exec(ctx, plain, `DELETE FROM sums WHERE owner = ? AND level = ? AND bucket = ? AND start >= ? AND start < ?`,
					user, string(level), from/length+int64(i), from, to)
			}); err != nil {
				return err
			}
		}
		return nil
	}, "drop sums of %s", user)
}
