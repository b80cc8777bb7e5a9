package sqlite

import (
	"bytes"
	"context"
	"database/sql/driver"
	"fmt"
	"iter"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
)

// AppendCommand implements models.Store.
func (s *Store) AppendCommand(ctx context.Context, line models.Command) error {
	if line.Number < 1 {
		return fmt.Errorf("append order %d: %w", line.Number, models.ErrInvalid)
	}
	raw := codec.EncodeCommand(&line)
	err := s.decide(ctx, len(raw), func(c *conn) error {
		n, err := c.exec(`INSERT INTO controls (number, line) SELECT ?, ?
			WHERE ? = 1 OR EXISTS (SELECT 1 FROM controls WHERE number = ?) ON CONFLICT DO NOTHING`,
			line.Number, raw, line.Number, line.Number-1)
		if err != nil || n == 1 {
			return err
		}
		there, err := controlsOf(c, `SELECT line FROM controls WHERE number = ?`, line.Number)
		switch {
		case err != nil:
			return err
		case len(there) == 0:
			return fmt.Errorf("%w: there is no order %d", models.ErrInvalid, line.Number-1)
		case there[0].Token == line.Token:
			return nil
		}
		return &models.CommandConflictError{Winner: there[0]}
	})
	if err != nil {
		return fmt.Errorf("append order %d: %w", line.Number, err)
	}
	return nil
}

