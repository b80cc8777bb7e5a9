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
	return s.call(ctx, func() error {
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
) (conflicts []int, err error) {
	err = s.call(ctx, func() (err error) {
		conflicts, err = s.putDocuments(ctx, owner, kind, ds)
		return err
	}, "put %d %s", len(ds), kind)
	return conflicts, err
}

func (s *Store) putDocuments(ctx context.Context, owner, kind string, ds []models.Document) (conflicts []int, err error) {
	swaps := make([]shapes.Swap, len(ds))
	for i := range ds {
		if !ds[i].Valid() {
			return nil, models.ErrInvalid
		}
		swaps[i] = shapes.Swap{Put: documentRow(owner, kind, &ds[i]), Was: int64(ds[i].Version) - 1}
	}
	refused, err := s.engine.Swap(ctx, swaps)
	for i := range refused {
		conflicts = append(conflicts, refused[i].Index)
	}
	return conflicts, err
}

// Document implements models.Store.
func (s *Store) Document(ctx context.Context, owner, kind, key string) (d models.Document, err error) {
	err = s.call(ctx, func() error {
		row, err := s.row(ctx, &documents, documentPart(owner, kind), text(nil, key))
		if err == nil {
			d, err = decodeDocument(&row)
		}
		return err
	}, "%s %s", kind, key)
	return d, err
}

// Documents implements models.Store.
func (s *Store) Documents(ctx context.Context, owner, kind, after string, limit int) (ds []models.Document, err error) {
	r := shapes.Range{Limit: limit}
	if after != "" {
		r.From = next(text(nil, after))
	}
	err = s.call(ctx, func() error {
		rows, err := s.engine.Scan(ctx, &documents, documentPart(owner, kind), r)
		ds, err = appendDocuments(ds, rows, err)
		return err
	}, "list %s", kind)
	return ds, err
}

func appendDocuments(ds []models.Document, rows []shapes.Row, err error) ([]models.Document, error) {
	for i := 0; i < len(rows) && err == nil; i++ {
		var d models.Document
		d, err = decodeDocument(&rows[i])
		ds = append(ds, d)
	}
	return ds, err
}

// DocumentsOf implements models.Store.
func (s *Store) DocumentsOf(ctx context.Context, owner, kind string, keys []string) (ds []models.Document, err error) {
	at := make([]shapes.Address, len(keys))
	for i, key := range keys {
		at[i] = shapes.Address{Table: &documents, Part: documentPart(owner, kind), Key: text(nil, key)}
	}
	err = s.call(ctx, func() error {
		found, err := s.engine.Find(ctx, at...)
		for i := range found {
			ds, err = appendDocuments(ds, found[i], err)
		}
		return err
	}, "read %d %s", len(keys), kind)
	return ds, err
}

// DeleteDocument implements models.Store.
func (s *Store) DeleteDocument(ctx context.Context, owner, kind, key string) error {
	return s.call(ctx, func() error {
		return s.engine.RemoveRows(ctx, shapes.Address{Table: &documents, Part: documentPart(owner, kind),
			Key: text(nil, key)})
	}, "delete %s %s", kind, key)
}

// RemoveDocuments implements models.Store.
func (s *Store) RemoveDocuments(ctx context.Context, owner, kind string, ds []models.Document) error {
	return s.call(ctx, func() error {
		swaps := make([]shapes.Swap, len(ds))
		for i := range ds {
			swaps[i] = shapes.Swap{Put: documentRow(owner, kind, &ds[i]), Was: int64(ds[i].Version), Remove: true}
		}
		_, err := s.engine.Swap(ctx, swaps)
		return err
	}, "remove %d %s", len(ds), kind)
}
