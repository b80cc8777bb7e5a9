package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"
	"iter"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// Schedule implements models.Store. An entry replaces an earlier one with the same
// Due, Kind and ID.
func (s *Store) Schedule(ctx context.Context, es ...models.AgendaEntry) error {
	if len(es) == 0 {
		return nil
	}
	now := s.now().UnixMilli()
	rows := make([][10]any, len(es))
	for i, e := range es {
		due := e.Due.UnixMilli()
		if due < now-time.Minute.Milliseconds() {
			due = now
		}
		rows[i] = [10]any{
			e.ID.Shard(shards), due, string(e.Kind), e.ID, e.User, e.Chunks, e.Round, string(e.Lane), e.Missed, e.Unsent,
		}
	}
	err := s.write(ctx, 100*len(es), func(c *conn) error {
		for i := range rows {
			_, err := c.exec(`INSERT INTO agenda (shard, due, kind, id, user, chunks, round, lane, missed, unsent)
				VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
				ON CONFLICT DO UPDATE SET user = excluded.user,
				chunks = excluded.chunks, round = excluded.round, lane = excluded.lane, missed = excluded.missed,
				unsent = excluded.unsent`, rows[i][:]...)
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("schedule %d entries: %w", len(es), err)
	}
	return nil
}

// Agenda implements models.Store.
func (s *Store) Agenda(ctx context.Context, shard int, from, to time.Time) iter.Seq2[models.AgendaEntry, error] {
	next := func(c *conn, last *models.AgendaEntry) (page []models.AgendaEntry, err error) {
		due, kind, id := ceilMilli(from), "", []byte{} // no entry has an empty kind, so this comes before all entries of from
		if last != nil {
			due, kind, id = last.Due.UnixMilli(), string(last.Kind), last.ID[:]
		}
		err = c.query(`SELECT due, kind, id, user, chunks, round, lane, missed, unsent FROM agenda
			WHERE shard = ? AND (due, kind, id) > (?, ?, ?) AND due < ? ORDER BY due, kind, id LIMIT ?`,
			func(row []driver.Value) error {
				page = append(page, models.AgendaEntry{
					Due:    timeOf(row[0]),
					Kind:   models.AgendaKind(row[1].(string)),
					ID:     idOf(row[2]),
					User:   row[3].(string),
					Chunks: int(row[4].(int64)),
					Round:  int(row[5].(int64)),
					Lane:   models.Lane(row[6].(string)),
					Missed: row[7].(int64) != 0,
					Unsent: row[8].(int64) != 0,
				})
				return nil
			}, shard, due, kind, id, ceilMilli(to), pageRows)
		return page, err
	}
	return pages(ctx, s, fmt.Sprintf("agenda of shard %d", shard), next)
}

// AgendaMark implements models.Store.
func (s *Store) AgendaMark(ctx context.Context, shard int) (mark time.Time, err error) {
	err = s.read(ctx, func(c *conn) error {
		return c.query(`SELECT mark FROM agenda_marks WHERE shard = ?`, func(row []driver.Value) error {
			mark = timeOf(row[0])
			return nil
		}, shard)
	})
	if err != nil {
		return time.Time{}, fmt.Errorf("agenda mark %d: %w", shard, err)
	}
	if now := s.now().UTC().Truncate(time.Millisecond); mark.After(now) {
		mark = now // the clock was ahead when it was set
	}
	return mark, nil
}

// SetAgendaMark implements models.Store.
func (s *Store) SetAgendaMark(ctx context.Context, shard int, t time.Time) error {
	now := s.now().UnixMilli()
	err := s.write(ctx, 50, func(c *conn) error {
		_, err := c.exec(`INSERT INTO agenda_marks (shard, mark) VALUES (?, ?)
			ON CONFLICT DO UPDATE SET mark = iif(mark > ?, excluded.mark, max(mark, excluded.mark))`, shard,
			min(t.UnixMilli(), now), now)
		return err
	})
	if err != nil {
		return fmt.Errorf("set agenda mark %d: %w", shard, err)
	}
	return nil
}

// PutDue implements models.Store.
func (s *Store) PutDue(ctx context.Context, user string, ds ...models.Due) error {
	err := s.write(ctx, 100*len(ds), func(c *conn) error {
		for i := range ds {
			if _, err := c.exec(`INSERT OR REPLACE INTO dues (user, id, batch, after) VALUES (?, ?, ?, ?)`,
				user, ds[i].ID(), ds[i].Batch, afterOf(&ds[i])); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("put %d times of %s: %w", len(ds), user, err)
	}
	return nil
}

// afterOf returns d.After in milliseconds since 1970; 0: it is zero.
func afterOf(d *models.Due) int64 {
	if d.After.IsZero() {
		return 0
	}
	return d.After.UnixMilli()
}

// Dues implements models.Store.
func (s *Store) Dues(
	ctx context.Context, user string, from models.ID, back bool, limit int,
) (out []models.Due, err error) {
	query := `SELECT id, batch, after FROM dues WHERE user = ? AND id > ? ORDER BY id LIMIT ?`
	if back {
		query = `SELECT id, batch, after FROM dues WHERE user = ? AND id < ? ORDER BY id DESC LIMIT ?`
	}
	err = s.read(ctx, func(c *conn) error {
		return c.query(query, func(row []driver.Value) error {
			d := models.Due{At: idOf(row[0]).Time(), Batch: idOf(row[1])}
			if after := row[2].(int64); after > 0 {
				d.After = time.UnixMilli(after).UTC()
			}
			out = append(out, d)
			return nil
		}, user, from, max(limit, 0))
	})
	if err != nil {
		return nil, fmt.Errorf("times of %s: %w", user, err)
	}
	return out, nil
}

// RemoveDue implements models.Store.
func (s *Store) RemoveDue(ctx context.Context, user string, id models.ID) error {
	err := s.write(ctx, 100, func(c *conn) error {
		_, err := c.exec(`DELETE FROM dues WHERE user = ? AND id = ?`, user, id)
		return err
	})
	if err != nil {
		return fmt.Errorf("remove time %s of %s: %w", id, user, err)
	}
	return nil
}

// DropDues implements models.Store.
func (s *Store) DropDues(ctx context.Context, user string, t time.Time) error {
	err := s.write(ctx, 1000, func(c *conn) error {
		_, err := c.exec(`DELETE FROM dues WHERE user = ? AND id < ?`, user, models.MinID(t))
		return err
	})
	if err != nil {
		return fmt.Errorf("drop times of %s: %w", user, err)
	}
	return nil
}
