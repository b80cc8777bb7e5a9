package cassandra

import (
	"bytes"
	"context"
	"errors"
	"slices"

	"github.com/gocql/gocql"

	"github.com/safedelivr/safedelivr/models"
)

// documentsAtOnce is how many documents of a partition change by one compare-and-set.
const documentsAtOnce = 100

// PutDocument implements models.Store.
func (s *Store) PutDocument(ctx context.Context, owner, kind string, d models.Document) error {
	return s.call(ctx, func() error { return s.putDocument(ctx, owner, kind, d) }, "put %s %s", kind, d.Key)
}

func (s *Store) putDocument(ctx context.Context, owner, kind string, d models.Document) error {
	if !d.Valid() {
		return models.ErrInvalid
	}
	cql, args := insertDocument(owner, kind, &d)
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
}

// insertDocument returns the statement that stores a document.
func insertDocument(owner, kind string, d *models.Document) (cql string, args []any) {
	args = []any{d.Version, append([]byte{}, d.Value...), owner, kind, d.Key}
	if d.Version > 1 {
		return `UPDATE documents SET version = ?, value = ? WHERE owner = ? AND kind = ? AND key = ? IF version = ?`,
			append(args, d.Version-1)
	}
	return `INSERT INTO documents (version, value, owner, kind, key) VALUES (?, ?, ?, ?, ?) IF NOT EXISTS`, args
}

// PutDocuments implements models.Store. Documents that no other caller changes are stored by one
// compare-and-set.
func (s *Store) PutDocuments(
	ctx context.Context, owner, kind string, ds []models.Document,
) (conflicts []int, err error) {
	err = s.call(ctx, func() error {
		conflicts = nil
		for i := range ds {
			if !ds[i].Valid() {
				return models.ErrInvalid
			}
		}
		for from := 0; from < len(ds); from += documentsAtOnce {
			some := ds[from:min(from+documentsAtOnce, len(ds))]
			applied, err := s.casDocuments(ctx, some, func(d *models.Document) (string, []any) {
				return insertDocument(owner, kind, d)
			})
			if err != nil {
				return err
			}
			if applied {
				continue
			}
			lost := make([]bool, len(some))
			if err := each(ctx, len(some), func(ctx context.Context, i int) error {
				err := s.putDocument(ctx, owner, kind, some[i])
				if lost[i] = errors.Is(err, models.ErrConflict); lost[i] {
					return nil
				}
				return err
			}); err != nil {
				return err
			}
			for i := range lost {
				if lost[i] {
					conflicts = append(conflicts, from+i)
				}
			}
		}
		return nil
	}, "put %d %s", len(ds), kind)
	return conflicts, err
}

// casDocuments runs the statements of several documents of a partition as one compare-and-set. It is
// applied only if the conditions of all of them hold.
func (s *Store) casDocuments(
	ctx context.Context, ds []models.Document, statement func(d *models.Document) (cql string, args []any),
) (applied bool, err error) {
	if err := s.guard.err(); err != nil {
		return false, err
	}
	err = s.try(ctx, deciding, func() error {
		b := s.session.NewBatch(gocql.UnloggedBatch).WithContext(ctx)
		for i := range ds {
			cql, args := statement(&ds[i])
			b.Query(cql, args...)
		}
		done, rows, err := s.session.MapExecuteBatchCAS(b, map[string]any{})
		if rows != nil {
			err = errors.Join(err, rows.Close())
		}
		applied = done
		return undecided(err)
	})
	return applied, err
}

// DocumentsOf implements models.Store.
func (s *Store) DocumentsOf(ctx context.Context, owner, kind string, keys []string) (ds []models.Document, err error) {
	err = s.call(ctx, func() error {
		ds = nil
		for some := range slices.Chunk(keys, documentsAtOnce) {
			found, err := query(ctx, &s.runner, readDocument, `SELECT key, version, value FROM documents
				WHERE owner = ? AND kind = ? AND key IN ?`, owner, kind, some)
			if err != nil {
				return err
			}
			ds = append(ds, found...)
		}
		return nil
	}, "read %d %s", len(keys), kind)
	return ds, err
}

// RemoveDocuments implements models.Store.
func (s *Store) RemoveDocuments(ctx context.Context, owner, kind string, ds []models.Document) error {
	remove := func(d *models.Document) (string, []any) {
		return `DELETE FROM documents WHERE owner = ? AND kind = ? AND key = ? IF version = ?`,
			[]any{owner, kind, d.Key, d.Version}
	}
	return s.call(ctx, func() error {
		for some := range slices.Chunk(ds, documentsAtOnce) {
			applied, err := s.casDocuments(ctx, some, remove)
			if err == nil && !applied { // others have changed some of them, or they are gone
				err = each(ctx, len(some), func(ctx context.Context, i int) error {
					cql, args := remove(&some[i])
					_, _, err := s.cas(ctx, deciding, cql, args...)
					return err
				})
			}
			if err != nil {
				return err
			}
		}
		return nil
	}, "remove %d %s", len(ds), kind)
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
