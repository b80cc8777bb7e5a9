package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
)

// Append implements models.Store.
func (s *Store) Append(ctx context.Context, chunk models.ID, e models.Entry) error {
	if e.Number < 1 {
		return fmt.Errorf("append entry %d to %s: %w", e.Number, chunk, models.ErrInvalid)
	}
	raw := codec.EncodeEntry(&e)
	err := s.decide(ctx, len(raw), func(c *conn) error {
		n, err := c.exec(`INSERT INTO ledger (chunk, number, entry) SELECT ?, ?, ?
			WHERE ? = 1 OR EXISTS (SELECT 1 FROM ledger WHERE chunk = ? AND number = ?) ON CONFLICT DO NOTHING`,
			chunk, e.Number, raw, e.Number, chunk, e.Number-1)
		if err != nil || n == 1 {
			return err
		}
		there, err := ledgerOf(c, `SELECT entry FROM ledger WHERE chunk = ? AND number = ?`, chunk, e.Number)
		switch {
		case err != nil:
			return err
		case len(there) == 0:
			return fmt.Errorf("%w: there is no entry %d", models.ErrInvalid, e.Number-1)
		case there[0].Token == e.Token:
			return nil
		}
		return &models.ConflictError{Winner: there[0]}
	})
	if err != nil {
		return fmt.Errorf("append entry %d to %s: %w", e.Number, chunk, err)
	}
	return nil
}

// PutFacts implements models.Store.
func (s *Store) PutFacts(ctx context.Context, facts ...models.ChunkFact) error {
	if len(facts) == 0 {
		return nil
	}
	size, rows := 0, make([][3]any, len(facts))
	for i := range facts {
		raw := codec.EncodeFact(&facts[i].Fact)
		size += len(raw)
		rows[i] = [3]any{facts[i].Chunk, facts[i].Fact.Key, raw}
	}
	err := s.write(ctx, size, func(c *conn) error {
		for i := range rows {
			if _, err := c.exec(`INSERT INTO facts (chunk, key, fact) VALUES (?, ?, ?) ON CONFLICT DO NOTHING`,
				rows[i][:]...); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("put %d facts of %s: %w", len(facts), facts[0].Chunk, err)
	}
	return nil
}

// Record implements models.Store. It reads ledger and facts with one statement, so
// they are of the same moment.
func (s *Store) Record(ctx context.Context, chunk models.ID) ([]models.Entry, []models.Fact, error) {
	return s.record(ctx, chunk, `SELECT key, fact FROM facts WHERE chunk = ?`, chunk)
}

// Calls implements models.Store.
func (s *Store) Calls(ctx context.Context, chunk models.ID) ([]models.Entry, []models.Outcome, error) {
	from, to := models.OutcomeKeys()
	entries, facts, err := s.record(
		ctx, chunk, `SELECT key, fact FROM facts WHERE chunk = ? AND key >= ? AND key < ?`, chunk, from, to,
	)
	return entries, models.OutcomesOf(facts), err
}

// record reads the ledger of a chunk and the facts that a query selects.
func (s *Store) record(
	ctx context.Context, chunk models.ID, facts string, args ...any,
) (es []models.Entry, fs []models.Fact, err error) {
	type line struct {
		key string
		raw []byte
	}
	var lines []line
	err = s.read(ctx, func(c *conn) error {
		return c.query(`SELECT number, entry FROM ledger WHERE chunk = ? UNION ALL `+facts,
			func(row []driver.Value) error {
				key, _ := row[0].(string) // not a string: an entry's number
				lines = append(lines, line{key, blob(row[1])})
				return nil
			}, append([]any{chunk}, args...)...)
	})
	for i := 0; i < len(lines) && err == nil; i++ { // decoded after the connection was returned
		if lines[i].key == "" {
			var e models.Entry
			e, err = codec.DecodeEntry(lines[i].raw)
			es = append(es, e)
		} else {
			var f models.Fact
			f, err = codec.DecodeFact(lines[i].key, lines[i].raw)
			fs = append(fs, f)
		}
		err = stored(err)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("record of %s: %w", chunk, err)
	}
	ascending(es)
	return es, fs, nil
}

// Ledger implements models.Store.
func (s *Store) Ledger(ctx context.Context, chunk models.ID) (es []models.Entry, err error) {
	err = s.read(ctx, func(c *conn) (err error) {
		es, err = ledgerOf(c, `SELECT entry FROM ledger WHERE chunk = ? ORDER BY number`, chunk)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("ledger of %s: %w", chunk, err)
	}
	return es, nil
}

// ledgerOf reads the entries that a query selects.
func ledgerOf(c *conn, query string, args ...any) (es []models.Entry, err error) {
	err = c.query(query, func(row []driver.Value) error {
		e, err := codec.DecodeEntry(blob(row[0]))
		es = append(es, e)
		return stored(err)
	}, args...)
	return es, err
}
