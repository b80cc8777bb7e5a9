package cassandra

import (
	"bytes"
	"context"
	"errors"

	"github.com/safedelivr/safedelivr/models"
)

// PutDocument implements models.Store.
func (s *Store) PutDocument(ctx context.Context, owner, kind string, d models.Document) error {
	return s.call(ctx, func() error {
		if !d.Valid() {
			return models.ErrInvalid
		}
		value := append([]byte{}, d.Value...)
		cql, args := `INSERT INTO documents (version, value, owner, kind, key) VALUES (?, ?, ?, ?, ?) IF NOT EXISTS`,
			[]any{d.Version, value, owner, kind, d.Key}
		if d.Version > 1 {
			cql = `UPDATE documents SET version = ?, value = ? WHERE owner = ? AND kind = ? AND key = ? IF version = ?`
			args = append(args, d.Version-1)
		}
		applied, _, err := s.cas(ctx, deciding, cql, args...)
		if err != nil || applied {
			return err
		}
		there, err := s.document(ctx, owner, kind, d.Key)
		if errors.Is(err, models.ErrNotFound) ||
			err == nil && (there.Version != d.Version || !bytes.Equal(there.Value, d.Value)) {
			return models.ErrConflict
		}
		return err // nil: a repeat
	}, "put %s %s", kind, d.Key)
}

func readDocument(scan scanner) (d models.Document, err error) {
	err = scan(&d.Key, &d.Version, &d.Value)
	return d, err
}

func (s *Store) document(ctx context.Context, owner, kind, key string) (models.Document, error) {
	return single(ctx, &s.runner, readDocument,
		`SELECT key, version, value FROM documents WHERE owner = ? AND kind = ? AND key = ?`, owner, kind, key)
}

// Document implements models.Store.
func (s *Store) Document(ctx context.Context, owner, kind, key string) (d models.Document, err error) {
	err = s.call(ctx, func() (err error) {
		d, err = s.document(ctx, owner, kind, key)
		return err
	}, "%s %s", kind, key)
	return d, err
}

// Documents implements models.Store.
func (s *Store) Documents(ctx context.Context, owner, kind, after string, limit int) (ds []models.Document, err error) {
	if limit <= 0 {
		return nil, s.call(ctx, func() error { return nil }, "list %s", kind)
	}
	err = s.call(ctx, func() (err error) {
		ds, err = query(ctx, &s.runner, readDocument, `SELECT key, version, value FROM documents
			WHERE owner = ? AND kind = ? AND key > ? LIMIT ?`, owner, kind, after, limit)
		return err
	}, "list %s", kind)
	return ds, err
}

// DeleteDocument implements models.Store.
func (s *Store) DeleteDocument(ctx context.Context, owner, kind, key string) error {
	return s.call(ctx, func() error {
		_, _, err := s.cas(ctx, plain, `DELETE FROM documents WHERE owner = ? AND kind = ? AND key = ? IF EXISTS`,
			owner, kind, key)
		return err
	}, "delete %s %s", kind, key)
}
