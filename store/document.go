package store

import (
	"context"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store/shapes"
)

// documents are written by compare-and-set alone.
var documents = shapes.Table{Name: "documents", Decided: true, Stem: -1} // owner and kind, key

func documentPart(owner, kind string) []byte { return append(text(nil, owner), kind...) }

func documentRow(owner, kind string, d *models.Document) shapes.Put {
	return shapes.Put{Table: &documents, Row: shapes.Row{Part: documentPart(owner, kind), Key: text(nil, d.Key),
		Version: int64(d.Version), Value: d.Value}}
}

func decodeDocument(row *shapes.Row) (d models.Document, err error) {
	d.Key, _, err = cutText(row.Key)
	d.Version, d.Value = int(row.Version), row.Value
	return d, err
}

// PutDocument implements models.Store.
func (s *Store) PutDocument(ctx context.Context, owner, kind string, d models.Document) error {
	return s.db.call(ctx, func() error {
		conflicts, err := s.putDocuments(ctx, owner, kind, []models.Document{d})
		if err == nil && len(conflicts) > 0 {
			err = models.ErrConflict
		}
		return err
	}, "put %s %s", kind, d.Key)
}

// PutDocuments implements models.Store.
func (s *Store) PutDocuments(
	ctx context.Context, owner, kind string, ds []models.Document,
) ([]int, error) {
	return get(ctx, s.db, func() ([]int, error) {
		return s.putDocuments(ctx, owner, kind, ds)
	}, "put %d %s", len(ds), kind)
}

func (s *Store) putDocuments(ctx context.Context, owner, kind string, ds []models.Document) (conflicts []int, err error) {
	swaps := make([]shapes.Swap, len(ds))
	for i := range ds {
		if !ds[i].Valid() {
			return nil, models.ErrInvalid
		}
		swaps[i] = shapes.Swap{Put: documentRow(owner, kind, &ds[i]), Was: int64(ds[i].Version) - 1}
	}
	refused, err := s.db.engine.Swap(ctx, swaps)
	for i := range refused {
		conflicts = append(conflicts, refused[i].Index)
	}
	return conflicts, err
}

// Document implements models.Store.
func (s *Store) Document(ctx context.Context, owner, kind, key string) (models.Document, error) {
	return get(ctx, s.db, func() (models.Document, error) {
		return decodedRow(ctx, s.db, &documents, documentPart(owner, kind), text(nil, key), decodeDocument)
	}, "%s %s", kind, key)
}

// Documents implements models.Store.
func (s *Store) Documents(ctx context.Context, owner, kind, after string, limit int) ([]models.Document, error) {
	r := shapes.Range{Limit: limit}
	if after != "" {
		r.From = next(text(nil, after))
	}
	return get(ctx, s.db, func() (ds []models.Document, err error) {
		rows, err := s.db.engine.Scan(ctx, &documents, documentPart(owner, kind), r)
		return appendDecoded(ds, rows, err, decodeDocument)
	}, "list %s", kind)
}

// DocumentsOf implements models.Store.
func (s *Store) DocumentsOf(ctx context.Context, owner, kind string, keys []string) ([]models.Document, error) {
	at := mapped(keys, func(key *string) shapes.Address {
		return shapes.Address{Table: &documents, Part: documentPart(owner, kind), Key: text(nil, *key)}
	})
	return get(ctx, s.db, func() (ds []models.Document, err error) {
		found, err := s.db.engine.Find(ctx, at...)
		for i := range found {
			ds, err = appendDecoded(ds, found[i], err, decodeDocument)
		}
		return ds, err
	}, "read %d %s", len(keys), kind)
}

// DeleteDocument implements models.Store.
func (s *Store) DeleteDocument(ctx context.Context, owner, kind, key string) error {
	return s.db.call(ctx, func() error {
		return s.db.engine.RemoveRows(ctx, shapes.Address{Table: &documents, Part: documentPart(owner, kind),
			Key: text(nil, key)})
	}, "delete %s %s", kind, key)
}

// RemoveDocuments implements models.Store.
func (s *Store) RemoveDocuments(ctx context.Context, owner, kind string, ds []models.Document) error {
	return s.db.call(ctx, func() error {
		swaps := make([]shapes.Swap, len(ds))
		for i := range ds {
			swaps[i] = shapes.Swap{Put: documentRow(owner, kind, &ds[i]), Was: int64(ds[i].Version), Remove: true}
		}
		_, err := s.db.engine.Swap(ctx, swaps)
		return err
	}, "remove %d %s", len(ds), kind)
}
