package cassandra

import (
	"bytes"
	"context"
	"fmt"

	"github.com/gocql/gocql"
	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
)

// The deciding writes of the ledger. All entries of a chunk share last, which prevents
// gaps. holder and value are compared so that a refusal returns them.
const (
	appendEntry = `UPDATE ledger SET last = ?, holder = ?, value = ? WHERE chunk_id = ? AND number = ?
		IF last = ? AND holder = null AND value = null`
	appendFirst = `UPDATE ledger SET last = ?, holder = ?, value = ? WHERE chunk_id = ? AND number = ?
		IF last = null AND holder = null AND value = null`
)

// Append implements models.Store. After a time-out it asks again with the same token.
// The entry that is there then tells who won.
func (s *Store) Append(ctx context.Context, chunk models.ID, e models.Entry) error {
	return s.call(ctx, func() error {
		if e.Number < 1 {
			return models.ErrInvalid
		}
		cql, args := appendFirst, []any{e.Number, e.Token[:], codec.EncodeEntry(&e), chunk[:], e.Number}
		if e.Number > 1 {
			cql, args = appendEntry, append(args, e.Number-1)
		}
		applied, row, err := s.cas(ctx, settling, cql, args...)
		if err != nil || applied {
			return err
		}
		holder, _ := row["holder"].([]byte)
		value, _ := row["value"].([]byte)
		switch {
		case len(holder) == 0:
			return fmt.Errorf("%w: there is no entry %d", models.ErrInvalid, e.Number-1)
		case bytes.Equal(holder, e.Token[:]):
			return nil
		}
		winner, err := codec.DecodeEntry(value)
		if err != nil {
			return damaged(err)
		}
		return &models.ConflictError{Winner: winner}
	}, "append entry %d to %s", e.Number, chunk)
}

// The limits of one request. Rows of one partition are one mutation. For several
// partitions the server warns above 10 partitions or 5 KiB and refuses 50 KiB.
const (
	groupRows  = 100
	groupBytes = 1 << 20
	fewRows    = 10
	fewBytes   = 4 << 10
)

// row is the plain write of a row and the size of its values in bytes.
type row struct {
	cql  string
	args []any
	size int
}

// put writes rows. Rows of one partition share a request.
func put[P comparable](ctx context.Context, s *Store, partitions []P, rows []row) error {
	return s.send(ctx, grouped(partitions, rows, groupRows, groupBytes))
}

// few writes small rows of any partitions with few requests, because a request costs a
// node more than such a row.
func (s *Store) few(ctx context.Context, rows []row) error {
	return s.send(ctx, grouped(make([]struct{}, len(rows)), rows, fewRows, fewBytes))
}

// grouped groups rows with the same key, up to a number of rows and bytes per group.
func grouped[K comparable](keys []K, rows []row, most, bytes int) [][]row {
	var groups [][]row
	open := map[K]int{}
	sizes := []int{}
	for i, r := range rows {
		g, ok := open[keys[i]]
		if !ok || len(groups[g]) == most || sizes[g]+r.size > bytes {
			g = len(groups)
			groups, sizes = append(groups, nil), append(sizes, 0)
			open[keys[i]] = g
		}
		groups[g] = append(groups[g], r)
		sizes[g] += r.size
	}
	return groups
}

// send writes each group with one request, some at a time. The rows of a group are
// written independently, unless all are of one partition.
func (s *Store) send(ctx context.Context, groups [][]row) error {
	return each(ctx, len(groups), func(ctx context.Context, i int) error {
		g := groups[i]
		if len(g) == 1 {
			return s.exec(ctx, plain, g[0].cql, g[0].args...)
		}
		return s.try(ctx, plain, func() error {
			b := s.session.NewBatch(gocql.UnloggedBatch).WithContext(ctx)
			for _, r := range g {
				b.Query(r.cql, r.args...)
			}
			return s.session.ExecuteBatch(b)
		})
	})
}

