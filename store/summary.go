package store

import (
	"context"
	"encoding/binary"
	"errors"
	"iter"
	"math"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
	"github.com/safedelivr/safedelivr/store/shapes"
)

// The version of a row is that of its sum, plus 1 because 0 is none. Of two sums with the same version the greater
// value stays. A value begins with the number of logs that it counts, so the one that counted more stays.
var (
	summaries = shapes.Table{Name: "summaries", Bucket: time.Second, Short: true} // user, ID of the chunk
	sums      = [len(models.Levels)]shapes.Table{                                 // by level: user, start of the span
		{Name: "sums_second", Bucket: time.Hour}, {Name: "sums_minute", Bucket: 24 * time.Hour},
		{Name: "sums_hour", Bucket: 32 * 24 * time.Hour}, {Name: "sums_day", Bucket: 512 * 24 * time.Hour},
	}
)

func sumRow(t *shapes.Table, part, key []byte, sum *models.Summary) shapes.Put {
	raw := binary.BigEndian.AppendUint64(nil, uint64(max(sum.Accepted, 0)))
	return shapes.Put{Table: t, Row: shapes.Row{Part: part, Key: key, Version: sum.FullVersion() + 1,
		Value: append(raw, codec.EncodeSummary(sum)...)}}
}

func decodeSum(row *shapes.Row) (models.Summary, error) {
	if len(row.Value) < 8 {
		return models.Summary{}, stored(errors.New("it is too short for a sum"))
	}
	sum, err := codec.DecodeSummary(row.Value[8:])
	return sum, stored(err)
}

// PutSummaries implements models.Store.
func (s *Store) PutSummaries(ctx context.Context, ss ...models.ChunkSummary) error {
	if len(ss) == 0 {
		return nil
	}
	return s.db.call(ctx, func() error {
		return s.db.engine.Put(ctx, mapped(ss, func(c *models.ChunkSummary) shapes.Put {
			return sumRow(&summaries, []byte(c.User), idKey(c.Chunk), &c.Summary)
		})...)
	}, "put %d summaries of %s", len(ss), ss[0].Chunk)
}

// Summaries implements models.Store.
func (s *Store) Summaries(
	ctx context.Context, user string, batch models.ID, from int,
) iter.Seq2[models.ChunkSummary, error] {
	if from >= models.MaxChunks {
		return func(func(models.ChunkSummary, error) bool) {}
	}
	first, last := batch.Chunk(max(from, 0)), batch.Chunk(models.MaxChunks-1)
	return s.summariesOf(ctx, user, shapes.Range{From: first[:], To: next(last[:])}, "summaries of "+batch.String())
}

// SecondSummaries implements models.Store.
func (s *Store) SecondSummaries(ctx context.Context, user string, t time.Time) iter.Seq2[models.ChunkSummary, error] {
	second := t.UTC().Truncate(time.Second)
	r := shapes.Range{From: moment(nil, second), To: moment(nil, second.Add(time.Second))}
	return s.summariesOf(ctx, user, r, "summaries of "+user)
}

func (s *Store) summariesOf(
	ctx context.Context, user string, r shapes.Range, what string,
) iter.Seq2[models.ChunkSummary, error] {
	rows := s.db.scanAll(ctx, &summaries, []byte(user), r, what)
	return decoded(rows, func(row *shapes.Row) (c models.ChunkSummary, err error) {
		c.User = user
		if c.Chunk, err = idOf(row.Key); err == nil {
			c.Summary, err = decodeSum(row)
		}
		return c, err
	})
}

// sumsOf returns the table of the sums of a level. Errors: models.ErrInvalid (there is no such level).
func sumsOf(l models.Level) (*shapes.Table, error) {
	n := slices.Index(models.Levels[:], l)
	if n < 0 {
		return nil, models.ErrInvalid
	}
	return &sums[n], nil
}

// RollUp implements models.Store. Whatever changes after the children were read has a higher version, so a sum that is
// stored late does no harm.
func (s *Store) RollUp(ctx context.Context, span models.Span) error {
	return s.db.call(ctx, func() error {
		table, err := sumsOf(span.Level)
		if err != nil {
			return err
		}
		span = models.SpanOf(span.User, span.Level, span.Start)
		counted, children, err := s.count(ctx, span)
		if err != nil || children == 0 {
			return err
		}
		return s.db.engine.Put(ctx, sumRow(table, []byte(span.User), moment(nil, span.Start), &counted))
	}, "roll up %s %s of %s", span.Level, span.Start.Format(time.RFC3339), span.User)
}

// count adds up the children of a span and returns their number, too.
func (s *Store) count(ctx context.Context, span models.Span) (sum models.Summary, children int, err error) {
	table, part := &summaries, []byte(span.User)
	if child := span.Level.Child(); child != "" {
		if table, err = sumsOf(child); err != nil {
			return sum, 0, err
		}
	}
	rows, err := s.db.engine.Scan(ctx, table, part, shapes.Range{From: moment(nil, span.Start),
		To: moment(nil, span.Start.Add(span.Level.Length())), Limit: math.MaxInt32})
	known := map[string]models.Summary{} // by their stored form: those of single mails are mostly the same
	for i := 0; i < len(rows) && err == nil; i++ {
		one, again := known[string(rows[i].Value)]
		if !again {
			one, err = decodeSum(&rows[i])
		}
		if sum.Add(&one); !again && len(known) < maxKnown {
			known[string(rows[i].Value)] = one
		}
	}
	return sum, len(rows), err
}

// maxKnown is how many different sums are kept while some are added up.
const maxKnown = 64

// Nodes implements models.Store.
func (s *Store) Nodes(
	ctx context.Context, user string, level models.Level, from, to time.Time,
) ([]models.Node, error) {
	table, bad := sumsOf(level)
	if bad != nil {
		return nil, nil //nolint:nilerr // there is no such level
	}
	r := shapes.Range{From: moment(nil, ceil(from)), To: moment(nil, ceil(to)), Limit: math.MaxInt32}
	return get(ctx, s.db, func() (nodes []models.Node, err error) {
		rows, err := s.db.engine.Scan(ctx, table, []byte(user), r)
		for i := 0; i < len(rows) && err == nil; i++ {
			node := models.Node{Span: models.Span{User: user, Level: level}}
			if node.Span.Start, _, err = cutMoment(rows[i].Key); err == nil {
				node.Summary, err = decodeSum(&rows[i])
			}
			nodes = append(nodes, node)
		}
		return nodes, err
	}, "%s sums of %s", level, user)
}

// DropSums implements models.Store.
func (s *Store) DropSums(ctx context.Context, user string, t time.Time) error {
	day := models.DayOf(t)
	return s.db.call(ctx, func() error {
		for _, level := range []models.Level{models.Second, models.Minute, models.Hour} {
			table, err := sumsOf(level)
			if err == nil {
				err = s.db.engine.RemoveRange(ctx, table, []byte(user), moment(nil, day), moment(nil, day.AddDate(0, 0, 1)))
			}
			if err != nil {
				return err
			}
		}
		return nil
	}, "drop sums of %s", user)
}
