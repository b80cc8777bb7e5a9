package sqlite

import (
	"bytes"
	"cmp"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
)

// AppendFeed implements models.Store. The newest entry always exists, so that number 1 is
// free only in an empty feed.
func (s *Store) AppendFeed(ctx context.Context, user string, e models.FeedEntry) error {
	raw := codec.EncodeFeedEntry(&e)
	err := s.decide(ctx, len(raw)+100, func(c *conn) error {
		if e.Number < 1 {
			return models.ErrInvalid
		}
		n, err := c.exec(`INSERT INTO feed (user, number, token, entry) SELECT ?, ?, ?, ?
			WHERE (SELECT COALESCE(MAX(number), 0) FROM feed WHERE user = ?) = ?`,
			user, e.Number, e.Token[:], raw, user, e.Number-1)
		if err != nil || n == 1 {
			return err
		}
		found := models.ErrInvalid // the number leaves a gap
		err = c.query(`SELECT number, token FROM feed WHERE user = ? AND number >= ? ORDER BY number LIMIT 1`,
			func(row []driver.Value) error {
				found = models.ErrExists
				if row[0].(int64) == int64(e.Number) && bytes.Equal(blob(row[1]), e.Token[:]) {
					found = nil
				}
				return nil
			}, user, e.Number)
		return cmp.Or(err, found)
	})
	if err != nil {
		return fmt.Errorf("append entry %d of the feed of %s: %w", e.Number, user, err)
	}
	return nil
}

// Feed implements models.Store.
func (s *Store) Feed(ctx context.Context, user string, after, limit int) (out []models.FeedEntry, err error) {
	err = s.read(ctx, func(c *conn) (err error) {
		out, err = feedEntries(c, `SELECT number, token, entry FROM feed WHERE user = ? AND number > ?
			ORDER BY number LIMIT ?`, user, after, max(limit, 0))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("feed of %s after %d: %w", user, after, err)
	}
	return out, nil
}

// FeedHead implements models.Store.
func (s *Store) FeedHead(ctx context.Context, user string) (e models.FeedEntry, err error) {
	err = s.read(ctx, func(c *conn) error {
		found, err := feedEntries(c, `SELECT number, token, entry FROM feed WHERE user = ?
			ORDER BY number DESC LIMIT 1`, user)
		if err == nil && len(found) == 0 {
			err = models.ErrNotFound
		}
		if err == nil {
			e = found[0]
		}
		return err
	})
	if err != nil && !errors.Is(err, models.ErrNotFound) {
		err = fmt.Errorf("head of the feed of %s: %w", user, err)
	}
	return e, err
}

// feedEntries reads the entries that a query selects.
func feedEntries(c *conn, query string, args ...any) (out []models.FeedEntry, err error) {
	err = c.query(query, func(row []driver.Value) error {
		e, err := codec.DecodeFeedEntry(int(row[0].(int64)), blob(row[1]), blob(row[2]))
		out = append(out, e)
		return stored(err)
	}, args...)
	return out, err
}

// DropFeed implements models.Store.
func (s *Store) DropFeed(ctx context.Context, user string, before int) error {
	err := s.sweep(ctx, `DELETE FROM feed WHERE user = ? AND number IN (SELECT number FROM feed WHERE user = ?
		AND number < ? AND number < (SELECT MAX(number) FROM feed WHERE user = ?) ORDER BY number LIMIT ?)`,
		user, user, before, user, sweepRows)
	if err != nil {
		return fmt.Errorf("drop the feed of %s before %d: %w", user, before, err)
	}
	return nil
}

// PutTold implements models.Store.
func (s *Store) PutTold(ctx context.Context, ts ...models.Told) error {
	for part := range slices.Chunk(ts, sweepRows) {
		size, rows := 0, make([][]byte, len(part))
		for i := range part {
			rows[i] = codec.EncodeTold(&part[i])
			size += len(rows[i])
		}
		err := s.write(ctx, size, func(c *conn) error {
			for i := range part {
				_, err := c.exec(`INSERT INTO told (chunk, entry, told) VALUES (?, ?, ?)
					ON CONFLICT (chunk) DO UPDATE SET entry = excluded.entry, told = excluded.told
					WHERE excluded.entry > told.entry`, part[i].Chunk, part[i].Entry, rows[i])
				if err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("put what was told of %d chunks: %w", len(ts), err)
		}
	}
	return nil
}

// Told implements models.Store.
func (s *Store) Told(ctx context.Context, chunks ...models.ID) (out []models.Told, err error) {
	for part := range slices.Chunk(chunks, sweepRows) {
		err = s.read(ctx, func(c *conn) error {
			for _, id := range part {
				err := c.query(`SELECT told FROM told WHERE chunk = ?`, func(row []driver.Value) error {
					t, err := codec.DecodeTold(id, blob(row[0]))
					out = append(out, t)
					return stored(err)
				}, id)
				if err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("what was told of %d chunks: %w", len(chunks), err)
		}
	}
	return out, nil
}
