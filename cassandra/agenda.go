package cassandra

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
)

const (
	// timeBucket is the time that one partition of agenda and inbox_arrivals
	// covers, in milliseconds. It is recorded with the keyspace. A partition has
	// some 30 MB after 1,500 batches per second, and the first worker on a new
	// keyspace reads a day of them in each shard.
	timeBucket = 30 * 60 * 1000
	// agendaKeep is how long an entry is kept after it was due. All workers may be
	// down that long before unfinished work is lost from the agenda.
	agendaKeep = 30 * 24 * time.Hour
	// entryRows is how many entries a page has. They are small, and a million may
	// be due at once.
	entryRows = 5000
	// longestTTL is a little less than the server's limit.
	longestTTL = 19 * 365 * 24 * time.Hour
)

// seconds returns the TTL for d, rounded up. It adds one because the server counts
// whole seconds, and counts the current one.
func seconds(d time.Duration) int64 {
	return int64((min(d, longestTTL)+time.Second-1)/time.Second) + 1
}

// Schedule implements models.Store. An entry replaces an earlier one with the same
// Due, Kind and ID. The clock of the process decides what is due, because the
// process reads the agenda by it, too. The servers' clocks decide when an entry
// ends.
func (s *Store) Schedule(ctx context.Context, es ...models.AgendaEntry) error {
	if len(es) == 0 {
		return nil
	}
	type partition struct {
		shard  int
		bucket int64
	}
	return s.call(ctx, func() error {
		now := s.now()
		server, err := s.clock.time(ctx)
		if err != nil {
			return err
		}
		rows, parts := make([]row, len(es)), make([]partition, len(es))
		for i := range es {
			e := &es[i]
			due := e.Due.UnixMilli()
			if due < now.Add(-time.Minute).UnixMilli() {
				due = now.UnixMilli()
			}
			ahead := time.Duration(min(max(due-server.UnixMilli(), 0), longestTTL.Milliseconds())) * time.Millisecond
			parts[i] = partition{e.ID.Shard(shards), due / timeBucket}
			rows[i] = row{`INSERT INTO agenda (shard, bucket, due, kind, id, value) VALUES (?, ?, ?, ?, ?, ?) USING TTL ?`,
				[]any{parts[i].shard, parts[i].bucket, due, string(e.Kind), e.ID[:], codec.EncodeAgendaEntry(e), seconds(ahead + agendaKeep)},
				100}
		}
		return put(ctx, s, parts, rows)
	}, "schedule %d entries", len(es))
}

// Agenda implements models.Store. It does not read buckets whose entries have all
// ended, so a range that begins long ago costs no more.
func (s *Store) Agenda(ctx context.Context, shard int, from, to time.Time) iter.Seq2[models.AgendaEntry, error] {
	first, end := max(ceilMilli(from), s.clock.about().Add(-agendaKeep-time.Hour).UnixMilli()), ceilMilli(to)
	if first >= end {
		return empty[models.AgendaEntry](ctx, s, "agenda of shard %d", shard)
	}
	find := func(ctx context.Context, bucket int64, state []byte) ([]models.AgendaEntry, []byte, error) {
		return page(ctx, pageRequest{&s.runner, entryRows, state}, func(scan scanner) (e models.AgendaEntry, err error) {
			var (
				due     int64
				kind    string
				id, raw []byte
			)
			if err := scan(&due, &kind, &id, &raw); err != nil {
				return e, err
			}
			e.Due, e.Kind = time.UnixMilli(due).UTC(), models.AgendaKind(kind)
			if e.ID, err = idOf(id); err != nil {
				return e, err
			}
			if bad := codec.DecodeAgendaEntry(raw, &e); bad != nil { // kind and ID are in the key
				s.log.Error("an agenda entry is damaged and handled by its ID alone", "id", e.ID.String(), "err", bad)
			}
			return e, nil
		}, `SELECT due, kind, id, value FROM agenda WHERE shard = ? AND bucket = ? AND due >= ? AND due < ?`, shard, bucket,
			first, end)
	}
	return cursor(ctx, s, partitions{first / timeBucket, (end - 1) / timeBucket}, find,
		fmt.Sprintf("agenda of shard %d", shard))
}

