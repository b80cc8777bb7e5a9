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
	return s.call(ctx, func() error {
		return s.append(ctx, &feeds, user, shapes.Entry{Number: e.Number, Token: e.Token[:],
			Value: codec.EncodeFeedEntry(&e)})
	}, "append entry %d of the feed of %s", e.Number, user)
}

// append appends to a log whose losers do not ask who won. Errors: models.ErrExists.
func (s *Store) append(ctx context.Context, t *shapes.Table, part string, e shapes.Entry) error {
	if e.Number < 1 {
		return models.ErrInvalid
	}
	there, err := s.engine.Append(ctx, t, []byte(part), e)
	if err == nil && there.Number > 0 {
		err = models.ErrExists
	}
	return err
}

func decodeFeed(e *shapes.Entry) (models.FeedEntry, error) {
	f, err := codec.DecodeFeedEntry(e.Number, e.Token, e.Value)
	return f, stored(err)
}

// read returns entries of a log, decoded.
func read[T any](
	ctx context.Context, s *Store, t *shapes.Table, part []byte, after, limit int, decode func(*shapes.Entry) (T, error),
) (out []T, err error) {
	entries, err := s.engine.Read(ctx, t, part, max(after, 0), limit)
	for i := 0; i < len(entries) && err == nil; i++ {
		var v T
		v, err = decode(&entries[i])
		out = append(out, v)
	}
	return out, err
}

// Feed implements models.Store.
func (s *Store) Feed(ctx context.Context, user string, after, limit int) (out []models.FeedEntry, err error) {
	err = s.call(ctx, func() (err error) {
		out, err = read(ctx, s, &feeds, []byte(user), after, limit, decodeFeed)
		return err
	}, "feed of %s after %d", user, after)
	return out, err
}

// FeedHead implements models.Store.
func (s *Store) FeedHead(ctx context.Context, user string) (e models.FeedEntry, err error) {
	err = s.call(ctx, func() error {
		last, err := s.engine.Last(ctx, &feeds, []byte(user))
		if err == nil && last.Number == 0 {
			err = models.ErrNotFound
		}
		if err == nil {
			e, err = decodeFeed(&last)
		}
		return err
	}, "head of the feed of %s", user)
	return e, err
}

// DropFeed implements models.Store.
func (s *Store) DropFeed(ctx context.Context, user string, before int) error {
	return s.call(ctx, func() error {
		return s.engine.Trim(ctx, &feeds, []byte(user), before)
	}, "drop the feed of %s before %d", user, before)
}

// PutPublished implements models.Store.
func (s *Store) PutPublished(ctx context.Context, ts ...models.Published) error {
	return s.call(ctx, func() error {
		for part := range slices.Chunk(ts, pageRows) {
			puts := make([]shapes.Put, len(part))
			for i := range part {
				puts[i] = shapes.Put{Table: &published, Row: shapes.Row{Part: idKey(part[i].Chunk), Version: int64(part[i].Entry) + 1,
					Value: codec.EncodePublished(&part[i])}}
			}
			if err := s.engine.Put(ctx, puts...); err != nil {
				return err
			}
		}
		return nil
	}, "put the published state of %d chunks", len(ts))
}

// Published implements models.Store.
func (s *Store) Published(ctx context.Context, chunks ...models.ID) (out []models.Published, err error) {
	err = s.call(ctx, func() error {
		for part := range slices.Chunk(chunks, pageRows) {
			at := make([]shapes.Address, len(part))
			for i := range part {
				at[i] = shapes.Address{Table: &published, Part: part[i][:]}
			}
			found, err := s.engine.Find(ctx, at...)
			if err != nil {
				return err
			}
			for i := range found {
				row, err := only(found[i])
				if errors.Is(err, models.ErrNotFound) {
					continue
				}
				t, err := codec.DecodePublished(part[i], row.Value)
				if err != nil {
					return stored(err)
				}
				out = append(out, t)
			}
		}
		return nil
	}, "the published state of %d chunks", len(chunks))
	if err != nil {
		return nil, err
	}
	return out, nil
}