// PutFacts implements models.Store. Timestamps fall with the servers' time, so the first
// write of a fact stays, even against another of the same call.
func (s *Store) PutFacts(ctx context.Context, facts ...models.ChunkFact) error {
	if len(facts) == 0 {
		return nil
	}
	return s.call(ctx, func() error {
		now, err := s.clock.time(ctx)
		if err != nil {
			return err
		}
		rows, chunks := make([]row, len(facts)), make([]models.ID, len(facts))
		for i := range facts {
			raw := codec.EncodeFact(&facts[i].Fact)
			chunks[i] = facts[i].Chunk
			rows[i] = row{`INSERT INTO facts (chunk_id, key, value) VALUES (?, ?, ?) USING TIMESTAMP ?`,
				[]any{chunks[i][:], facts[i].Fact.Key, raw, s.fall(now)}, len(raw)}
		}
		return put(ctx, s, chunks, rows)
	}, "put %d facts of %s", len(facts), facts[0].Chunk)
}

func (s *Store) ledger(ctx context.Context, chunk models.ID) ([]models.Entry, error) {
	return query(ctx, &s.runner, func(scan scanner) (e models.Entry, err error) {
		var raw []byte
		if err := scan(&raw); err != nil {
			return e, err
		}
		e, err = codec.DecodeEntry(raw)
		return e, damaged(err)
	}, `SELECT value FROM ledger WHERE chunk_id = ?`, chunk[:])
}

func (s *Store) facts(ctx context.Context, chunk models.ID) ([]models.Fact, error) {
	return s.factsOf(ctx, `SELECT key, value FROM facts WHERE chunk_id = ?`, chunk[:])
}

// factsOf returns the facts that a query selects.
func (s *Store) factsOf(ctx context.Context, cql string, args ...any) ([]models.Fact, error) {
	return query(ctx, &s.runner, func(scan scanner) (f models.Fact, err error) {
		var (
			key string
			raw []byte
		)
		if err := scan(&key, &raw); err != nil {
			return f, err
		}
		f, err = codec.DecodeFact(key, raw)
		return f, damaged(err)
	}, cql, args...)
}

// Record implements models.Store. It reads ledger and facts concurrently, so they may be
// of slightly different moments. Each has all that was written before the call.
func (s *Store) Record(ctx context.Context, chunk models.ID) ([]models.Entry, []models.Fact, error) {
	return s.record(ctx, chunk, func(ctx context.Context) ([]models.Fact, error) { return s.facts(ctx, chunk) })
}

// Calls implements models.Store.
func (s *Store) Calls(ctx context.Context, chunk models.ID) ([]models.Entry, []models.Outcome, error) {
	from, to := models.OutcomeKeys()
	entries, facts, err := s.record(ctx, chunk, func(ctx context.Context) ([]models.Fact, error) {
		return s.factsOf(
			ctx, `SELECT key, value FROM facts WHERE chunk_id = ? AND key >= ? AND key < ?`, chunk[:], from, to,
		)
	})
	return entries, models.OutcomesOf(facts), err
}

// record reads the ledger of a chunk and some of its facts concurrently.
func (s *Store) record(
	ctx context.Context,
	chunk models.ID,
	facts func(context.Context) ([]models.Fact, error),
) (es []models.Entry, fs []models.Fact, err error) {
	err = s.call(ctx, func() error {
		g, ctx := errgroup.WithContext(ctx)
		g.Go(func() (err error) {
			fs, err = facts(ctx)
			return err
		})
		es, err = s.ledger(ctx, chunk)
		if other := g.Wait(); err == nil {
			err = other
		}
		return err
	}, "record of %s", chunk)
	if err != nil {
		return nil, nil, err
	}
	return es, fs, nil
}

// Ledger implements models.Store.
func (s *Store) Ledger(ctx context.Context, chunk models.ID) (es []models.Entry, err error) {
	err = s.call(ctx, func() (err error) {
		es, err = s.ledger(ctx, chunk)
		return err
	}, "ledger of %s", chunk)
	return es, err
}
