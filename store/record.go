package store

import (
	"context"
	"math"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
	"github.com/safedelivr/safedelivr/store/shapes"
)

var (
	ledgers = shapes.Table{Name: "ledger", Log: true}       // chunk
	facts   = shapes.Table{Name: "facts", FirstStays: true} // chunk, key of the fact
)

// Append implements models.Store.
func (s *Store) Append(ctx context.Context, chunk models.ID, e models.Entry) error {
	return s.db.call(ctx, func() error {
		if e.Number < 1 {
			return models.ErrInvalid
		}
		there, err := s.db.engine.Append(ctx, &ledgers, chunk[:],
			shapes.Entry{Number: e.Number, Token: e.Token[:], Value: codec.EncodeEntry(&e)})
		if err != nil || there.Number == 0 {
			return err
		}
		winner, err := decodeEntry(&there)
		if err != nil {
			return err
		}
		return &models.ConflictError{Winner: winner}
	}, "append entry %d to %s", e.Number, chunk)
}

// PutFacts implements models.Store.
func (s *Store) PutFacts(ctx context.Context, fs ...models.ChunkFact) error {
	if len(fs) == 0 {
		return nil
	}
	return s.db.call(ctx, func() error {
		return s.db.engine.Put(ctx, mapped(fs, func(f *models.ChunkFact) shapes.Put {
			return shapes.Put{Table: &facts, Row: shapes.Row{Part: idKey(f.Chunk), Key: text(nil, f.Fact.Key), Version: 1,
				Value: codec.EncodeFact(&f.Fact)}}
		})...)
	}, "put %d facts of %s", len(fs), fs[0].Chunk)
}

func decodeFact(row *shapes.Row) (models.Fact, error) {
	key, _, err := cutText(row.Key)
	if err != nil {
		return models.Fact{}, err
	}
	f, err := codec.DecodeFact(key, row.Value)
	return f, stored(err)
}

// Record implements models.Store. Ledger and facts may be of slightly different moments. Each has all that was written
// before the call.
func (s *Store) Record(ctx context.Context, chunk models.ID) (es []models.Entry, fs []models.Fact, err error) {
	return s.record(ctx, chunk, shapes.Range{})
}

// Calls implements models.Store.
func (s *Store) Calls(ctx context.Context, chunk models.ID) ([]models.Entry, []models.Outcome, error) {
	from, to := models.OutcomeKeys()
	es, fs, err := s.record(ctx, chunk, shapes.Range{From: []byte(from), To: []byte(to)})
	var out []models.Outcome
	for i := range fs {
		if o := fs[i].Outcome; o != nil {
			out = append(out, *o)
		}
	}
	return es, out, err
}

// record reads the ledger of a chunk and the facts of a range.
func (s *Store) record(
	ctx context.Context, chunk models.ID, r shapes.Range,
) (es []models.Entry, fs []models.Fact, err error) {
	err = s.db.call(ctx, func() error {
		entries, rows, err := s.db.engine.ReadWith(ctx, &ledgers, &facts, chunk[:], r)
		es, err = appendDecoded(es, entries, err, decodeEntry)
		fs, err = appendDecoded(fs, rows, err, decodeFact)
		return err
	}, "record of %s", chunk)
	if err != nil {
		return nil, nil, err
	}
	return es, fs, nil
}

func decodeEntry(e *shapes.Entry) (models.Entry, error) {
	entry, err := codec.DecodeEntry(e.Value)
	return entry, stored(err)
}

// Ledger implements models.Store.
func (s *Store) Ledger(ctx context.Context, chunk models.ID) ([]models.Entry, error) {
	return get(ctx, s.db, func() ([]models.Entry, error) {
		return read(ctx, s.db, &ledgers, chunk[:], 0, math.MaxInt32, decodeEntry)
	}, "ledger of %s", chunk)
}
