package cassandra

import (
	"context"
	"fmt"
	"hash/fnv"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
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

// Pending implements models.Store. Entries come in the order of their IDs,
// without posts.
func (s *Store) Pending(ctx context.Context, shard int, from, to time.Time) iter.Seq2[models.Inbox, error] {
	return s.arrivals(ctx, shard, from, to, false)
}

// arrivals yields the posts of a shard; those that are worked off only if all
// are asked for.
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
		posts, next, err := page(ctx, &s.runner, pageRows, state, func(scan scanner) (p post, err error) {
			var raw []byte
			if err := scan(&raw, &p.Provider, &p.done); err != nil {
				return p, err
			}
			p.ID, err = idOf(raw)
			return p, err
		}, `SELECT post_id, provider, done FROM inbox_arrivals WHERE shard = ? AND bucket = ? AND post_id >= ? AND post_id < ?`,
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

// Witness implements models.Store. Of each span under a key one entry is kept.
func (s *Store) GuardReplays(ctx context.Context, ws ...models.ReplayMark) (firsts []string, err error) {
	if len(ws) == 0 {
		return nil, nil
	}
	err = s.call(ctx, func() error {
		rows, groups, keys := make([]row, len(ws)), make([]string, len(ws)), map[string][]string{}
		for i := range ws {
			w := &ws[i]
			value := make([]byte, 0, len(w.Entry)+len(w.Digest))
			for _, b := range w.Entry {
				value = append(value, ^b)
			}
			value = append(value, w.Digest...)
			span, stamp := witnessStamp(w)
			rows[i] = row{`INSERT INTO witnessed (shared, key, span, value) VALUES (?, ?, ?, ?) USING TTL ? AND TIMESTAMP ?`,
				[]any{w.Group, w.Key, span, value, seconds(witnessKeep), stamp}, len(w.Key) + len(value)}
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

// The lower bits of a witness's timestamp.
const (
	witnessIDBits     = 18
	witnessDigestBits = 19
)

// witnessForm tells spans whose timestamps are as witnessStamp makes them from
// those of earlier builds, which lie below.
const witnessForm = 1 << 32

// witnessStamp is the span of a witness and its timestamp there. That is the
// higher the older the entry is: by the milliseconds, then by the first of the
// id's random bits. Below these are bits of the digest, because the server does
// not go by the value where two timestamps are the same: what ends some time is
// replaced by what ends later.
func witnessStamp(w *models.ReplayMark) (span, stamp int64) {
	ms := w.Entry.Time().UnixMilli()
	random := int64(w.Entry[6]&0x0f)<<14 | int64(w.Entry[7])<<6 | int64(w.Entry[8]&0x3f)
	h := fnv.New32a()
	_, _ = h.Write([]byte(w.Digest)) // never fails
	stamp = witnessSpan - ms%witnessSpan
	stamp = stamp<<witnessIDBits | (1<<witnessIDBits - 1 - random)
	return ms/witnessSpan + witnessForm, stamp<<witnessDigestBits | int64(h.Sum32()>>(32-witnessDigestBits))
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
	type witness struct{ key, age, digest string } // age is the inverted id: the greater, the older
	oldest := map[string]witness{}
	var mu sync.Mutex
	err := each(ctx, len(parts), func(ctx context.Context, i int) error {
		rows, err := query(ctx, &s.runner, func(scan scanner) (w witness, err error) {
			var raw []byte
			if err := scan(&w.key, &raw); err != nil {
				return w, err
			}
			if len(raw) < len(models.ID{}) {
				return w, damaged(fmt.Errorf("a witness of %d bytes", len(raw)))
			}
			w.age, w.digest = string(raw[:len(models.ID{})]), string(raw[len(models.ID{}):])
			return w, nil
		}, `SELECT key, value FROM witnessed WHERE shared = ? AND key IN ?`, parts[i].group, parts[i].keys)
		mu.Lock()
		defer mu.Unlock()
		for _, w := range rows {
			if w.age > oldest[w.key].age {
				oldest[w.key] = w
			}
		}
		return err
	})
	digests := make(map[string]string, len(oldest))
	for key, w := range oldest {
		digests[key] = w.digest
	}
	return digests, err
}