// Controls implements models.Store.
func (s *Store) Commands(ctx context.Context, after, limit int) (out []models.Command, err error) {
	err = s.read(ctx, func(c *conn) (err error) {
		out, err = controlsOf(c, `SELECT line FROM controls WHERE number > ? ORDER BY number LIMIT ?`, after, max(limit, 0))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("orders after %d: %w", after, err)
	}
	return out, nil
}

func controlsOf(c *conn, query string, args ...any) (out []models.Command, err error) {
	err = c.query(query, func(row []driver.Value) error {
		line, err := codec.DecodeCommand(blob(row[0]))
		out = append(out, line)
		return stored(err)
	}, args...)
	return out, err
}

// Claim implements models.Store.
func (s *Store) Claim(ctx context.Context, key string, claim models.Claim, ttl time.Duration) (models.Claim, error) {
	now := s.now()
	var there models.Claim
	err := s.decide(ctx, 200, func(c *conn) error {
		_, err := c.exec(`INSERT INTO claims (key, id, hash, at, until) VALUES (?, ?, ?, ?, ?)
			ON CONFLICT (key) DO UPDATE SET id = excluded.id, hash = excluded.hash, at = excluded.at, answer = NULL, until = excluded.until
			WHERE claims.until <= ?`, key, claim.ID, claim.Hash, claim.At.UnixMilli(), now.Add(ttl).UnixMilli(), now.UnixMilli())
		if err != nil {
			return err
		}
		there, err = claimed(c, key, 0)
		return err
	})
	if err != nil {
		return models.Claim{}, fmt.Errorf("claim: %w", err)
	}
	return there, nil
}

// Claimed implements models.Store.
func (s *Store) Claimed(ctx context.Context, key string) (there models.Claim, err error) {
	now := s.now().UnixMilli()
	err = s.read(ctx, func(c *conn) (err error) {
		there, err = claimed(c, key, now)
		return err
	})
	if err == nil && there.ID.IsZero() {
		err = models.ErrNotFound
	}
	if err != nil {
		return models.Claim{}, fmt.Errorf("claimed: %w", err)
	}
	return there, nil
}

// claimed reads the claim of a key that has not ended by a time; zero: there is none.
func claimed(c *conn, key string, by int64) (there models.Claim, err error) {
	err = c.query(`SELECT id, hash, at, answer FROM claims WHERE key = ? AND until > ?`, func(row []driver.Value) error {
		there = models.Claim{ID: idOf(row[0]), Hash: row[1].(string), At: timeOf(row[2])}
		if row[3] != nil {
			there.Answer = bytes.Clone(blob(row[3]))
		}
		return nil
	}, key, by)
	return there, err
}

// PutAnswer implements models.Store.
func (s *Store) PutAnswer(ctx context.Context, key string, id models.ID, answer []byte, ttl time.Duration) error {
	until := s.now().Add(ttl).UnixMilli()
	err := s.write(ctx, len(answer)+100, func(c *conn) error {
		_, err := c.exec(`UPDATE claims SET answer = ?, until = max(until, ?) WHERE key = ? AND id = ?`, answer, until, key, id)
		return err
	})
	if err != nil {
		return fmt.Errorf("answer to a claim: %w", err)
	}
	return nil
}

// Unclaim implements models.Store.
func (s *Store) Unclaim(ctx context.Context, key string, id models.ID) error {
	err := s.write(ctx, 100, func(c *conn) error {
		_, err := c.exec(`DELETE FROM claims WHERE key = ? AND id = ?`, key, id)
		return err
	})
	if err != nil {
		return fmt.Errorf("unclaim: %w", err)
	}
	return nil
}

func hourOf(t time.Time) int64 { return t.Unix() / 3600 }

// PutAddressIndex implements models.Store.
func (s *Store) PutAddressIndex(ctx context.Context, user string, p models.AddressIndex) error {
	err := s.write(ctx, len(p.Fingerprints)+100, func(c *conn) error {
		_, err := c.exec(`INSERT INTO prints (user, hour, chunk, marks) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING`,
			user, hourOf(p.Chunk.Time()), p.Chunk, p.Fingerprints)
		return err
	})
	if err != nil {
		return fmt.Errorf("put print of %s: %w", p.Chunk, err)
	}
	return nil
}

// Prints implements models.Store.
func (s *Store) AddressIndexes(ctx context.Context, user string, t time.Time) iter.Seq2[models.AddressIndex, error] {
	return pages(ctx, s, "prints of "+user, func(c *conn, last *models.AddressIndex) (page []models.AddressIndex, err error) {
		after := []byte{}
		if last != nil {
			after = last.Chunk[:]
		}
		err = c.query(`SELECT chunk, marks FROM prints WHERE user = ? AND hour = ? AND chunk > ? ORDER BY chunk LIMIT ?`,
			func(row []driver.Value) error {
				page = append(page, models.AddressIndex{Chunk: idOf(row[0]), Fingerprints: bytes.Clone(blob(row[1]))})
				return nil
			}, user, hourOf(t), after, pageRows)
		return page, err
	})
}

// AddressIndexHours implements models.Store.
func (s *Store) AddressIndexHours(ctx context.Context, user string, before time.Time, limit int) (out []time.Time, err error) {
	err = s.read(ctx, func(c *conn) error {
		return c.query(`SELECT DISTINCT hour FROM prints WHERE user = ? AND hour * 3600000 < ? ORDER BY hour DESC LIMIT ?`,
			func(row []driver.Value) error {
				out = append(out, time.Unix(row[0].(int64)*3600, 0).UTC())
				return nil
			}, user, before.UnixMilli(), max(limit, 0))
	})
	if err != nil {
		return nil, fmt.Errorf("hours of prints of %s: %w", user, err)
	}
	return out, nil
}

// DropAddressIndexes implements models.Store.
func (s *Store) DropAddressIndexes(ctx context.Context, user string, t time.Time) error {
	err := s.write(ctx, 1000, func(c *conn) error {
		_, err := c.exec(`DELETE FROM prints WHERE user = ? AND hour = ?`, user, hourOf(t))
		return err
	})
	if err != nil {
		return fmt.Errorf("drop prints of %s: %w", user, err)
	}
	return nil
}

// Redact implements models.Store.
func (s *Store) Redact(ctx context.Context, batch models.ID) error {
	b, err := s.Batch(ctx, batch)
	if err != nil {
		return fmt.Errorf("redact: %w", err)
	}
	for n := 1; n < b.Chunks; n += sweepRows { // a batch of a million is a thousand rows
		from, to := batch.Chunk(n), batch.Chunk(min(n+sweepRows, b.Chunks)-1)
		if err := s.write(ctx, 100*sweepRows, func(c *conn) error {
			_, err := c.exec(`DELETE FROM chunks WHERE id BETWEEN ? AND ?`, from, to)
			return err
		}); err != nil {
			return fmt.Errorf("redact %s: %w", batch, err)
		}
	}
	b.Redact()
	head := codec.EncodeBatch(&b)
	if err := s.write(ctx, len(head), func(c *conn) error {
		_, err := c.exec(`UPDATE batches SET head = ?, first = NULL WHERE id = ? AND head IS NOT NULL`, head, batch)
		return err
	}); err != nil {
		return fmt.Errorf("redact %s: %w", batch, err)
	}
	return nil
}
