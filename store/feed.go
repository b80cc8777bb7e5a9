package store

import (
	"context"
	"errors"
	"slices"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
	"github.com/safedelivr/safedelivr/store/shapes"
)

var (
	feeds     = shapes.Table{Name: "feed", Log: true, Group: 200, Packed: true} // user
	published = shapes.Table{Name: "published"}                                 // chunk; the version is the number of the newest entry
)

// AppendFeed implements models.Store.
func (s *Store) AppendFeed(ctx context.Context, user string, e models.FeedEntry) error {
	return s.db.call(ctx, func() error {
		return s.db.append(ctx, &feeds, user, shapes.Entry{Number: e.Number, Token: e.Token[:],
			Value: codec.EncodeFeedEntry(&e)})
	}, "append entry %d of the feed of %s", e.Number, user)
}

func decodeFeed(e *shapes.Entry) (models.FeedEntry, error) {
	f, err := codec.DecodeFeedEntry(e.Number, e.Token, e.Value)
	return f, stored(err)
}

// Feed implements models.Store.
func (s *Store) Feed(ctx context.Context, user string, after, limit int) ([]models.FeedEntry, error) {
	return get(ctx, s.db, func() ([]models.FeedEntry, error) {
		return read(ctx, s.db, &feeds, []byte(user), after, limit, decodeFeed)
	}, "feed of %s after %d", user, after)
}

// FeedHead implements models.Store.
func (s *Store) FeedHead(ctx context.Context, user string) (models.FeedEntry, error) {
	return get(ctx, s.db, func() (e models.FeedEntry, err error) {
		last, err := s.db.engine.Last(ctx, &feeds, []byte(user))
		if err == nil && last.Number == 0 {
			err = models.ErrNotFound
		}
		if err == nil {
			e, err = decodeFeed(&last)
		}
		return e, err
	}, "head of the feed of %s", user)
}

// DropFeed implements models.Store.
func (s *Store) DropFeed(ctx context.Context, user string, before int) error {
	return s.db.call(ctx, func() error {
		return s.db.engine.Trim(ctx, &feeds, []byte(user), before)
	}, "drop the feed of %s before %d", user, before)
}

// PutPublished implements models.Store.
func (s *Store) PutPublished(ctx context.Context, ts ...models.Published) error {
	return s.db.call(ctx, func() error {
		for part := range slices.Chunk(ts, pageRows) {
			puts := make([]shapes.Put, len(part))
			for i := range part {
				puts[i] = shapes.Put{Table: &published, Row: shapes.Row{Part: idKey(part[i].Chunk), Version: int64(part[i].Entry) + 1,
					Value: codec.EncodePublished(&part[i])}}
			}
			if err := s.db.engine.Put(ctx, puts...); err != nil {
				return err
			}
		}
		return nil
	}, "put the published state of %d chunks", len(ts))
}

// Published implements models.Store.
func (s *Store) Published(ctx context.Context, chunks ...models.ID) ([]models.Published, error) {
	return get(ctx, s.db, func() (out []models.Published, err error) {
		for part := range slices.Chunk(chunks, pageRows) {
			at := make([]shapes.Address, len(part))
			for i := range part {
				at[i] = shapes.Address{Table: &published, Part: part[i][:]}
			}
			found, err := s.db.engine.Find(ctx, at...)
			if err != nil {
				return out, err
			}
			for i := range found {
				row, err := only(found[i])
				if errors.Is(err, models.ErrNotFound) {
					continue
				}
				t, err := codec.DecodePublished(part[i], row.Value)
				if err != nil {
					return out, stored(err)
				}
				out = append(out, t)
			}
		}
		return out, nil
	}, "the published state of %d chunks", len(chunks))
}
