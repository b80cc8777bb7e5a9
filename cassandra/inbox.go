package cassandra

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

const (
	// inboxKeep is how long posts are kept.
	inboxKeep = 7 * 24 * time.Hour
	// witnessSpan is the time by the ids of entries of which the oldest is
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
		replay, body := in.Encode()
		return s.few(ctx, []row{
			{`INSERT INTO inbox (post_id, account, replay, body) VALUES (?, ?, ?, ?) USING TTL ?`,
				[]any{in.ID[:], in.Account, replay, body, seconds(inboxKeep)}, len(body) + len(replay)},
			{`INSERT INTO inbox_arrivals (shard, bucket, post_id, account) VALUES (?, ?, ?, ?) USING TTL ?`,
				[]any{shard, bucket, in.ID[:], in.Account, seconds(inboxKeep)}, 0},
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
			if err := scan(&id, &in.Account, &replay, &raw); err != nil {
				return in, err
			}
			if in.ID, err = idOf(id); err != nil {
				return in, err
			}
			in.Posts, err = models.DecodePosts(replay, raw)
			return in, damaged(err)
		}, `SELECT post_id, account, replay, body FROM inbox WHERE post_id IN ?`, keys)
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

// Pending implements models.Store. Entries come in the order of their IDs,
// without posts.
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
		posts, next, err := page(ctx, &s.runner, pageRows, state, func(scan scanner) (p post, err error) {
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

// Witness implements models.Store. Of each span under a key one entry is kept:
// its timestamp grows with its age in milliseconds, and among entries of the
// same millisecond the value, which begins with the inverted id, decides.
func (s *Store) Witness(ctx context.Context, ws ...models.Witness) (firsts []string, err error) {
	if len(ws) == 0 {
		return nil, nil
	}
	err = s.call(ctx, func() error {
		rows, groups, keys := make([]row, len(ws)), make([]string, len(ws)), map[string][]string{}
		for i := range ws {
			w := &ws[i]
			ms := w.Entry.Time().UnixMilli()
			value := make([]byte, 0, len(w.Entry)+len(w.Digest))
			for _, b := range w.Entry {
				value = append(value, ^b)
			}
			value = append(value, w.Digest...)
			rows[i] = row{`INSERT INTO witnessed (shared, key, span, value) VALUES (?, ?, ?, ?) USING TTL ? AND TIMESTAMP ?`,
				[]any{w.Group, w.Key, ms / witnessSpan, value, seconds(witnessKeep), latest + 1 - ms}, len(w.Key) + len(value)}
			groups[i] = w.Group
			keys[w.Group] = append(keys[w.Group], w.Key)
		}
		if err := put(ctx, s, groups, rows); err != nil {
			return err
		}
		found, err := s.witnessed(ctx, keys)
		for i := range ws {
			first, ok := found[ws[i].Key]
			if !ok { // the oldest of its span has ended and hides it
				first = ws[i].Digest
			}
			firsts = append(firsts, first)
		}
		return err
	}, "%d witnesses, the first of entry %s", len(ws), ws[0].Entry)
	if err != nil {
		return nil, err
	}
	return firsts, nil
}

// witnessed reads the digests of the oldest entries under keys, by group.
func (s *Store) witnessed(ctx context.Context, keys map[string][]string) (map[string]string, error) {
	type part struct {
		group string
		keys  []string
	}
	var parts []part
	for group, keys := range keys {
		for some := range slices.Chunk(keys, groupRows) {
			parts = append(parts, part{group, some})
		}
	}
	digests := map[string]string{}
	var mu sync.Mutex
	err := each(ctx, len(parts), func(ctx context.Context, i int) error {
		pairs, err := query(ctx, &s.runner, func(scan scanner) (p [2]string, err error) {
			var raw []byte
			if err := scan(&p[0], &raw); err != nil {
				return p, err
			}
			if len(raw) < len(models.ID{}) {
				return p, damaged(fmt.Errorf("a witness of %d bytes", len(raw)))
			}
			p[1] = string(raw[len(models.ID{}):])
			return p, nil
		}, `SELECT key, value FROM witnessed WHERE shared = ? AND key IN ?`, parts[i].group, parts[i].keys)
		mu.Lock()
		defer mu.Unlock()
		for _, p := range pairs { // by key, then by span
			if _, ok := digests[p[0]]; !ok {
				digests[p[0]] = p[1]
			}
		}
		return err
	})
	return digests, err
}
