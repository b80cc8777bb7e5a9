package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// CreateUser implements models.Store.
func (s *Store) CreateUser(ctx context.Context, u models.User) error {
	if u.ID == "" || u.Name == "" {
		return fmt.Errorf("create user: %w: id and name are needed", models.ErrInvalid)
	}
	err := s.decide(ctx, 200, func(c *conn) error {
		n, err := c.exec(`INSERT INTO users (id, name, created) VALUES (?, ?, ?) ON CONFLICT DO NOTHING`, u.ID, u.Name,
			u.Created.UnixMilli())
		if err != nil || n == 1 {
			return err
		}
		return c.exists(models.ErrExists, `SELECT 1 FROM users WHERE id = ? AND name = ?`, u.ID, u.Name) // a repeat
	})
	if err != nil {
		return fmt.Errorf("create user %s: %w", u.Name, err)
	}
	return nil
}

// exists returns the error none if the query has no row.
func (c *conn) exists(none error, query string, args ...any) error {
	found := false
	err := c.query(query, func([]driver.Value) error {
		found = true
		return nil
	}, args...)
	if err == nil && !found {
		return none
	}
	return err
}

// UserByName implements models.Store.
func (s *Store) UserByName(ctx context.Context, name string) (models.User, error) {
	us, err := s.users(ctx, `SELECT id, name, created FROM users WHERE name = ?`, name)
	return single("user "+name, us, err)
}

// User implements models.Store.
func (s *Store) User(ctx context.Context, id string) (models.User, error) {
	us, err := s.users(ctx, `SELECT id, name, created FROM users WHERE id = ?`, id)
	return single("user "+id, us, err)
}

// Users implements models.Store.
func (s *Store) Users(ctx context.Context) ([]models.User, error) {
	us, err := s.users(ctx, `SELECT id, name, created FROM users ORDER BY name`)
	if err != nil {
		return nil, fmt.Errorf("users: %w", err)
	}
	return us, nil
}

func (s *Store) users(ctx context.Context, query string, args ...any) (us []models.User, err error) {
	err = s.read(ctx, func(c *conn) error {
		return c.query(query, func(row []driver.Value) error {
			us = append(us, models.User{ID: row[0].(string), Name: row[1].(string), Created: timeOf(row[2])})
			return nil
		}, args...)
	})
	return us, err
}

// single returns the only value of vs. Errors: models.ErrNotFound.
func single[T any](what string, vs []T, err error) (v T, _ error) {
	if err == nil && len(vs) == 0 {
		err = models.ErrNotFound
	}
	if err != nil {
		return v, fmt.Errorf("%s: %w", what, err)
	}
	return vs[0], nil
}

// CreateKey implements models.Store.
func (s *Store) CreateKey(ctx context.Context, k models.Key) error {
	var revoked any
	if !k.Revoked.IsZero() {
		revoked = k.Revoked.UnixMilli()
	}
	err := s.write(ctx, 300, func(c *conn) error {
		_, err := c.exec(`INSERT INTO keys (hash, user, id, name, created, revoked, options) VALUES (?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT DO NOTHING`,
			k.Hash, k.User, k.ID, k.Name, k.Created.UnixMilli(), revoked, k.KeyOptions.Encode())
		return err
	})
	if err != nil {
		return fmt.Errorf("create key %s: %w", k.ID, err)
	}
	return nil
}

// KeyByHash implements models.Store.
func (s *Store) KeyByHash(ctx context.Context, hash string) (models.Key, error) {
	ks, err := s.keys(ctx, `SELECT hash, user, id, name, created, revoked, options FROM keys WHERE hash = ?`, hash)
	return single("key by hash", ks, err)
}

// Keys implements models.Store.
func (s *Store) Keys(ctx context.Context, user string) ([]models.Key, error) {
	ks, err := s.keys(ctx, `SELECT hash, user, id, name, created, revoked, options FROM keys
		WHERE user = ? ORDER BY created, id`, user)
	if err != nil {
		return nil, fmt.Errorf("keys of %s: %w", user, err)
	}
	return ks, nil
}

func (s *Store) keys(ctx context.Context, query string, args ...any) (ks []models.Key, err error) {
	err = s.read(ctx, func(c *conn) error {
		return c.query(query, func(row []driver.Value) error {
			options, err := models.DecodeKeyOptions(row[6].(string))
			ks = append(ks, models.Key{
				Hash:       row[0].(string),
				User:       row[1].(string),
				ID:         row[2].(string),
				Name:       row[3].(string),
				Created:    timeOf(row[4]),
				Revoked:    timeOf(row[5]),
				KeyOptions: options,
			})
			return stored(err)
		}, args...)
	})
	return ks, err
}

// RevokeKey implements models.Store.
func (s *Store) RevokeKey(ctx context.Context, user, key string, at time.Time) error {
	err := s.write(ctx, 100, func(c *conn) error {
		n, err := c.exec(`UPDATE keys SET revoked = ? WHERE user = ? AND id = ? AND revoked IS NULL`, at.UnixMilli(), user,
			key)
		if err != nil || n > 0 {
			return err
		}
		return c.exists(models.ErrNotFound, `SELECT 1 FROM keys WHERE user = ? AND id = ?`, user, key)
	})
	if err != nil {
		return fmt.Errorf("revoke key %s: %w", key, err)
	}
	return nil
}

// RemoveKey implements models.Store.
func (s *Store) RemoveKey(ctx context.Context, user, key string) error {
	err := s.write(ctx, 100, func(c *conn) error {
		_, err := c.exec(`DELETE FROM keys WHERE user = ? AND id = ?`, user, key)
		return err
	})
	if err != nil {
		return fmt.Errorf("remove key %s: %w", key, err)
	}
	return nil
}
