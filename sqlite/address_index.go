package sqlite

import (
	"bytes"
	"context"
	"database/sql/driver"
	"fmt"
	"iter"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

func hourOf(t time.Time) int64 { return t.Unix() / 3600 }

// PutAddressIndex implements models.Store.
func (s *Store) PutAddressIndex(ctx context.Context, user string, p models.AddressIndex) error {
	err := s.write(ctx, len(p.Fingerprints)+100, func(c *conn) error {
		_, err := c.exec(`INSERT INTO address_index (user, hour, chunk, fingerprints) VALUES (?, ?, ?, ?)
			ON CONFLICT (user, hour, chunk) DO UPDATE SET fingerprints = excluded.fingerprints`,
			user, hourOf(p.Chunk.Time()), p.Chunk, p.Fingerprints)
		return err
	})
	if err != nil {
		return fmt.Errorf("put address index of %s: %w", p.Chunk, err)
	}
	return nil
}

// AddressIndexes implements models.Store.
func (s *Store) AddressIndexes(
	ctx context.Context, user string, t time.Time, before models.ID,
) iter.Seq2[models.AddressIndex, error] {
	return pages(ctx, s, "address index of "+user,
		func(c *conn, last *models.AddressIndex) (page []models.AddressIndex, err error) {
			end := before[:]
			switch {
			case last != nil:
				end = last.Chunk[:]
			case before.IsZero():
				end = bytes.Repeat([]byte{0xff}, len(before))
			}
			err = c.query(`SELECT chunk, fingerprints FROM address_index
			WHERE user = ? AND hour = ? AND chunk < ? ORDER BY chunk DESC LIMIT ?`,
				func(row []driver.Value) error {
					page = append(page, models.AddressIndex{Chunk: idOf(row[0]), Fingerprints: bytes.Clone(blob(row[1]))})
					return nil
				}, user, hourOf(t), end, pageRows)
			return page, err
		})
}

// AddressIndexHours implements models.Store.
func (s *Store) AddressIndexHours(
	ctx context.Context, user string, before time.Time, limit int,
) (out []time.Time, err error) {
	err = s.read(ctx, func(c *conn) error {
		return c.query(`SELECT DISTINCT hour FROM address_index
			WHERE user = ? AND hour * 3600000 < ? ORDER BY hour DESC LIMIT ?`,
			func(row []driver.Value) error {
				out = append(out, time.Unix(row[0].(int64)*3600, 0).UTC())
				return nil
			}, user, before.UnixMilli(), max(limit, 0))
	})
	if err != nil {
		return nil, fmt.Errorf("hours of the address index of %s: %w", user, err)
	}
	return out, nil
}

// DropAddressIndexes implements models.Store.
func (s *Store) DropAddressIndexes(ctx context.Context, user string, t time.Time) error {
	err := s.write(ctx, 1000, func(c *conn) error {
		_, err := c.exec(`DELETE FROM address_index WHERE user = ? AND hour = ?`, user, hourOf(t))
		return err
	})
	if err != nil {
		return fmt.Errorf("drop address index of %s: %w", user, err)
	}
	return nil
}
