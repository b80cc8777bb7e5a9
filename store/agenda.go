package store

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
	"github.com/safedelivr/safedelivr/store/shapes"
)

var (
	agenda      = shapes.Table{Name: "agenda", Bucket: 30 * time.Minute, Brief: agendaKeep} // shard, due, kind, ID
	agendaMarks = shapes.Table{Name: "agenda_marks", Decided: true}                         // shard
	dues        = shapes.Table{Name: "dues", Brief: 24 * time.Hour}                         // user, ID of the entry
)

// agendaKeep is how long an entry is kept after it was due. All workers may be down that long before unfinished work is
// lost from the agenda.
const agendaKeep = 30 * 24 * time.Hour

// Schedule implements models.Store. An entry replaces an earlier one with the same Due, Kind and ID. The clock of the
// process decides what is due, because the process reads the agenda by it, too.
func (s *Store) Schedule(ctx context.Context, es ...models.AgendaEntry) error {
	if len(es) == 0 {
		return nil
	}
	return s.db.call(ctx, func() error {
		version, err := s.db.stamp(ctx)
		if err != nil {
			return err
		}
		return s.db.engine.Put(ctx, agendaRows(es, s.Now(), version)...)
	}, "schedule %d entries", len(es))
}

// agendaRows returns the rows of entries, which have a version.
func agendaRows(es []models.AgendaEntry, now time.Time, version int64) []shapes.Put {
	stamped := time.UnixMicro(version)
	return mapped(es, func(e *models.AgendaEntry) shapes.Put {
		due := e.Due
		if due.Before(now.Add(-time.Minute)) {
			due = now
		}
		return shapes.Put{Table: &agenda, Row: shapes.Row{
			Part:    shardPart(e.ID.Shard(Shards)),
			Key:     append(text(moment(nil, due), string(e.Kind)), e.ID[:]...),
			Version: version,
			Value:   codec.EncodeAgendaEntry(e),
			TTL:     max(due.Sub(stamped), 0) + agendaKeep,
		}}
	})
}

// Agenda implements models.Store. An entry whose value is damaged has only what is in its key.
func (s *Store) Agenda(ctx context.Context, shard int, from, to time.Time) iter.Seq2[models.AgendaEntry, error] {
	r := shapes.Range{From: moment(nil, ceil(from)), To: moment(nil, ceil(to))}
	rows := s.db.scanAll(ctx, &agenda, shardPart(shard), r, fmt.Sprintf("agenda of shard %d", shard))
	return decoded(rows, func(row *shapes.Row) (e models.AgendaEntry, err error) {
		due, rest, err := cutMoment(row.Key)
		if err != nil {
			return e, err
		}
		kind, rest, err := cutText(rest)
		if err != nil {
			return e, err
		}
		if codec.DecodeAgendaEntry(row.Value, &e) != nil {
			e = models.AgendaEntry{}
		}
		e.Due, e.Kind = due, models.AgendaKind(kind)
		e.ID, err = idOf(rest)
		return e, err
	})
}

// mark returns the mark of a shard as it is stored, and its version.
func (s *Store) mark(ctx context.Context, shard int) (mark time.Time, version int64, err error) {
	row, err := s.db.row(ctx, &agendaMarks, shardPart(shard), nil)
	if errors.Is(err, models.ErrNotFound) {
		return mark, 0, nil
	}
	return timeOf(row.Value), row.Version, err
}

// AgendaMark implements models.Store.
func (s *Store) AgendaMark(ctx context.Context, shard int) (time.Time, error) {
	return get(ctx, s.db, func() (mark time.Time, err error) {
		now, err := s.db.engine.Now(ctx)
		if err != nil {
			return mark, err
		}
		if mark, _, err = s.mark(ctx, shard); mark.After(now) {
			mark = now.UTC().Truncate(time.Millisecond)
		}
		return mark, err
	}, "agenda mark %d", shard)
}

// SetAgendaMark implements models.Store. Marks are bounded by the time of the servers. A mark that lies in the future
// nevertheless, because their clock was ahead, can be moved back.
func (s *Store) SetAgendaMark(ctx context.Context, shard int, t time.Time) error {
	return s.db.call(ctx, func() error {
		for {
			now, err := s.db.engine.Now(ctx)
			if err != nil {
				return err
			}
			there, version, err := s.mark(ctx, shard)
			if err != nil {
				return err
			}
			mark := t
			if mark.After(now) {
				mark = now
			}
			if !there.Before(mark) && !there.After(now) || mark.UnixMilli() <= 0 {
				return nil
			}
			row := shapes.Row{Part: shardPart(shard), Version: version + 1, Value: ms(mark)}
			refused, _, err := s.db.swap(ctx, shapes.Swap{Put: shapes.Put{Table: &agendaMarks, Row: row}, Was: version})
			if err != nil || !refused {
				return err
			}
		}
	}, "set agenda mark %d", shard)
}

// PutDue implements models.Store.
func (s *Store) PutDue(ctx context.Context, user string, ds ...models.Due) error {
	if len(ds) == 0 {
		return nil
	}
	return s.db.call(ctx, func() error {
		version, err := s.db.stamp(ctx)
		if err != nil {
			return err
		}
		return s.db.engine.Put(ctx, mapped(ds, func(d *models.Due) shapes.Put {
			return shapes.Put{Table: &dues, Row: shapes.Row{Part: []byte(user), Key: idKey(d.ID()), Version: version,
				Value: append(idKey(d.Batch), ms(d.After)...)}}
		})...)
	}, "put %d times of %s", len(ds), user)
}

// Dues implements models.Store.
func (s *Store) Dues(
	ctx context.Context, user string, from models.ID, back bool, limit int,
) ([]models.Due, error) {
	r := shapes.Range{From: next(from[:]), Back: back, Limit: limit}
	if back {
		r.From, r.To = nil, from[:]
	}
	return get(ctx, s.db, func() (out []models.Due, err error) {
		rows, err := s.db.engine.Scan(ctx, &dues, []byte(user), r)
		return appendDecoded(out, rows, err, decodeDue)
	}, "times of %s", user)
}

func decodeDue(row *shapes.Row) (d models.Due, err error) {
	id, err := idOf(row.Key)
	if err != nil {
		return d, err
	}
	if len(row.Value) < len(id) {
		return d, stored(errors.New("a due entry is cut off"))
	}
	d.At = id.Time()
	d.Batch, err = idOf(row.Value[:len(id)])
	d.After = timeOf(row.Value[len(id):])
	return d, err
}

// RemoveDue implements models.Store.
func (s *Store) RemoveDue(ctx context.Context, user string, id models.ID) error {
	return s.db.call(ctx, func() error {
		return s.db.engine.RemoveRows(ctx, shapes.Address{Table: &dues, Part: []byte(user), Key: id[:]})
	}, "remove time %s of %s", id, user)
}

// DropDues implements models.Store.
func (s *Store) DropDues(ctx context.Context, user string, t time.Time) error {
	first := models.MinID(t)
	return s.db.call(ctx, func() error {
		return s.db.engine.RemoveRange(ctx, &dues, []byte(user), nil, first[:])
	}, "drop times of %s", user)
}
