package store

import (
	"context"

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
		return s.db.putPages(ctx, mapped(ts, func(p *models.Published) shapes.Put {
			return shapes.Put{Table: &published, Row: shapes.Row{Part: idKey(p.Chunk), Version: int64(p.Entry) + 1,
				Value: codec.EncodePublished(p)}}
		}))
	}, "put the published state of %d chunks", len(ts))
}

// Published implements models.Store.
func (s *Store) Published(ctx context.Context, chunks ...models.ID) ([]models.Published, error) {
	return get(ctx, s.db, func() (out []models.Published, err error) {
		at := mapped(chunks, func(id *models.ID) shapes.Address { return shapes.Address{Table: &published, Part: id[:]} })
		err = s.db.each(ctx, at, func(i int, row *shapes.Row) error {
			p, err := codec.DecodePublished(chunks[i], row.Value)
			out = append(out, p)
			return stored(err)
		})
		return out, err
	}, "the published state of %d chunks", len(chunks))
}
