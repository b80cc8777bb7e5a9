package cassandra

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"golang.org/x/sync/errgroup"
)

const (
	// inboxKeep is how long posts are kept.
	inboxKeep = 7 * 24 * time.Hour
	// witnessSpan is the time by the ids of posts of which the oldest post is
	// kept, in milliseconds; it is recorded with the keyspace.
	witnessSpan = 12 * 60 * 60 * 1000
	// witnessKeep is how long. The oldest post of a span hides the later ones,
	// also when it has ended. Those may be witnessed until the inbox forgets
	// them, and are to be remembered for 48 hours: 7 + 2 + half a day, and the
	// differences between clocks.
	witnessKeep = 10 * 24 * time.Hour
)

func arrival(id models.ID) (shard int, bucket int64) {
	return id.Shard(shards), id.Time().UnixMilli() / timeBucket
}

// PutInbox implements models.Store. Bodies are kept apart from the list of
// arrivals, which is read again and again.
func (s *Store) PutInbox(ctx context.Context, in models.Inbox) error {
	return s.call(ctx, func() error {
		shard, bucket := arrival(in.ID)
		g, ctx := errgroup.WithContext(ctx)
		g.Go(func() error {
			return s.exec(ctx, plain, `INSERT INTO inbox (post_id, account, replay, body) VALUES (?, ?, ?, ?) USING TTL ?`,
				in.ID[:], in.Account, in.Replay, models.Pack(in.Body), seconds(inboxKeep))
		})
		err := s.exec(ctx, plain, `INSERT INTO inbox_arrivals (shard, bucket, post_id, account) VALUES (?, ?, ?, ?) USING TTL ?`,
			shard, bucket, in.ID[:], in.Account, seconds(inboxKeep))
		if other := g.Wait(); err == nil {
			err = other
		}
		return err
	}, "put post %s", in.ID)
}

// Inbox implements models.Store.
func (s *Store) Inbox(ctx context.Context, ids ...models.ID) (out []models.Inbox, err error) {
	err = s.call(ctx, func() error {
		found := make([][]models.Inbox, len(ids))
		err := each(ctx, len(ids), func(ctx context.Context, i int) (err error) {
			found[i], err = query(ctx, &s.runner, func(scan scanner) (models.Inbox, error) {
				in, raw := models.Inbox{ID: ids[i]}, []byte(nil)
				if err := scan(&in.Account, &in.Replay, &raw); err != nil {
					return in, err
				}
				body, err := models.Unpack(raw)
				in.Body = body
				return in, damaged(err)
			}, `SELECT account, replay, body FROM inbox WHERE post_id = ?`, ids[i][:])
			return err
		})
		for _, f := range found {
			out = append(out, f...)
		}
		return err
	}, "read %d posts", len(ids))
	if err != nil {
		return nil, err
	}
	return out, nil
}

// InboxDone implements models.Store.
func (s *Store) InboxDone(ctx context.Context, ids ...models.ID) error {
	if len(ids) == 0 {
		return nil
	}
	type partition struct {
		shard  int
		bucket int64
	}
	return s.call(ctx, func() error {
		rows, parts := make([]row, len(ids)), make([]partition, len(ids))
		for i, id := range ids {
			parts[i].shard, parts[i].bucket = arrival(id)
			rows[i] = row{[]any{parts[i].shard, parts[i].bucket, id[:], true, seconds(inboxKeep)}, 50}
		}
		return put(ctx, s, `INSERT INTO inbox_arrivals (shard, bucket, post_id, done) VALUES (?, ?, ?, ?) USING TTL ?`, parts, rows)
	}, "mark %d posts", len(ids))
}

// Posts implements models.Store.
func (s *Store) Posts(ctx context.Context, from, to time.Time) iter.Seq2[models.Inbox, error] {
	return func(yield func(models.Inbox, error) bool) {
		for shard := range shards {
			for in, err := range s.arrivals(ctx, shard, from, to, true) {
				if !yield(in, err) || err != nil {
					return
				}
			}
		}
	}
}

// Pending implements models.Store. Posts come in the order of their IDs,
// without body and replay.
func (s *Store) Pending(ctx context.Context, shard int, from, to time.Time) iter.Seq2[models.Inbox, error] {
	return s.arrivals(ctx, shard, from, to, false)
}

// arrivals yields the posts of a shard; those that are worked off only if all
// are asked for.
func (s *Store) arrivals(ctx context.Context, shard int, from, to time.Time, all bool) iter.Seq2[models.Inbox, error] {
	first, end := max(ceilMilli(from), time.Now().Add(-inboxKeep-24*time.Hour).UnixMilli()), ceilMilli(to)
	if first >= end {
		return empty[models.Inbox](ctx, s, "posts of shard %d", shard)
	}
	type post struct {
		models.Inbox
		done bool
	}
	find := func(ctx context.Context, bucket int64, state []byte) ([]models.Inbox, []byte, error) {
		posts, next, err := page(ctx, &s.runner, state, func(scan scanner) (p post, err error) {
			var raw []byte
			if err := scan(&raw, &p.Account, &p.done); err != nil {
				return p, err
			}
			p.ID, err = idOf(raw)
			return p, err
		}, `SELECT post_id, account, done FROM inbox_arrivals WHERE shard = ? AND bucket = ? AND post_id >= ? AND post_id < ?`,
			shard, bucket, idFrom(first), idFrom(end))
		var open []models.Inbox
		for i := range posts {
			if all || !posts[i].done {
				open = append(open, posts[i].Inbox)
			}
		}
		return open, next, err
	}
	return cursor(ctx, s, first/timeBucket, (end-1)/timeBucket, find, "posts of shard %d", shard)
}

// Witness implements models.Store. Of each span under a key one post is kept:
// its timestamp grows with its age in milliseconds, and among posts of the
// same millisecond the value, which begins with the inverted id, decides.
func (s *Store) Witness(ctx context.Context, key, digest string, in models.ID) (first string, err error) {
	err = s.call(ctx, func() error {
		ms := in.Time().UnixMilli()
		value := make([]byte, 0, len(in)+len(digest))
		for _, b := range in {
			value = append(value, ^b)
		}
		value = append(value, digest...)
		err := s.exec(ctx, plain, `INSERT INTO witnesses (key, span, value) VALUES (?, ?, ?) USING TTL ? AND TIMESTAMP ?`,
			key, ms/witnessSpan, value, seconds(witnessKeep), latest+1-ms)
		if err != nil {
			return err
		}
		raw, err := single(ctx, &s.runner, column[[]byte], `SELECT value FROM witnesses WHERE key = ? LIMIT 1`, key)
		switch {
		case errors.Is(err, models.ErrNotFound): // the oldest of its span has ended and hides it
			raw = value
		case err != nil:
			return err
		case len(raw) < len(in):
			return damaged(fmt.Errorf("a witness of %d bytes", len(raw)))
		}
		first = string(raw[len(in):])
		return nil
	}, "witness of post %s", in)
	return first, err
}
