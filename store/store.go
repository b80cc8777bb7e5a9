// Package store implements models.Store over the shapes of a database. Every noun is written here once, and an engine
// knows nothing of nouns.
//
// Keys are made so that their order is the order that readers need, and none is the beginning of another. Values are
// the stored forms of package codec.
package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store/shapes"
)

// Shards must never change: agenda entries and posts are stored by shard.
const Shards = 8

// pageRows is how many rows a cursor reads at a time. Between pages it holds no connection, so the reader of a cursor
// may call the store.
const pageRows = 500

// Store implements models.Store.
type Store struct {
	db    *database
	exist *Recent[models.ID] // batches that are known to have existed
	Options
}

var _ models.Store = (*Store)(nil)

// Options are the settings that all engines share.
type Options struct {
	// Now is the clock of the process. nil: time.Now.
	Now func() time.Time
	// InboxKeep is how long webhook posts are kept. 0: 7 days.
	InboxKeep time.Duration
}

// usualKeep is how long webhook posts are kept if nothing else is set.
const usualKeep = 7 * 24 * time.Hour

// New returns a store over an engine, which has all Tables.
func New(e shapes.Engine, o Options) *Store {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.InboxKeep <= 0 {
		o.InboxKeep = usualKeep
	}
	stamps, _ := e.(shapes.Stamper)
	return &Store{db: &database{engine: e, stamps: stamps, now: o.Now}, exist: NewRecent[models.ID](20_000), Options: o}
}

// Engine returns the engine below the store. Tests use it to damage what is stored.
func (s *Store) Engine() shapes.Engine { return s.db.engine }

// Form is the number of the form of the tables. A database records it. An engine that opens one with a lower number,
// or migrates it, creates the tables that are missing. It refuses one with a higher number.
const Form = 1

// Tables lists the tables that an engine must have. A change that adds one raises Form, because existing databases do not
// have it; a test compares both. Engines never change a table that exists: one that is declared otherwise needs another
// name.
func Tables() []*shapes.Table {
	return []*shapes.Table{
		&users, &userNames, &keys, &userKeys,
		&heads, &batchList, &chunks, &pieces,
		&ledgers, &facts, &summaries, &sums[0], &sums[1], &sums[2], &sums[3],
		&agenda, &agendaMarks, &dues, &posts, &pending, &replayGuards,
		&commands, &rules, &claims, &answers, &leases, &transients,
		&addressIndex, &suppressions, &additions, &feeds, &published, &documents,
	}
}

// Close implements models.Store.
func (s *Store) Close() error { return s.db.close() }

// Ping implements models.Store.
func (s *Store) Ping(ctx context.Context) error {
	return s.db.call(ctx, func() error { return s.db.engine.Ping(ctx) }, "ping")
}

// Shards implements models.Store.
func (s *Store) Shards() int { return Shards }

// Sweep removes what has ended: agenda entries that every reader has passed, old posts, and rows whose time is over. It
// is to be called about once a minute, by one process.
func (s *Store) Sweep(ctx context.Context) error {
	return s.db.call(ctx, func() error {
		if s.db.stamps != nil {
			return nil
		}
		now, err := s.db.engine.Now(ctx)
		if err != nil {
			return err
		}
		old := moment(nil, now.Add(-s.InboxKeep))
		for shard := range Shards {
			mark, _, err := s.mark(ctx, shard)
			if err != nil {
				return err
			}
			if mark.After(now) {
				mark = now // the clock was ahead: later entries were not processed
			}
			part, passed := shardPart(shard), moment(nil, mark.Add(-2*models.LateWriters))
			for _, r := range []struct {
				table *shapes.Table
				to    []byte
			}{{&agenda, passed}, {&pending, old}, {&posts, old}} {
				if err := s.db.engine.RemoveRange(ctx, r.table, part, nil, r.to); err != nil {
					return err
				}
			}
		}
		return s.db.engine.Sweep(ctx)
	}, "sweep")
}

// The components of keys. Each can be followed by another one, and keeps the order of its values.

// text appends a text. A zero byte in it is escaped, so that no text is the beginning of another.
func text(key []byte, s string) []byte {
	key = slices.Grow(key, len(s)+len(models.ID{})) // an ID often follows
	for i := range len(s) {
		if key = append(key, s[i]); s[i] == 0 {
			key = append(key, 0xff)
		}
	}
	return append(key, 0, 1)
}

// cutText reads a text from the beginning of a key.
func cutText(key []byte) (s string, rest []byte, err error) {
	var out []byte
	for i := 0; i+1 < len(key); i++ {
		switch {
		case key[i] != 0:
			out = append(out, key[i])
		case key[i+1] == 1:
			return string(out), key[i+2:], nil
		default:
			out = append(out, 0)
			i++
		}
	}
	return "", nil, stored(errors.New("a key has no end"))
}

// moment appends a time in six bytes of milliseconds, as the IDs have it.
func moment(key []byte, t time.Time) []byte {
	id := models.MinID(time.UnixMilli(min(max(t.UnixMilli(), 0), 1<<48-1)))
	return append(key, id[:6]...)
}

// cutMoment reads a time from the beginning of a key.
func cutMoment(key []byte) (time.Time, []byte, error) {
	if len(key) < 6 {
		return time.Time{}, nil, stored(errors.New("a key has no time"))
	}
	var id models.ID
	copy(id[:], key[:6])
	return id.Time(), key[6:], nil
}

// ceil returns the first millisecond that does not begin before t. Bounds of ranges are compared with times in
// milliseconds.
func ceil(t time.Time) time.Time {
	if ms := t.Truncate(time.Millisecond); ms.Before(t) {
		return ms.Add(time.Millisecond)
	}
	return t
}

// number appends a number in four bytes.
func number(key []byte, n int) []byte { return binary.BigEndian.AppendUint32(key, uint32(n)) } //nolint:gosec // small

// idOf reads a key or value that is an ID.
func idOf(raw []byte) (id models.ID, err error) {
	if len(raw) != len(id) {
		return id, stored(errors.New("an id has the wrong length"))
	}
	return models.ID(raw), nil
}

// idKey returns an ID as a key. It is a copy: a write may outlast the call.
func idKey(id models.ID) []byte { return id[:] }

// next returns the least key that is greater than key.
func next(key []byte) []byte { return append(bytes.Clone(key), 0) }

// below returns the upper bound of a range that ends before an ID; the zero ID is no bound.
func below(id models.ID) []byte {
	if id.IsZero() {
		return nil
	}
	return id[:]
}

func shardPart(shard int) []byte { return number(nil, shard) }

// ms returns a time as bytes: milliseconds since 1970; the zero time is empty.
func ms(t time.Time) []byte {
	if t.IsZero() {
		return nil
	}
	return binary.BigEndian.AppendUint64(nil, uint64(t.UnixMilli()))
}

// timeOf reverses ms.
func timeOf(raw []byte) time.Time {
	if len(raw) != 8 {
		return time.Time{}
	}
	return time.UnixMilli(int64(binary.BigEndian.Uint64(raw))).UTC() //nolint:gosec // two's complement
}