// AgendaMark implements models.Store.
func (s *Store) AgendaMark(ctx context.Context, shard int) (mark time.Time, err error) {
	err = s.call(ctx, func() error {
		now, err := s.clock.time(ctx)
		if err != nil {
			return err
		}
		ms, err := s.mark(ctx, shard)
		mark = timeOf(min(ms, now.UnixMilli()))
		return err
	}, "agenda mark %d", shard)
	return mark, err
}

// mark returns the stored mark of a shard, or 0 if there is none.
func (s *Store) mark(ctx context.Context, shard int) (int64, error) {
	ms, err := single(ctx, &s.runner, column[int64], `SELECT mark FROM agenda_marks WHERE shard = ?`, shard)
	if errors.Is(err, models.ErrNotFound) {
		return 0, nil
	}
	return ms, err
}

// SetAgendaMark implements models.Store. It sets marks by compare-and-set and bounds
// them by the servers' time. A mark that lies in the future nevertheless, because a
// server's clock was ahead, can be moved back.
func (s *Store) SetAgendaMark(ctx context.Context, shard int, t time.Time) error {
	return s.call(ctx, func() error {
		now, err := s.clock.time(ctx)
		if err != nil {
			return err
		}
		there, err := s.mark(ctx, shard)
		if err != nil {
			return err
		}
		for next := min(t.UnixMilli(), now.UnixMilli()); next > 0 && (there < next || there > now.UnixMilli()); {
			was := any(there)
			if there == 0 {
				was = nil
			}
			applied, row, err := s.cas(ctx, plain, `UPDATE agenda_marks SET mark = ? WHERE shard = ? IF mark = ?`, next, shard,
				was)
			if err != nil || applied {
				return err
			}
			there, _ = row["mark"].(int64)
		}
		return nil
	}, "set agenda mark %d", shard)
}

// PutDue implements models.Store.
func (s *Store) PutDue(ctx context.Context, user string, ds ...models.Due) error {
	return s.call(ctx, func() error {
		rows := make([]row, len(ds))
		for i := range ds {
			id, after := ds[i].ID(), int64(0)
			if !ds[i].After.IsZero() {
				after = ds[i].After.UnixMilli()
			}
			rows[i] = row{`INSERT INTO dues (owner, id, batch_id, after) VALUES (?, ?, ?, ?)`,
				[]any{user, id[:], ds[i].Batch[:], after}, 100}
		}
		return put(ctx, s, make([]struct{}, len(rows)), rows)
	}, "put %d times of %s", len(ds), user)
}

// Dues implements models.Store.
func (s *Store) Dues(
	ctx context.Context, user string, from models.ID, back bool, limit int,
) (out []models.Due, err error) {
	cql := `SELECT id, batch_id, after FROM dues WHERE owner = ? AND id > ? ORDER BY id ASC LIMIT ?`
	if back {
		cql = `SELECT id, batch_id, after FROM dues WHERE owner = ? AND id < ? ORDER BY id DESC LIMIT ?`
	}
	err = s.call(ctx, func() (err error) {
		if out = nil; limit > 0 {
			out, err = query(ctx, &s.runner, readDue, cql, user, from[:], limit)
		}
		return err
	}, "times of %s", user)
	return out, err
}

func readDue(scan scanner) (d models.Due, err error) {
	var raw, batch []byte
	var after int64
	if err := scan(&raw, &batch, &after); err != nil {
		return d, err
	}
	id, err := idOf(raw)
	if err != nil {
		return d, err
	}
	if d.At = id.Time(); after > 0 {
		d.After = time.UnixMilli(after).UTC()
	}
	d.Batch, err = idOf(batch)
	return d, err
}

// RemoveDue implements models.Store.
func (s *Store) RemoveDue(ctx context.Context, user string, id models.ID) error {
	return s.call(ctx, func() error {
		return s.exec(ctx, plain, `DELETE FROM dues WHERE owner = ? AND id = ?`, user, id[:])
	}, "remove time %s of %s", id, user)
}

// DropDues implements models.Store. It leaves one tombstone, which no list of times to come reads.
func (s *Store) DropDues(ctx context.Context, user string, t time.Time) error {
	first := models.MinID(t)
	return s.call(ctx, func() error {
		return s.exec(ctx, plain, `DELETE FROM dues WHERE owner = ? AND id < ?`, user, first[:])
	}, "drop times of %s", user)
}
