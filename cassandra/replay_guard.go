package cassandra

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

const (
	// replaySpan is the length of a span of time in milliseconds, by the IDs of
	// entries. Only the oldest entry of a span is kept. The value is recorded with
	// the keyspace.
	replaySpan = 12 * 60 * 60 * 1000
	// replayKeep is how long that entry is kept. The oldest post of a span hides
	// the later ones, even after it has ended. Later ones may be recorded until
	// the inbox drops them, and must then last for 48 hours: 7 + 2 + half a day,
	// and the differences between clocks.
	replayKeep = 10 * 24 * time.Hour
)

// GuardReplays implements models.Store. One entry is kept for each span of a key.
func (s *Store) GuardReplays(ctx context.Context, ms ...models.ReplayMark) (firsts []string, err error) {
	if len(ms) == 0 {
		return nil, nil
	}
	err = s.call(ctx, func() error {
		rows, groups, keys := make([]row, len(ms)), make([]string, len(ms)), map[string][]string{}
		for i := range ms {
			rows[i] = replayRow(&ms[i])
			groups[i] = ms[i].Group
			keys[ms[i].Group] = append(keys[ms[i].Group], ms[i].Key)
		}
		if err := put(ctx, s, groups, rows); err != nil {
			return err
		}
		found, err := s.oldestReplays(ctx, keys)
		for i := range ms {
			first, ok := found[ms[i].Key]
			if !ok { // the oldest entry of its span has ended and hides it
				first = ms[i].Digest
			}
			firsts = append(firsts, first)
		}
		return err
	}, "guard %d posts against replay, the first of entry %s", len(ms), ms[0].Entry)
	if err != nil {
		return nil, err
	}
	return firsts, nil
}

// replayRow returns the write of a mark. Its value is the inverted ID of the
// entry, so that the greater value is the older, and the digest.
func replayRow(m *models.ReplayMark) row {
	value := make([]byte, 0, len(m.Entry)+len(m.Digest))
	for _, b := range m.Entry {
		value = append(value, ^b)
	}
	value = append(value, m.Digest...)
	span, stamp := replayStamp(m)
	return row{
		cql:  `INSERT INTO replay_guards (signed, key, span, value) VALUES (?, ?, ?, ?) USING TTL ? AND TIMESTAMP ?`,
		args: []any{m.Group, m.Key, span, value, seconds(replayKeep), stamp},
		size: len(m.Key) + len(value),
	}
}

// The low bits of a mark's timestamp.
const (
	replayIDBits     = 18
	replayDigestBits = 19
)

// replayStamp returns the span of a mark and its timestamp there. The timestamp
// is the higher, the older the entry: by the milliseconds, then by the first of
// the ID's random bits. The lowest bits come from the digest, because the server
// does not compare values if two timestamps are equal and the cells have TTLs:
// the cell that ends later wins.
func replayStamp(m *models.ReplayMark) (span, stamp int64) {
	ms := m.Entry.Time().UnixMilli()
	random := int64(m.Entry[6]&0x0f)<<14 | int64(m.Entry[7])<<6 | int64(m.Entry[8]&0x3f)
	h := fnv.New32a()
	_, _ = h.Write([]byte(m.Digest)) // never fails
	stamp = replaySpan - ms%replaySpan
	stamp = stamp<<replayIDBits | (1<<replayIDBits - 1 - random)
	return ms / replaySpan, stamp<<replayDigestBits | int64(h.Sum32()>>(32-replayDigestBits))
}

// oldestReplays reads the digests of the oldest entries under keys, which are
// given by group.
func (s *Store) oldestReplays(ctx context.Context, keys map[string][]string) (map[string]string, error) {
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
	oldest := map[string]replay{}
	var mu sync.Mutex
	err := each(ctx, len(parts), func(ctx context.Context, i int) error {
		rows, err := query(ctx, &s.runner, readReplay,
			`SELECT key, value FROM replay_guards WHERE signed = ? AND key IN ?`, parts[i].group, parts[i].keys)
		mu.Lock()
		defer mu.Unlock()
		for _, r := range rows {
			if r.age > oldest[r.key].age {
				oldest[r.key] = r
			}
		}
		return err
	})
	digests := make(map[string]string, len(oldest))
	for key, r := range oldest {
		digests[key] = r.digest
	}
	return digests, err
}

// replay is a row of replay_guards. age is the inverted ID: the greater, the
// older.
type replay struct{ key, age, digest string }

func readReplay(scan scanner) (r replay, err error) {
	var raw []byte
	if err := scan(&r.key, &raw); err != nil {
		return r, err
	}
	if len(raw) < len(models.ID{}) {
		return r, damaged(fmt.Errorf("a replay guard of %d bytes", len(raw)))
	}
	r.age, r.digest = string(raw[:len(models.ID{})]), string(raw[len(models.ID{}):])
	return r, nil
}
