package store

import (
	"bytes"
	"context"
	"iter"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
	"github.com/safedelivr/safedelivr/store/shapes"
)

var (
	suppressions = shapes.Table{Name: "suppressions", Stem: len(models.AddressHash{})} // list and part; hash, category, reason
	additions    = shapes.Table{Name: "suppression_additions", Log: true, Group: 500}  // list
	addressIndex = shapes.Table{Name: "address_index", Bucket: time.Hour}              // user, ID of the chunk
)

// suppressionParts is the number of partitions of a list. They are in the order of hashes. It must never change.
const suppressionParts = 16

func suppressionPart(list string, h models.AddressHash) (n byte, part []byte) {
	n = h[0] / (256 / suppressionParts)
	return n, append(text(nil, list), n)
}

func suppressionKey(k *models.SuppressionKey) []byte {
	return text(text(bytes.Clone(k.Hash[:]), k.Category), string(k.Reason))
}

func decodeSuppression(row *shapes.Row) (models.Suppression, error) {
	e, err := codec.DecodeSuppression(row.Key[:min(len(row.Key), len(models.AddressHash{}))], row.Value)
	return e, stored(err)
}

// PutSuppressions implements models.Store. The version of an entry is its time, so that an older one changes nothing.
func (s *Store) PutSuppressions(ctx context.Context, list string, es ...models.Suppression) error {
	return s.db.call(ctx, func() error {
		return s.db.putPages(ctx, mapped(es, func(e *models.Suppression) shapes.Put {
			_, in := suppressionPart(list, e.Hash)
			return shapes.Put{Table: &suppressions, Row: shapes.Row{Part: in, Key: suppressionKey(&e.SuppressionKey),
				Version: e.At.UnixMicro(), Value: codec.EncodeSuppression(e)}}
		}))
	}, "put suppressions")
}

// SuppressionsOf implements models.Store.
func (s *Store) SuppressionsOf(
	ctx context.Context, list string, hashes ...models.AddressHash,
) ([]models.Suppression, error) {
	hashes = slices.Clone(hashes)
	slices.SortFunc(hashes, func(a, b models.AddressHash) int { return bytes.Compare(a[:], b[:]) })
	hashes = slices.Compact(hashes)
	return get(ctx, s.db, func() (out []models.Suppression, err error) {
		at := mapped(hashes, func(h *models.AddressHash) shapes.Address {
			_, in := suppressionPart(list, *h)
			return shapes.Address{Table: &suppressions, Part: in, Key: h[:]}
		})
		found, err := s.db.engine.Find(ctx, at...)
		for _, rows := range found {
			out, err = appendDecoded(out, rows, err, decodeSuppression)
		}
		return out, err
	}, "read suppressions of addresses")
}

// Suppressions implements models.Store.
func (s *Store) Suppressions(
	ctx context.Context, list string, after models.SuppressionKey, limit int,
) ([]models.Suppression, error) {
	r := shapes.Range{Limit: limit}
	if after != (models.SuppressionKey{}) {
		r.From = next(suppressionKey(&after))
	}
	return get(ctx, s.db, func() (out []models.Suppression, err error) {
		n, part := suppressionPart(list, after.Hash)
		for ; n < suppressionParts && r.Limit > 0; n++ {
			part[len(part)-1] = n
			rows, err := s.db.engine.Scan(ctx, &suppressions, part, r)
			if out, err = appendDecoded(out, rows, err, decodeSuppression); err != nil {
				return out, err
			}
			r.From, r.Limit = nil, limit-len(out)
		}
		return out, nil
	}, "read suppressions")
}

// AppendAddition implements models.Store.
func (s *Store) AppendAddition(ctx context.Context, list string, a models.SuppressionAddition) error {
	return s.db.call(ctx, func() error {
		return s.db.append(ctx, &additions, list,
			shapes.Entry{Number: a.Number, Token: a.Token[:], Value: codec.EncodeMarks(a.Marks)})
	}, "append addition %d of suppressions", a.Number)
}

// Additions implements models.Store.
func (s *Store) Additions(
	ctx context.Context, list string, after, limit int,
) ([]models.SuppressionAddition, error) {
	return get(ctx, s.db, func() ([]models.SuppressionAddition, error) {
		return read(ctx, s.db, &additions, []byte(list), after, limit, decodeAddition)
	}, "read additions of suppressions after %d", after)
}

func decodeAddition(e *shapes.Entry) (a models.SuppressionAddition, err error) {
	a.Number = e.Number
	copy(a.Token[:], e.Token)
	a.Marks, err = codec.DecodeMarks(e.Value)
	return a, stored(err)
}

// PutAddressIndex implements models.Store.
func (s *Store) PutAddressIndex(ctx context.Context, user string, p models.AddressIndex) error {
	return s.db.call(ctx, func() error {
		version, err := s.db.stamp(ctx)
		if err != nil {
			return err
		}
		return s.db.engine.Put(ctx, shapes.Put{Table: &addressIndex, Row: shapes.Row{Part: []byte(user), Key: p.Chunk[:],
			Version: version, Value: p.Fingerprints}})
	}, "put address index of %s", p.Chunk)
}

// AddressIndexes implements models.Store.
func (s *Store) AddressIndexes(
	ctx context.Context, user string, t time.Time, before models.ID,
) iter.Seq2[models.AddressIndex, error] {
	hour := t.UTC().Truncate(time.Hour)
	r := shapes.Range{From: moment(nil, hour), To: moment(nil, hour.Add(time.Hour)), Back: true}
	if !before.IsZero() && bytes.Compare(before[:], r.To) < 0 {
		r.To = before[:]
	}
	return decoded(s.db.scanAll(ctx, &addressIndex, []byte(user), r, "address index of "+user),
		func(row *shapes.Row) (p models.AddressIndex, err error) {
			p.Chunk, err = idOf(row.Key)
			p.Fingerprints = row.Value
			return p, err
		})
}

// AddressIndexHours implements models.Store.
func (s *Store) AddressIndexHours(
	ctx context.Context, user string, before time.Time, limit int,
) ([]time.Time, error) {
	return get(ctx, s.db, func() (out []time.Time, err error) {
		end := before.Add(-1).UTC().Truncate(time.Hour).Add(time.Hour) // of the last hour that begins before
		for len(out) < limit {
			rows, err := s.db.engine.Scan(ctx, &addressIndex, []byte(user),
				shapes.Range{To: moment(nil, end), Back: true, Limit: 1, Head: 1})
			if err != nil || len(rows) == 0 {
				return out, err
			}
			at, _, err := cutMoment(rows[0].Key)
			if err != nil {
				return out, err
			}
			end = at.Truncate(time.Hour)
			out = append(out, end)
		}
		return out, nil
	}, "hours of the address index of %s", user)
}

// DropAddressIndexes implements models.Store.
func (s *Store) DropAddressIndexes(ctx context.Context, user string, t time.Time) error {
	hour := t.UTC().Truncate(time.Hour)
	return s.db.call(ctx, func() error {
		return s.db.engine.RemoveRange(ctx, &addressIndex, []byte(user), moment(nil, hour), moment(nil, hour.Add(time.Hour)))
	}, "drop address index of %s", user)
}
