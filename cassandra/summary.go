package cassandra

import (
	"context"
	"encoding/binary"
	"errors"
	"iter"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
)

// versionStamp returns the timestamp that a sum is written with: its version, one
// higher because 0 is none. Of two sums with the same version the greater value
// stays. A stored sum begins with the number of logs that it counts, so the one
// that counted more stays, whichever came first.
func versionStamp(s *models.Summary) int64 { return s.FullVersion() + 1 }

// encodeSum returns the stored form of a sum, which begins with Accepted.
func encodeSum(s *models.Summary) []byte {
	raw := binary.BigEndian.AppendUint64(nil, uint64(max(s.Accepted, 0)))
	return append(raw, codec.EncodeSummary(s)...)
}

func decodeSum(raw []byte) (models.Summary, error) {
	if len(raw) < 8 {
		return models.Summary{}, damaged(errors.New("it is too short for a sum"))
	}
	s, err := codec.DecodeSummary(raw[8:])
	return s, damaged(err)
}

// PutSummaries implements models.Store.
func (s *Store) PutSummaries(ctx context.Context, ss ...models.ChunkSummary) error {
	if len(ss) == 0 {
		return nil
	}
	type partition struct {
		owner  string
		second int64
	}
	return s.call(ctx, func() error {
		rows, parts := make([]row, len(ss)), make([]partition, len(ss))
		for i := range ss {
			c := &ss[i]
			raw := encodeSum(&c.Summary)
			parts[i] = partition{c.User, c.Chunk.Time().Unix()}
			rows[i] = row{`INSERT INTO summaries (owner, second, chunk_id, value) VALUES (?, ?, ?, ?) USING TIMESTAMP ?`,
				[]any{c.User, parts[i].second, c.Chunk[:], raw, versionStamp(&c.Summary)}, len(raw)}
		}
		return put(ctx, s, parts, rows)
	}, "put %d summaries of %s", len(ss), ss[0].Chunk)
}

// Summaries implements models.Store. The IDs of all chunks carry the time of their
// batch, so they are in one partition.
func (s *Store) Summaries(
	ctx context.Context, user string, batch models.ID, from int,
) iter.Seq2[models.ChunkSummary, error] {
	if from >= models.MaxChunks {
		return empty[models.ChunkSummary](ctx, s, "summaries of %s", batch)
	}
	second, first, last := batch.Time().Unix(), batch.Chunk(max(from, 0)), batch.Chunk(models.MaxChunks-1)
	find := func(ctx context.Context, _ int64, state []byte) ([]models.ChunkSummary, []byte, error) {
		return page(ctx, pageRequest{&s.runner, pageRows, state}, readSummary(user),
			`SELECT chunk_id, value FROM summaries WHERE owner = ? AND second = ? AND chunk_id >= ? AND chunk_id <= ?`, user,
			second, first[:], last[:])
	}
	return cursor(ctx, s, partitions{}, find, "summaries of "+batch.String())
}

// SecondSummaries implements models.Store.
func (s *Store) SecondSummaries(
	ctx context.Context, user string, t time.Time,
) iter.Seq2[models.ChunkSummary, error] {
	find := func(ctx context.Context, second int64, state []byte) ([]models.ChunkSummary, []byte, error) {
		return page(ctx, pageRequest{&s.runner, pageRows, state}, readSummary(user),
			`SELECT chunk_id, value FROM summaries WHERE owner = ? AND second = ?`, user, second)
	}
	return cursor(ctx, s, partitions{t.Unix(), t.Unix()}, find, "summaries of "+user)
}

// readSummary reads the rows of the summaries of a user.
func readSummary(user string) func(scanner) (models.ChunkSummary, error) {
	return func(scan scanner) (c models.ChunkSummary, err error) {
		var id, raw []byte
		if err := scan(&id, &raw); err != nil {
			return c, err
		}
		c.User = user
		if c.Chunk, err = idOf(id); err == nil {
			c.Summary, err = decodeSum(raw)
		}
		return c, err
	}
}

