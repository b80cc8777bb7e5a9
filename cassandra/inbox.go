package cassandra

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
)

// inboxKeep is how long posts are kept.
const inboxKeep = 7 * 24 * time.Hour

// arrival returns the partition of an entry in inbox_arrivals.
func arrival(id models.ID) (shard int, bucket int64) {
	return id.Shard(shards), id.Time().UnixMilli() / timeBucket
}

// PutInbox implements models.Store. Bodies are not in the table of arrivals, because
// that is read often.
func (s *Store) PutInbox(ctx context.Context, in models.Inbox) error {
	return s.call(ctx, func() error {
		shard, bucket := arrival(in.ID)
		replay, body := codec.EncodePosts(in.Posts)
		return s.few(ctx, []row{
			{`INSERT INTO inbox (post_id, provider, replay, body) VALUES (?, ?, ?, ?) USING TTL ?`,
				[]any{in.ID[:], in.Provider, replay, body, seconds(inboxKeep)}, len(body) + len(replay)},
			{`INSERT INTO inbox_arrivals (shard, bucket, post_id, provider) VALUES (?, ?, ?, ?) USING TTL ?`,
				[]any{shard, bucket, in.ID[:], in.Provider, seconds(inboxKeep)}, 0},
		})
	}, "put post %s", in.ID)
}

// Inbox implements models.Store.
func (s *Store) Inbox(ctx context.Context, ids ...models.ID) (out []models.Inbox, err error) {
	err = s.call(ctx, func() error {
		keys := make([][]byte, len(ids))
		for i := range ids {
			keys[i] = ids[i][:]
		}
		posts, err := queryKeys(ctx, s, func(scan scanner) (in models.Inbox, err error) {
			var (
				id, raw []byte
				replay  string
			)
			if err := scan(&id, &in.Provider, &replay, &raw); err != nil {
				return in, err
			}
			if in.ID, err = idOf(id); err != nil {
				return in, err
			}
			in.Posts, err = codec.DecodePosts(replay, raw)
			return in, damaged(err)
		}, `SELECT post_id, provider, replay, body FROM inbox WHERE post_id IN ?`, keys)
		found := map[models.ID]models.Inbox{}
		for _, in := range posts {
			found[in.ID] = in
		}
		for _, id := range ids {
			if in, ok := found[id]; ok {
				out = append(out, in)
			}
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
			rows[i] = row{`INSERT INTO inbox_arrivals (shard, bucket, post_id, done) VALUES (?, ?, ?, ?) USING TTL ?`,
				[]any{parts[i].shard, parts[i].bucket, id[:], true, seconds(inboxKeep)}, 50}
		}
		return put(ctx, s, parts, rows)
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

// Pending implements models.Store. Entries come in the order of their IDs.
func (s *Store) Pending(ctx context.Context, shard int, from, to time.Time) iter.Seq2[models.Inbox, error] {
	return s.arrivals(ctx, shard, from, to, false)
}

// arrivals yields the posts of a shard, processed ones only if all is set.
func (s *Store) arrivals(ctx context.Context, shard int, from, to time.Time, all bool) iter.Seq2[models.Inbox, error] {
	first, end := max(ceilMilli(from), s.clock.about().Add(-inboxKeep-24*time.Hour).UnixMilli()), ceilMilli(to)
	if first >= end {
		return empty[models.Inbox](ctx, s, "posts of shard %d", shard)
	}
	type post struct {
		models.Inbox
		done bool
	}
	find := func(ctx context.Context, bucket int64, state []byte) ([]models.Inbox, []byte, error) {
		posts, next, err := page(ctx, pageRequest{&s.runner, pageRows, state}, func(scan scanner) (p post, err error) {
			var raw []byte
			if err := scan(&raw, &p.Provider, &p.done); err != nil {
				return p, err
			}
			p.ID, err = idOf(raw)
			return p, err
		}, `SELECT post_id, provider, done FROM inbox_arrivals
			WHERE shard = ? AND bucket = ? AND post_id >= ? AND post_id < ?`,
			shard, bucket, idFrom(first), idFrom(end))
		var open []models.Inbox
		for i := range posts {
			if all || !posts[i].done {
				open = append(open, posts[i].Inbox)
			}
		}
		return open, next, err
	}
	return cursor(ctx, s, partitions{first / timeBucket, (end - 1) / timeBucket}, find,
		fmt.Sprintf("posts of shard %d", shard))
}
