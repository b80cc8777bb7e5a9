package sqlite

import (
	"bytes"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/safedelivr/safedelivr/models"
)

// PutDocument implements models.Store.
func (s *Store) PutDocument(ctx context.Context, owner, kind string, d models.Document) error {
	err := models.ErrInvalid
	if d.Valid() {
		err = s.decide(ctx, len(d.Value), func(c *conn) error { return putDocument(c, owner, kind, d) })
	}
	if err != nil {
		return fmt.Errorf("put %s %s: %w", kind, d.Key, err)
	}
	return nil
}

func putDocument(c *conn, owner, kind string, d models.Document) error {
	there, err := documentsOf(c, `SELECT key, version, value FROM documents WHERE owner = ? AND kind = ? AND key = ?`,
		owner, kind, d.Key)
	if err != nil {
		return err
	}
	var old models.Document
	if len(there) > 0 {
		old = there[0]
	}
	switch {
	case old.Version == d.Version && bytes.Equal(old.Value, d.Value):
		return nil // a repeat
	case old.Version != d.Version-1:
		return models.ErrConflict
	}
	_, err = c.exec(`INSERT OR REPLACE INTO documents (owner, kind, key, version, value) VALUES (?, ?, ?, ?, ?)`,
		owner, kind, d.Key, d.Version, append([]byte{}, d.Value...))
	return err
}

// Document implements models.Store.
func (s *Store) Document(ctx context.Context, owner, kind, key string) (models.Document, error) {
	ds, err := s.documents(ctx, `SELECT key, version, value FROM documents WHERE owner = ? AND kind = ? AND key = ?`,
		owner, kind, key)
	return single(kind+" "+key, ds, err)
}

// Documents implements models.Store.
func (s *Store) Documents(ctx context.Context, owner, kind, after string, limit int) ([]models.Document, error) {
	ds, err := s.documents(ctx, `SELECT key, version, value FROM documents WHERE owner = ? AND kind = ? AND key > ?
		ORDER BY key LIMIT ?`, owner, kind, after, max(limit, 0))
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", kind, err)
	}
	return ds, nil
}

// DeleteDocument implements models.Store.
func (s *Store) DeleteDocument(ctx context.Context, owner, kind, key string) error {
	err := s.decide(ctx, 100, func(c *conn) error {
		_, err := c.exec(`DELETE FROM documents WHERE owner = ? AND kind = ? AND key = ?`, owner, kind, key)
		return err
	})
	if err != nil {
		return fmt.Errorf("delete %s %s: %w", kind, key, err)
	}
	return nil
}

// PutDocuments implements models.Store.
func (s *Store) PutDocuments(ctx context.Context, owner, kind string, ds []models.Document) ([]int, error) {
	var conflicts []int
	size := 0
	for i := range ds {
		if !ds[i].Valid() {
			return nil, fmt.Errorf("put %s %s: %w", kind, ds[i].Key, models.ErrInvalid)
		}
		size += len(ds[i].Key) + len(ds[i].Value)
	}
	err := s.decide(ctx, size, func(c *conn) error {
		conflicts = nil
		for i := range ds {
			err := putDocument(c, owner, kind, ds[i])
			if errors.Is(err, models.ErrConflict) {
				conflicts = append(conflicts, i)
			} else if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("put %d %s: %w", len(ds), kind, err)
	}
	return conflicts, nil
}

// DocumentsOf implements models.Store.
func (s *Store) DocumentsOf(ctx context.Context, owner, kind string, keys []string) (ds []models.Document, err error) {
	err = s.read(ctx, func(c *conn) error {
		for _, key := range keys {
			some, err := documentsOf(c, `SELECT key, version, value FROM documents WHERE owner = ? AND kind = ? AND key = ?`,
				owner, kind, key)
			if err != nil {
				return err
			}
			ds = append(ds, some...)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read %d %s: %w", len(keys), kind, err)
	}
	return ds, nil
}

// RemoveDocuments implements models.Store.
func (s *Store) RemoveDocuments(ctx context.Context, owner, kind string, ds []models.Document) error {
	err := s.decide(ctx, 100*len(ds), func(c *conn) error {
		for i := range ds {
			if _, err := c.exec(`DELETE FROM documents WHERE owner = ? AND kind = ? AND key = ? AND version = ?`,
				owner, kind, ds[i].Key, ds[i].Version); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("remove %d %s: %w", len(ds), kind, err)
	}
	return nil
}

func (s *Store) documents(ctx context.Context, query string, args ...any) (ds []models.Document, err error) {
	err = s.read(ctx, func(c *conn) (err error) {
		ds, err = documentsOf(c, query, args...)
		return err
	})
	return ds, err
}

// documentsOf reads the documents that a query selects.
func documentsOf(c *conn, query string, args ...any) (ds []models.Document, err error) {
	err = c.query(query, func(row []driver.Value) error {
		version, _ := row[1].(int64)
		ds = append(ds, models.Document{
			Key:     row[0].(string),
			Version: int(version),
			Value:   bytes.Clone(blob(row[2])),
		})
		return nil
	}, args...)
	return ds, err
}
