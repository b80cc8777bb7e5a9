package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// PutTransient implements models.Store.
func (s *Store) PutTransient(ctx context.Context, kind, name string, value []byte, ttl time.Duration) error {
	until := s.now().Add(ttl).UnixMilli()
	if value == nil {
		value = []byte{}
	}
	err := s.write(ctx, len(value)+100, func(c *conn) error {
		if ttl <= 0 {
			_, err := c.exec(`DELETE FROM transients WHERE kind = ? AND name = ?`, kind, name)
			return err
		}
		_, err := c.exec(`INSERT INTO transients (kind, name, value, until) VALUES (?, ?, ?, ?)
			ON CONFLICT (kind, name) DO UPDATE SET value = excluded.value, until = excluded.until`, kind, name, value, until)
		return err
	})
	if err != nil {
		return fmt.Errorf("%s value of %s: %w", kind, name, err)
	}
	return nil
}

// Transients implements models.Store.
func (s *Store) Transients(ctx context.Context, kind string) (map[string][]byte, error) {
	out := map[string][]byte{}
	err := s.read(ctx, func(c *conn) error {
		return c.query(`SELECT name, value FROM transients WHERE kind = ? AND until > ?`, func(row []driver.Value) error {
			value, _ := row[1].([]byte) // NULL for an empty blob
			out[row[0].(string)] = append([]byte{}, value...)
			return nil
		}, kind, s.now().UnixMilli())
	})
	if err != nil {
		return nil, fmt.Errorf("%s values: %w", kind, err)
	}
	return out, nil
}

// Transient implements models.Store.
func (s *Store) Transient(ctx context.Context, kind, name string) (out []byte, err error) {
	err = s.read(ctx, func(c *conn) error {
		return c.query(`SELECT value FROM transients WHERE kind = ? AND name = ? AND until > ?`,
			func(row []driver.Value) error {
				value, _ := row[0].([]byte) // NULL for an empty blob
				out = append([]byte{}, value...)
				return nil
			}, kind, name, s.now().UnixMilli())
	})
	if err == nil && out == nil {
		err = models.ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("%s value of %s: %w", kind, name, err)
	}
	return out, nil
}
