package sqlite

import (
	"context"
	"fmt"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// RetentionOptions says how long the store keeps rows that are removed by age.
type RetentionOptions struct {
	// Inbox is how long webhook posts are kept. 0: 7 days.
	Inbox time.Duration
	// Logs is how long it is kept that a batch was abandoned. 0: 400 days.
	Logs time.Duration
}

// sweepRows is how many rows Sweep deletes with one write. Other writes need not wait
// long for it.
const sweepRows = 500

// Sweep deletes agenda entries that every reader has passed, posts that are older
// than keep allows, replay guards of posts that were deleted two days ago, marks of
// batches that were abandoned, and values and claims that have ended. It is to be called about once a minute. It
// returns when nothing is left to delete or ctx ends. Any number of calls may run at
// once.
func (s *Store) Sweep(ctx context.Context, now time.Time, keep RetentionOptions) error {
	s.leases.dropEnded()
	if keep.Inbox <= 0 {
		keep.Inbox = 7 * 24 * time.Hour
	}
	if keep.Logs <= 0 {
		keep.Logs = 400 * 24 * time.Hour
	}
	oldest := idFrom(now.Add(-keep.Inbox))
	for shard := range shards {
		mark, err := s.AgendaMark(ctx, shard)
		if err != nil {
			return fmt.Errorf("sweep: %w", err)
		}
		if mark.After(now) {
			mark = now // the clock was ahead: later entries were not processed
		}
		if !mark.IsZero() {
			err = s.sweep(ctx, `DELETE FROM agenda WHERE shard = ? AND (due, kind, id) IN
				(SELECT due, kind, id FROM agenda WHERE shard = ? AND due < ? ORDER BY due LIMIT ?)`,
				shard, shard, mark.Add(-2*models.LateWriters).UnixMilli(), sweepRows)
			if err != nil {
				return err
			}
		}
		err = s.sweep(ctx, `DELETE FROM inbox_open WHERE shard = ? AND id IN
			(SELECT id FROM inbox_open WHERE shard = ? AND id < ? ORDER BY id LIMIT ?)`, shard, shard, oldest, sweepRows)
		if err != nil {
			return err
		}
	}
	if err := s.sweep(ctx, `DELETE FROM inbox WHERE id IN (SELECT id FROM inbox WHERE id < ? ORDER BY id LIMIT ?)`, oldest,
		sweepRows); err != nil {
		return err
	}
	if err := s.sweep(ctx, `DELETE FROM transients WHERE (kind, name) IN (SELECT kind, name FROM transients
		WHERE until < ? LIMIT ?)`,
		now.UnixMilli(), sweepRows); err != nil {
		return err
	}
	if err := s.sweep(ctx, `DELETE FROM claims WHERE key IN (SELECT key FROM claims WHERE until < ? LIMIT ?)`,
		now.UnixMilli(), sweepRows); err != nil {
		return err
	}
	if err := s.sweep(ctx, `DELETE FROM batches WHERE id IN
		(SELECT id FROM batches WHERE id < ? AND head IS NULL LIMIT ?)`,
		idFrom(now.Add(-keep.Logs)), sweepRows); err != nil {
		return err
	}
	return s.sweep(ctx, `DELETE FROM replay_guards WHERE key IN (SELECT key FROM replay_guards
		WHERE day < ? ORDER BY day LIMIT ?)`,
		dayOf(now.Add(-keep.Inbox-replayKeep)), sweepRows)
}

// sweep repeats a statement that deletes at most sweepRows rows until it
// deletes fewer.
func (s *Store) sweep(ctx context.Context, statement string, args ...any) error {
	for {
		var n int64
		err := s.write(ctx, 100*sweepRows, func(c *conn) (err error) {
			n, err = c.exec(statement, args...)
			return err
		})
		if err != nil {
			return fmt.Errorf("sweep: %w", err)
		}
		if n < sweepRows {
			return nil
		}
	}
}
