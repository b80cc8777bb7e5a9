package sqlite

import (
	"bytes"
	"context"
	"database/sql/driver"
	"fmt"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// BatchIDs implements models.Store.
func (s *Store) BatchIDs(ctx context.Context, user string, before models.ID, limit int) (ids []models.ID, err error) {
	end := before[:]
	if before.IsZero() {
		end = bytes.Repeat([]byte{0xff}, len(before))
	}
	err = s.read(ctx, func(c *conn) error {
		return c.query(`SELECT id FROM user_batches WHERE user = ? AND id < ? ORDER BY id DESC LIMIT ?`,
			func(row []driver.Value) error {
				ids = append(ids, idOf(row[0]))
				return nil
			}, user, end, max(limit, 0))
	})
	if err != nil {
		return nil, fmt.Errorf("list of %s: %w", user, err)
	}
	return ids, nil
}

// BatchIDsAfter implements models.Store.
func (s *Store) BatchIDsAfter(
	ctx context.Context, user string, after models.ID, limit int,
) (ids []models.ID, err error) {
	err = s.read(ctx, func(c *conn) error {
		return c.query(`SELECT id FROM user_batches WHERE user = ? AND id > ? ORDER BY id LIMIT ?`,
			func(row []driver.Value) error {
				ids = append(ids, idOf(row[0]))
				return nil
			}, user, after, max(limit, 0))
	})
	if err != nil {
		return nil, fmt.Errorf("list of %s: %w", user, err)
	}
	return ids, nil
}

// Purge implements models.Store. A head of NULL says that the batch does not exist.
func (s *Store) Purge(ctx context.Context, user string, batch models.ID) error {
	if err := s.purge(ctx, user, batch); err != nil {
		return fmt.Errorf("purge %s: %w", batch, err)
	}
	return nil
}

func (s *Store) purge(ctx context.Context, user string, batch models.ID) error {
	err := s.write(ctx, 100, func(c *conn) error {
		if _, err := c.exec(`UPDATE batches SET head = NULL, first = NULL WHERE id = ?`, batch); err != nil {
			return err
		}
		_, err := c.exec(`DELETE FROM pieces WHERE batch = ?`, batch)
		return err
	})
	if err != nil {
		return err
	}
	first, last := batch.Chunk(0), batch.Chunk(models.MaxChunks-1)
	if err := s.sweep(ctx, `DELETE FROM chunks WHERE id IN
		(SELECT id FROM chunks WHERE id BETWEEN ? AND ? LIMIT ?)`, first, last, sweepRows); err != nil {
		return err
	}
	if err := s.sweep(ctx, `DELETE FROM summaries WHERE user = ? AND chunk IN
		(SELECT chunk FROM summaries WHERE user = ? AND chunk BETWEEN ? AND ? LIMIT ?)`,
		user, user, first, last, sweepRows); err != nil {
		return err
	}
	if err := s.sweep(ctx, `DELETE FROM told WHERE chunk IN
		(SELECT chunk FROM told WHERE chunk BETWEEN ? AND ? LIMIT ?)`, first, last, sweepRows); err != nil {
		return err
	}
	if err := s.sweep(ctx, `DELETE FROM facts WHERE (chunk, key) IN
		(SELECT chunk, key FROM facts WHERE chunk BETWEEN ? AND ? LIMIT ?)`, first, last, sweepRows); err != nil {
		return err
	}
	if err := s.sweep(ctx, `DELETE FROM ledger WHERE (chunk, number) IN
		(SELECT chunk, number FROM ledger WHERE chunk BETWEEN ? AND ? LIMIT ?)`, first, last, sweepRows); err != nil {
		return err
	}
	return s.write(ctx, 100, func(c *conn) error {
		if _, err := c.exec(`DELETE FROM batches WHERE id = ?`, batch); err != nil {
			return err
		}
		_, err := c.exec(`DELETE FROM user_batches WHERE user = ? AND id = ?`, user, batch)
		return err
	})
}

// DropSums implements models.Store.
func (s *Store) DropSums(ctx context.Context, user string, t time.Time) error {
	day := models.DayOf(t)
	for _, level := range []models.Level{models.Second, models.Minute, models.Hour} {
		n := levelNumber(level)
		err := s.sweep(ctx, `DELETE FROM nodes WHERE user = ? AND level = ? AND start IN
			(SELECT start FROM nodes WHERE user = ? AND level = ? AND start >= ? AND start < ? LIMIT ?)`,
			user, n, user, n, day.UnixMilli(), day.AddDate(0, 0, 1).UnixMilli(), sweepRows)
		if err != nil {
			return fmt.Errorf("drop sums of %s: %w", user, err)
		}
	}
	return nil
}
