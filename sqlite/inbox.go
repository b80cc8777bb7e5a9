package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
)

// PutInbox implements models.Store.
func (s *Store) PutInbox(ctx context.Context, in models.Inbox) error {
	replay, body := codec.EncodePosts(in.Posts)
	err := s.write(ctx, len(body), func(c *conn) error {
		n, err := c.exec(`INSERT INTO inbox (id, provider, replay, body) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING`,
			in.ID, in.Provider, replay, body)
		if err != nil || n == 0 { // a repeat, perhaps of a processed entry
			return err
		}
		_, err = c.exec(`INSERT INTO inbox_open (shard, id, provider) VALUES (?, ?, ?) ON CONFLICT DO NOTHING`,
			in.ID.Shard(shards), in.ID, in.Provider)
		return err
	})
	if err != nil {
		return fmt.Errorf("put post %s: %w", in.ID, err)
	}
	return nil
}

// Inbox implements models.Store.
func (s *Store) Inbox(ctx context.Context, ids ...models.ID) ([]models.Inbox, error) {
	var out []models.Inbox
	for part := range slices.Chunk(ids, pageRows) {
		err := s.read(ctx, func(c *conn) error {
			for _, id := range part {
				err := c.query(`SELECT provider, replay, body FROM inbox WHERE id = ?`, func(row []driver.Value) error {
					posts, err := codec.DecodePosts(row[1].(string), blob(row[2]))
					out = append(out, models.Inbox{ID: id, Provider: row[0].(string), Posts: posts})
					return stored(err)
				}, id)
				if err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("read %d posts: %w", len(ids), err)
		}
	}
	return out, nil
}

// InboxDone implements models.Store.
func (s *Store) InboxDone(ctx context.Context, ids ...models.ID) error {
	if len(ids) == 0 {
		return nil
	}
	ids = slices.Clone(ids) // the caller may return before they are written
	err := s.write(ctx, 50*len(ids), func(c *conn) error {
		for _, id := range ids {
			if _, err := c.exec(`DELETE FROM inbox_open WHERE shard = ? AND id = ?`, id.Shard(shards), id); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("mark %d posts: %w", len(ids), err)
	}
	return nil
}

// Pending implements models.Store. Entries come in the order of their IDs.
func (s *Store) Pending(ctx context.Context, shard int, from, to time.Time) iter.Seq2[models.Inbox, error] {
	next := func(c *conn, last *models.Inbox) (page []models.Inbox, err error) {
		after := idFrom(from)
		op := `>=`
		if last != nil {
			after, op = last.ID, `>`
		}
		err = c.query(`SELECT id, provider FROM inbox_open WHERE shard = ? AND id `+op+` ? AND id < ? ORDER BY id LIMIT ?`,
			func(row []driver.Value) error {
				page = append(page, models.Inbox{ID: idOf(row[0]), Provider: row[1].(string)})
				return nil
			}, shard, after, idFrom(to), pageRows)
		return page, err
	}
	return pages(ctx, s, fmt.Sprintf("pending posts of shard %d", shard), next)
}

// Posts implements models.Store.
func (s *Store) Posts(ctx context.Context, from, to time.Time) iter.Seq2[models.Inbox, error] {
	return pages(ctx, s, "posts", func(c *conn, last *models.Inbox) (page []models.Inbox, err error) {
		after, op := idFrom(from), `>=`
		if last != nil {
			after, op = last.ID, `>`
		}
		err = c.query(`SELECT id, provider FROM inbox WHERE id `+op+` ? AND id < ? ORDER BY id LIMIT ?`,
			func(row []driver.Value) error {
				page = append(page, models.Inbox{ID: idOf(row[0]), Provider: row[1].(string)})
				return nil
			}, after, idFrom(to), pageRows)
		return page, err
	})
}
