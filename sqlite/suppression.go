package sqlite

import (
	"bytes"
	"cmp"
	"context"
	"database/sql/driver"
	"fmt"
	"slices"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
)

// PutSuppressions implements models.Store.
func (s *Store) PutSuppressions(ctx context.Context, list string, es ...models.Suppression) error {
	for part := range slices.Chunk(es, sweepRows) {
		err := s.write(ctx, 300*len(part), func(c *conn) error {
			for i := range part {
				e := &part[i]
				_, err := c.exec(`INSERT INTO suppressions (list, hash, category, reason, at, entry) VALUES (?, ?, ?, ?, ?, ?)
					ON CONFLICT (list, hash, category, reason) DO UPDATE SET at = excluded.at, entry = excluded.entry
					WHERE excluded.at >= suppressions.at`,
					list, e.Hash[:], e.Category, string(e.Reason), e.At.UnixMilli(), codec.EncodeSuppression(e))
				if err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("put suppressions: %w", err)
		}
	}
	return nil
}

// SuppressionsOf implements models.Store.
func (s *Store) SuppressionsOf(
	ctx context.Context, list string, hashes ...models.AddressHash,
) (out []models.Suppression, err error) {
	hashes = slices.Clone(hashes)
	slices.SortFunc(hashes, func(a, b models.AddressHash) int { return bytes.Compare(a[:], b[:]) })
	err = s.read(ctx, func(c *conn) error {
		for _, h := range slices.Compact(hashes) {
			found, err := suppressions(c, `SELECT hash, entry FROM suppressions WHERE list = ? AND hash = ?
				ORDER BY category, reason`, list, h[:])
			if err != nil {
				return err
			}
			out = append(out, found...)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("suppressions of addresses: %w", err)
	}
	return out, nil
}

// Suppressions implements models.Store.
func (s *Store) Suppressions(
	ctx context.Context, list string, after models.SuppressionKey, limit int,
) (out []models.Suppression, err error) {
	err = s.read(ctx, func(c *conn) (err error) {
		out, err = suppressions(c, `SELECT hash, entry FROM suppressions
			WHERE list = ? AND (hash, category, reason) > (?, ?, ?) ORDER BY hash, category, reason LIMIT ?`,
			list, after.Hash[:], after.Category, string(after.Reason), max(limit, 0))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("suppressions: %w", err)
	}
	return out, nil
}

// suppressions reads the entries that a query selects.
func suppressions(c *conn, query string, args ...any) (out []models.Suppression, err error) {
	err = c.query(query, func(row []driver.Value) error {
		e, err := codec.DecodeSuppression(blob(row[0]), blob(row[1]))
		out = append(out, e)
		return stored(err)
	}, args...)
	return out, err
}

// AppendAddition implements models.Store.
func (s *Store) AppendAddition(ctx context.Context, list string, a models.SuppressionAddition) error {
	raw := codec.EncodeMarks(a.Marks)
	err := s.decide(ctx, len(raw)+100, func(c *conn) error {
		if a.Number < 1 {
			return models.ErrInvalid
		}
		n, err := c.exec(`INSERT INTO suppression_additions (list, number, token, marks) SELECT ?, ?, ?, ?
			WHERE ? = 1 OR EXISTS (SELECT 1 FROM suppression_additions WHERE list = ? AND number = ?)
			ON CONFLICT DO NOTHING`, list, a.Number, a.Token[:], raw, a.Number, list, a.Number-1)
		if err != nil || n == 1 {
			return err
		}
		found := models.ErrInvalid // the number leaves a gap
		err = c.query(`SELECT token FROM suppression_additions WHERE list = ? AND number = ?`,
			func(row []driver.Value) error {
				if found = models.ErrExists; bytes.Equal(blob(row[0]), a.Token[:]) {
					found = nil
				}
				return nil
			}, list, a.Number)
		return cmp.Or(err, found)
	})
	if err != nil {
		return fmt.Errorf("append addition %d of suppressions: %w", a.Number, err)
	}
	return nil
}

// Additions implements models.Store.
func (s *Store) Additions(
	ctx context.Context, list string, after, limit int,
) (out []models.SuppressionAddition, err error) {
	err = s.read(ctx, func(c *conn) error {
		return c.query(`SELECT number, token, marks FROM suppression_additions WHERE list = ? AND number > ?
			ORDER BY number LIMIT ?`, func(row []driver.Value) (err error) {
			a := models.SuppressionAddition{Number: int(row[0].(int64))}
			copy(a.Token[:], blob(row[1]))
			a.Marks, err = codec.DecodeMarks(blob(row[2]))
			out = append(out, a)
			return stored(err)
		}, list, after, max(limit, 0))
	})
	if err != nil {
		return nil, fmt.Errorf("additions of suppressions after %d: %w", after, err)
	}
	return out, nil
}
