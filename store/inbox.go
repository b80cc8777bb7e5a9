package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"hash/fnv"
	"iter"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
	"github.com/safedelivr/safedelivr/store/shapes"
)

// Bodies are not in the table of pending posts, because that is read often. A row of it has version 2 and is hidden
// once the post is processed.
var (
	posts = shapes.Table{Name: "inbox", Bucket: time.Minute, Stem: len(models.ID{}), Brief: usualKeep, Packed: true}
	// The keys of both are a shard and an ID.
	pending      = shapes.Table{Name: "inbox_pending", Bucket: 30 * time.Minute, Stem: len(models.ID{}), Brief: usualKeep}
	replayGuards = shapes.Table{Name: "replay_guards", Stem: sha256.Size, Brief: usualKeep} // group; hash of the key, span
)

const (
	// replaySpan is the length of a span of time in milliseconds, by the IDs of entries. Only the oldest entry of a span
	// is kept. It must never change.
	replaySpan = 12 * 60 * 60 * 1000
	// replayKeep is for how much longer than posts that entry is kept. The oldest post of a span hides the later ones,
	// even after it has ended. Later ones may be recorded until the inbox drops them, and must then last for 48 hours:
	// 2 and half a day, and the differences between clocks.
	replayKeep = 3 * 24 * time.Hour
)

// PutInbox implements models.Store.
func (s *Store) PutInbox(ctx context.Context, in models.Inbox) error {
	return s.db.call(ctx, func() error {
		replay, body := codec.EncodePosts(in.Posts)
		part := shardPart(in.ID.Shard(Shards))
		return s.db.engine.Put(ctx,
			shapes.Put{Table: &posts, Row: shapes.Row{Part: part, Key: in.ID[:], Version: 1, TTL: s.InboxKeep,
				Value: append(text(text(nil, in.Provider), replay), body...)}},
			shapes.Put{Table: &pending, Row: shapes.Row{Part: part, Key: in.ID[:], Version: 1, TTL: s.InboxKeep,
				Value: []byte(in.Provider)}})
	}, "put post %s", in.ID)
}

func decodePost(row *shapes.Row) (in models.Inbox, err error) {
	if in.ID, err = idOf(row.Key); err != nil {
		return in, err
	}
	provider, rest, err := cutText(row.Value)
	if err != nil {
		return in, err
	}
	replay, body, err := cutText(rest)
	if err != nil {
		return in, err
	}
	in.Provider = provider
	in.Posts, err = codec.DecodePosts(replay, body)
	return in, stored(err)
}

func postAt(t *shapes.Table, id models.ID) shapes.Address {
	return shapes.Address{Table: t, Part: shardPart(id.Shard(Shards)), Key: id[:]}
}

// Inbox implements models.Store.
func (s *Store) Inbox(ctx context.Context, ids ...models.ID) ([]models.Inbox, error) {
	return get(ctx, s.db, func() (out []models.Inbox, err error) {
		at := mapped(ids, func(id *models.ID) shapes.Address { return postAt(&posts, *id) })
		err = s.db.each(ctx, at, func(_ int, row *shapes.Row) error {
			in, err := decodePost(row)
			out = append(out, in)
			return err
		})
		return out, err
	}, "read %d posts", len(ids))
}

// InboxDone implements models.Store.
func (s *Store) InboxDone(ctx context.Context, ids ...models.ID) error {
	if len(ids) == 0 {
		return nil
	}
	return s.db.call(ctx, func() error {
		return s.db.engine.Put(ctx, mapped(ids, func(id *models.ID) shapes.Put {
			return shapes.Put{Table: &pending, Row: shapes.Row{Part: shardPart(id.Shard(Shards)), Key: idKey(*id), Version: 2,
				Gone: true, TTL: s.InboxKeep}}
		})...)
	}, "mark %d posts", len(ids))
}

// Pending implements models.Store. Entries come in the order of their IDs.
func (s *Store) Pending(ctx context.Context, shard int, from, to time.Time) iter.Seq2[models.Inbox, error] {
	r := shapes.Range{From: moment(nil, ceil(from)), To: moment(nil, ceil(to))}
	rows := s.db.scanAll(ctx, &pending, shardPart(shard), r, fmt.Sprintf("pending posts of shard %d", shard))
	return decoded(rows, func(row *shapes.Row) (models.Inbox, error) {
		id, err := idOf(row.Key)
		return models.Inbox{ID: id, Provider: string(row.Value)}, err
	})
}

