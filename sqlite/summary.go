package sqlite

import (
	"cmp"
	"context"
	"database/sql/driver"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
)

// ascending sorts a ledger. SQL promises no order for a union.
func ascending(es []models.Entry) {
	slices.SortFunc(es, func(a, b models.Entry) int { return cmp.Compare(a.Number, b.Number) })
}

// PutSummaries implements models.Store.
func (s *Store) PutSummaries(ctx context.Context, ss ...models.ChunkSummary) error {
	if len(ss) == 0 {
		return nil
	}
	size, rows := 0, make([][4]any, len(ss))
	for i := range ss {
		raw := codec.EncodeSummary(&ss[i].Summary)
		size += len(raw)
		rows[i] = [4]any{ss[i].User, ss[i].Chunk, ss[i].Summary.FullVersion(), raw}
	}
	err := s.write(ctx, size, func(c *conn) error {
		for i := range rows {
			_, err := c.exec(`INSERT INTO summaries (user, chunk, version, sum) VALUES (?, ?, ?, ?)
				ON CONFLICT (user, chunk) DO UPDATE SET version = excluded.version, sum = excluded.sum
				WHERE excluded.version >= summaries.version`, rows[i][:]...)
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("put %d summaries of %s: %w", len(ss), ss[0].Chunk, err)
	}
	return nil
}

// Summaries implements models.Store.
func (s *Store) Summaries(
	ctx context.Context, user string, batch models.ID, from int,
) iter.Seq2[models.ChunkSummary, error] {
	next := func(c *conn, last *models.ChunkSummary) (page []models.ChunkSummary, err error) {
		begin := max(from, 0)
		if last != nil {
			begin = last.Chunk.ChunkNumber() + 1
		}
		if begin >= models.MaxChunks {
			return nil, nil
		}
		err = c.query(`SELECT chunk, sum FROM summaries WHERE user = ? AND chunk BETWEEN ? AND ? ORDER BY chunk LIMIT ?`,
			func(row []driver.Value) error {
				sum, err := codec.DecodeSummary(blob(row[1]))
				page = append(page, models.ChunkSummary{User: user, Chunk: idOf(row[0]), Summary: sum})
				return stored(err)
			}, user, batch.Chunk(begin), batch.Chunk(models.MaxChunks-1), pageRows)
		return page, err
	}
	return pages(ctx, s, "summaries of "+batch.String(), next)
}

// SecondSummaries implements models.Store.
func (s *Store) SecondSummaries(
	ctx context.Context, user string, t time.Time,
) iter.Seq2[models.ChunkSummary, error] {
	second := t.UTC().Truncate(time.Second)
	next := func(c *conn, last *models.ChunkSummary) (page []models.ChunkSummary, err error) {
		first := idFrom(second)
		after := first[:len(first)-1] // less than every ID of the second
		if last != nil {
			after = last.Chunk[:]
		}
		err = c.query(`SELECT chunk, sum FROM summaries WHERE user = ? AND chunk > ? AND chunk < ? ORDER BY chunk LIMIT ?`,
			func(row []driver.Value) error {
				sum, err := codec.DecodeSummary(blob(row[1]))
				page = append(page, models.ChunkSummary{User: user, Chunk: idOf(row[0]), Summary: sum})
				return stored(err)
			}, user, after, idFrom(second.Add(time.Second)), pageRows)
		return page, err
	}
	return pages(ctx, s, "summaries of "+user, next)
}

// RollUp implements models.Store. It counts in one snapshot and keeps no writer
// waiting. Whatever changes after that has a higher version, so a sum that is
// stored late does no harm.
func (s *Store) RollUp(ctx context.Context, span models.Span) (models.Summary, error) {
	sum, err := s.rollUp(ctx, span)
	if err != nil {
		return models.Summary{}, fmt.Errorf("roll up %s %s of %s: %w", span.Level, span.Start.Format(time.RFC3339), span.User,
			err)
	}
	return sum, nil
}

func (s *Store) rollUp(ctx context.Context, span models.Span) (models.Summary, error) {
	if levelNumber(span.Level) < 0 {
		return models.Summary{}, models.ErrInvalid
	}
	span = models.SpanOf(span.User, span.Level, span.Start)
	sum, err := s.count(ctx, span)
	if err != nil {
		return models.Summary{}, err
	}
	return s.putNode(ctx, span, sum)
}

// count adds up the children of a span.
func (s *Store) count(ctx context.Context, span models.Span) (sum models.Summary, err error) {
	end := span.Start.Add(span.Level.Length())
	err = s.read(ctx, func(c *conn) error {
		add := func(row []driver.Value) error {
			child, err := codec.DecodeSummary(blob(row[0]))
			sum.Add(&child)
			return stored(err)
		}
		if span.Level == models.Second {
			return c.query(`SELECT sum FROM summaries WHERE user = ? AND chunk >= ? AND chunk < ?`, add,
				span.User, idFrom(span.Start), idFrom(end))
		}
		return c.query(`SELECT sum FROM nodes WHERE user = ? AND level = ? AND start >= ? AND start < ?`, add,
			span.User, levelNumber(span.Level)-1, span.Start.UnixMilli(), end.UnixMilli())
	})
	return sum, err
}

// putNode stores a sum unless a newer one is stored. It returns the stored sum.
func (s *Store) putNode(ctx context.Context, span models.Span, sum models.Summary) (models.Summary, error) {
	raw, level, start := codec.EncodeSummary(&sum), levelNumber(span.Level), span.Start.UnixMilli()
	var newer []byte
	err := s.write(ctx, len(raw), func(c *conn) error {
		newer = nil
		n, err := c.exec(`INSERT INTO nodes (user, level, start, version, accepted, sum) VALUES (?, ?, ?, ?, ?, ?)
			ON CONFLICT (user, level, start) DO UPDATE
			SET version = excluded.version, accepted = excluded.accepted, sum = excluded.sum
			WHERE (excluded.version, excluded.accepted) >= (nodes.version, nodes.accepted)`,
			span.User, level, start, sum.FullVersion(), sum.Accepted, raw)
		if err != nil || n > 0 {
			return err
		}
		return c.query(`SELECT sum FROM nodes WHERE user = ? AND level = ? AND start = ?`, func(row []driver.Value) error {
			newer = blob(row[0])
			return nil
		}, span.User, level, start)
	})
	if err != nil {
		return models.Summary{}, err
	}
	if newer == nil {
		return sum, nil
	}
	sum, err = codec.DecodeSummary(newer)
	return sum, stored(err)
}

// levelNumber returns the stored number of a level, or -1.
func levelNumber(l models.Level) int { return slices.Index(models.Levels[:], l) }

// Nodes implements models.Store.
func (s *Store) Nodes(
	ctx context.Context, user string, level models.Level, from, to time.Time,
) (nodes []models.Node, err error) {
	err = s.read(ctx, func(c *conn) error {
		return c.query(`SELECT start, sum FROM nodes
			WHERE user = ? AND level = ? AND start >= ? AND start < ? ORDER BY start`,
			func(row []driver.Value) error {
				sum, err := codec.DecodeSummary(blob(row[1]))
				nodes = append(nodes, models.Node{Span: models.Span{User: user, Level: level, Start: timeOf(row[0])}, Summary: sum})
				return stored(err)
			}, user, levelNumber(level), ceilMilli(from), ceilMilli(to))
	})
	if err != nil {
		return nil, fmt.Errorf("%s sums of %s: %w", level, user, err)
	}
	return nodes, nil
}