// spanBucket returns the time that a partition of a level covers, in milliseconds. It is
// recorded with the keyspace. A partition holds whole spans of the level above.
func spanBucket(l models.Level) int64 {
	const day = 24 * time.Hour
	switch l {
	case models.Second:
		return time.Hour.Milliseconds()
	case models.Minute:
		return day.Milliseconds()
	case models.Hour:
		return (32 * day).Milliseconds()
	case models.Day:
		return (512 * day).Milliseconds()
	}
	return 0
}

// nodes returns the sums of a level that begin in [from, to), in milliseconds.
func (s *Store) nodes(ctx context.Context, user string, level models.Level, from, to int64) ([]models.Node, error) {
	from = max(from, 0)
	length := spanBucket(level)
	if length == 0 || from >= to {
		return nil, nil
	}
	first := from / length
	parts := make([][]models.Node, (to-1)/length-first+1)
	err := each(ctx, len(parts), func(ctx context.Context, i int) (err error) {
		parts[i], err = query(ctx, &s.runner, func(scan scanner) (models.Node, error) {
			var (
				start int64
				raw   []byte
			)
			if err := scan(&start, &raw); err != nil {
				return models.Node{}, err
			}
			sum, err := decodeSum(raw)
			return models.Node{Span: models.Span{User: user, Level: level, Start: time.UnixMilli(start).UTC()}, Summary: sum},
				err
		}, `SELECT start, value FROM sums WHERE owner = ? AND level = ? AND bucket = ? AND start >= ? AND start < ?`,
			user, string(level), first+int64(i), from, to)
		return err
	})
	var all []models.Node
	for _, p := range parts {
		all = append(all, p...)
	}
	return all, err
}

// latest bounds the spans that are read: no ID carries a later time.
var latest = models.ID{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}.Time().UnixMilli()

// Nodes implements models.Store.
func (s *Store) Nodes(
	ctx context.Context, user string, level models.Level, from, to time.Time,
) (nodes []models.Node, err error) {
	err = s.call(ctx, func() (err error) {
		nodes, err = s.nodes(ctx, user, level, ceilMilli(from), min(ceilMilli(to), latest))
		return err
	}, "%s sums of %s", level, user)
	return nodes, err
}

// RollUp implements models.Store.
func (s *Store) RollUp(ctx context.Context, span models.Span) (sum models.Summary, err error) {
	err = s.call(ctx, func() error {
		if span.Level.Length() == 0 {
			return models.ErrInvalid
		}
		span = models.SpanOf(span.User, span.Level, span.Start)
		counted, children, err := s.count(ctx, span)
		if err != nil {
			return err
		}
		start := span.Start.UnixMilli()
		if children > 0 {
			err := s.exec(ctx, plain, `INSERT INTO sums (owner, level, bucket, start, value)
				VALUES (?, ?, ?, ?, ?) USING TIMESTAMP ?`,
				span.User, string(span.Level), start/spanBucket(span.Level), start, encodeSum(&counted), versionStamp(&counted))
			if err != nil {
				return err
			}
		}
		stored, err := s.nodes(ctx, span.User, span.Level, start, start+1)
		if len(stored) > 0 {
			sum = stored[0].Summary
		}
		return err
	}, "roll up %s %s of %s", span.Level, span.Start.Format(time.RFC3339), span.User)
	if err != nil {
		return models.Summary{}, err
	}
	return sum, nil
}

// count adds up the children of a span and returns their number, too.
func (s *Store) count(ctx context.Context, span models.Span) (sum models.Summary, children int, err error) {
	if child := span.Level.Child(); child != "" {
		start := span.Start.UnixMilli()
		nodes, err := s.nodes(ctx, span.User, child, start, start+span.Level.Length().Milliseconds())
		for i := range nodes {
			sum.Add(&nodes[i].Summary)
		}
		return sum, len(nodes), err
	}
	parts, err := query(ctx, &s.runner, func(scan scanner) (models.Summary, error) {
		var raw []byte
		if err := scan(&raw); err != nil {
			return models.Summary{}, err
		}
		return decodeSum(raw)
	}, `SELECT value FROM summaries WHERE owner = ? AND second = ?`, span.User, span.Start.Unix())
	for i := range parts {
		sum.Add(&parts[i])
	}
	return sum, len(parts), err
}