// providerBytes is about how much of a post the name of its provider takes.
const providerBytes = 200

// Posts implements models.Store.
func (s *Store) Posts(ctx context.Context, from, to time.Time) iter.Seq2[models.Inbox, error] {
	r := shapes.Range{From: moment(nil, ceil(from)), To: moment(nil, ceil(to)), Head: providerBytes}
	return func(yield func(models.Inbox, error) bool) {
		for shard := range Shards {
			rows := s.db.scanAll(ctx, &posts, shardPart(shard), r, fmt.Sprintf("posts of shard %d", shard))
			for in, err := range decoded(rows, func(row *shapes.Row) (in models.Inbox, err error) {
				if in.ID, err = idOf(row.Key); err == nil {
					in.Provider, _, err = cutText(row.Value)
				}
				return in, err
			}) {
				if !yield(in, err) || err != nil {
					return
				}
			}
		}
	}
}

// EraseInbox implements models.Store. The new value ends when the old one would have.
func (s *Store) EraseInbox(ctx context.Context, id models.ID, address string) (changed bool, err error) {
	err = s.db.call(ctx, func() error {
		return s.db.rewrite(ctx, postAt(&posts, id), func(raw []byte) ([]byte, error) {
			in, err := decodePost(&shapes.Row{Key: id[:], Value: raw})
			if changed = err == nil && in.Erase(address); !changed {
				return nil, err
			}
			replay, body := codec.EncodePosts(in.Posts)
			return append(text(text(nil, in.Provider), replay), body...), nil
		})
	}, "erase an address from post %s", id)
	return changed && err == nil, err
}

// GuardReplays implements models.Store. One entry is kept for each span of a key. Its value is the inverted ID of the
// entry, so that the greater value is the older, and the digest.
func (s *Store) GuardReplays(ctx context.Context, ms ...models.ReplayMark) ([]string, error) {
	return get(ctx, s.db, func() (firsts []string, err error) {
		puts, at := make([]shapes.Put, len(ms)), make([]shapes.Address, len(ms))
		for i := range ms {
			m := &ms[i]
			hash := sha256.Sum256([]byte(m.Key))
			at[i] = shapes.Address{Table: &replayGuards, Part: []byte(m.Group), Key: hash[:]}
			span, version := replayVersion(m)
			puts[i] = shapes.Put{Table: &replayGuards, Row: shapes.Row{Part: at[i].Part, Key: number(bytes.Clone(hash[:]), span),
				Version: version, Value: append(inverted(m.Entry), m.Digest...), TTL: s.InboxKeep + replayKeep}}
		}
		if err := s.db.engine.Put(ctx, puts...); err != nil {
			return firsts, err
		}
		found, err := s.db.engine.Find(ctx, at...)
		if err != nil {
			return firsts, err
		}
		firsts = make([]string, len(ms))
		for i := range ms {
			firsts[i] = ms[i].Digest // if the oldest entry of its span has ended and hides it
			oldest := ""
			for _, row := range found[i] {
				if value := string(row.Value); value > oldest && len(value) >= len(models.ID{}) {
					oldest, firsts[i] = value, value[len(models.ID{}):]
				}
			}
		}
		return firsts, nil
	}, "guard %d posts against replay", len(ms))
}

// inverted returns the bytes of an ID, each inverted.
func inverted(id models.ID) []byte {
	out := make([]byte, 0, 64)
	for _, b := range id {
		out = append(out, ^b)
	}
	return out
}

// The low bits of a mark's version.
const (
	replayIDBits     = 18
	replayDigestBits = 19
)

// replayVersion returns the span of a mark and its version there. The version is the higher, the older the entry: by
// the milliseconds, then by the first of the ID's random bits. The lowest bits come from the digest, because an engine
// need not compare the values of rows that end.
func replayVersion(m *models.ReplayMark) (span int, version int64) {
	at := m.Entry.Time().UnixMilli()
	random := int64(m.Entry[6]&0x0f)<<14 | int64(m.Entry[7])<<6 | int64(m.Entry[8]&0x3f)
	h := fnv.New32a()
	_, _ = h.Write([]byte(m.Digest)) // never fails
	version = replaySpan - at%replaySpan
	version = version<<replayIDBits | (1<<replayIDBits - 1 - random)
	return int(at / replaySpan), version<<replayDigestBits | int64(h.Sum32()>>(32-replayDigestBits))
}
