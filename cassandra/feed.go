package cassandra

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
)

// feedPart is the number of entries of a feed in one partition. It must never change.
const feedPart = 200

// AppendFeed implements models.Store. A plain read may decide whether the number before is
// taken, because a taken number never becomes free again. Number 1 of a feed whose first part
// was removed is taken, too.
func (s *Store) AppendFeed(ctx context.Context, user string, e models.FeedEntry) error {
	return s.call(ctx, func() error {
		if e.Number < 1 {
			return models.ErrInvalid
		}
		part := e.Number / feedPart
		if before := e.Number - 1; before > 0 {
			_, err := single(ctx, &s.runner, column[int],
				`SELECT number FROM feed WHERE owner = ? AND part = ? AND number = ?`, user, before/feedPart, before)
			if errors.Is(err, models.ErrNotFound) {
				return fmt.Errorf("%w: there is no entry %d", models.ErrInvalid, before)
			} else if err != nil {
				return err
			}
		}
		if e.Number == 1 {
			later, err := s.feedParts(ctx, user, part)
			if err != nil {
				return err
			}
			if len(later) > 0 {
				return models.ErrExists
			}
		}
		if e.Number == 1 || e.Number%feedPart == 0 { // the first entry of its part
			err := s.exec(ctx, plain, `INSERT INTO feed_parts (owner, part) VALUES (?, ?)`, user, part)
			if err != nil {
				return err
			}
		}
		applied, row, err := s.cas(ctx, settling,
			`INSERT INTO feed (owner, part, number, holder, value) VALUES (?, ?, ?, ?, ?) IF NOT EXISTS`,
			user, part, e.Number, e.Token[:], codec.EncodeFeedEntry(&e))
		if err != nil || applied {
			return err
		}
		if holder, _ := row["holder"].([]byte); bytes.Equal(holder, e.Token[:]) {
			return nil
		}
		return models.ErrExists
	}, "append entry %d of the feed of %s", e.Number, user)
}

// feedParts returns the parts of a feed after a part, ascending. The last one may have no
// entry yet, and the first ones may be removed.
func (s *Store) feedParts(ctx context.Context, user string, after int) ([]int, error) {
	return query(ctx, &s.runner, column[int],
		`SELECT part FROM feed_parts WHERE owner = ? AND part > ? ORDER BY part ASC`, user, after)
}

// feedEntries returns the entries that a query selects.
func (s *Store) feedEntries(ctx context.Context, cql string, args ...any) ([]models.FeedEntry, error) {
	return query(ctx, &s.runner, func(scan scanner) (e models.FeedEntry, err error) {
		var (
			number      int
			holder, raw []byte
		)
		if err := scan(&number, &holder, &raw); err != nil {
			return e, err
		}
		e, err = codec.DecodeFeedEntry(number, holder, raw)
		return e, damaged(err)
	}, cql, args...)
}

// Feed implements models.Store.
func (s *Store) Feed(ctx context.Context, user string, after, limit int) (out []models.FeedEntry, err error) {
	err = s.call(ctx, func() error {
		last, jumped := max(after, 0), false
		for len(out) < limit {
			part := (last + 1) / feedPart
			found, err := s.feedEntries(ctx,
				`SELECT number, holder, value FROM feed WHERE owner = ? AND part = ? AND number > ? LIMIT ?`,
				user, part, last, limit-len(out))
			if err != nil {
				return err
			}
			if len(found) > 0 {
				out = append(out, found...)
				last = found[len(found)-1].Number // at the end of a part, the next query reads the next one
				continue
			}
			if len(out) > 0 {
				return nil
			}
			// Either there is nothing more, or the part was removed. It may have got its entries
			// after it was read and before the later part appeared: it is read again.
			later, err := s.feedParts(ctx, user, part)
			switch {
			case err != nil || len(later) == 0:
				return err
			case !jumped:
				jumped = true
			default:
				last, jumped = later[0]*feedPart-1, false
			}
		}
		return nil
	}, "feed of %s after %d", user, after)
	if err != nil {
		return nil, err
	}
	return out, nil
}

// FeedHead implements models.Store. The newest part may have no entry yet.
func (s *Store) FeedHead(ctx context.Context, user string) (e models.FeedEntry, err error) {
	err = s.call(ctx, func() (err error) {
		e, err = s.feedHead(ctx, user)
		return err
	}, "head of the feed of %s", user)
	return e, err
}

func (s *Store) feedHead(ctx context.Context, user string) (e models.FeedEntry, err error) {
	parts, err := query(ctx, &s.runner, column[int], `SELECT part FROM feed_parts WHERE owner = ? LIMIT 2`, user)
	if err != nil {
		return e, err
	}
	for _, part := range parts {
		found, err := s.feedEntries(ctx, `SELECT number, holder, value FROM feed WHERE owner = ? AND part = ?
			ORDER BY number DESC LIMIT 1`, user, part)
		if err != nil {
			return e, err
		}
		if len(found) > 0 {
			return found[0], nil
		}
	}
	return e, models.ErrNotFound
}

// DropFeed implements models.Store. It removes whole parts.
func (s *Store) DropFeed(ctx context.Context, user string, before int) error {
	return s.call(ctx, func() error {
		head, err := s.feedHead(ctx, user)
		if errors.Is(err, models.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		parts, err := s.feedParts(ctx, user, -1)
		for i := 0; i < len(parts) && err == nil && parts[i] < min(head.Number, before)/feedPart; i++ {
			err = s.exec(ctx, plain, `DELETE FROM feed WHERE owner = ? AND part = ?`, user, parts[i])
			if err == nil {
				err = s.exec(ctx, plain, `DELETE FROM feed_parts WHERE owner = ? AND part = ?`, user, parts[i])
			}
		}
		return err
	}, "drop the feed of %s before %d", user, before)
}

// PutTold implements models.Store.
func (s *Store) PutTold(ctx context.Context, ts ...models.Told) error {
	if len(ts) == 0 {
		return nil
	}
	return s.call(ctx, func() error {
		rows := make([]row, len(ts))
		for i := range ts {
			raw := codec.EncodeTold(&ts[i])
			rows[i] = row{`INSERT INTO told (chunk_id, value) VALUES (?, ?) USING TIMESTAMP ?`,
				[]any{ts[i].Chunk[:], raw, int64(ts[i].Entry)}, len(raw)}
		}
		return s.few(ctx, rows)
	}, "put what was told of %d chunks", len(ts))
}

// Told implements models.Store.
func (s *Store) Told(ctx context.Context, chunks ...models.ID) (out []models.Told, err error) {
	err = s.call(ctx, func() error {
		keys := make([][]byte, len(chunks))
		for i := range chunks {
			keys[i] = chunks[i][:]
		}
		out, err = queryKeys(ctx, s, func(scan scanner) (t models.Told, err error) {
			var id, raw []byte
			if err := scan(&id, &raw); err != nil {
				return t, err
			}
			chunk, err := idOf(id)
			if err != nil {
				return t, err
			}
			t, err = codec.DecodeTold(chunk, raw)
			return t, damaged(err)
		}, `SELECT chunk_id, value FROM told WHERE chunk_id IN ?`, keys)
		return err
	}, "what was told of %d chunks", len(chunks))
	if err != nil {
		return nil, err
	}
	return out, nil
}
