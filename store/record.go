package store

import (
	"bytes"
	"context"
	"fmt"
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
	return s.call(ctx, func() error {
		if e.Number < 1 {
			return models.ErrInvalid
		}
		there, err := s.engine.Append(ctx, &ledgers, chunk[:],
			shapes.Entry{Number: e.Number, Token: e.Token[:], Value: codec.EncodeEntry(&e)})
		if err != nil || there.Number == 0 {
			return err
		}
		winner, err := codec.DecodeEntry(there.Value)
		if err != nil {
			return stored(err)
		}
		return &models.ConflictError{Winner: winner}
	}, "append entry %d to %s", e.Number, chunk)
}

// PutFacts implements models.Store.
func (s *Store) PutFacts(ctx context.Context, fs ...models.ChunkFact) error {
	if len(fs) == 0 {
		return nil
	}
	return s.call(ctx, func() error {
		puts := make([]shapes.Put, len(fs))
		for i := range fs {
			puts[i] = shapes.Put{Table: &facts, Row: shapes.Row{Part: idKey(fs[i].Chunk), Key: text(nil, fs[i].Fact.Key),
				Version: 1, Value: codec.EncodeFact(&fs[i].Fact)}}
		}
		return s.engine.Put(ctx, puts...)
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
	err = s.call(ctx, func() error {
		entries, rows, err := s.engine.ReadWith(ctx, &ledgers, &facts, chunk[:], r)
		if err != nil {
			return err
		}
		if es, err = decodeEntries(entries); err == nil {
			fs, err = decodeFacts(rows)
		}
		return err
	}, "record of %s", chunk)
	if err != nil {
		return nil, nil, err
	}
	return es, fs, nil
}

func decodeFacts(rows []shapes.Row) (fs []models.Fact, err error) {
	for i := 0; i < len(rows) && err == nil; i++ {
		var f models.Fact
		f, err = decodeFact(&rows[i])
		fs = append(fs, f)
	}
	return fs, err
}

func decodeEntries(entries []shapes.Entry) (es []models.Entry, err error) {
	for i := 0; i < len(entries) && err == nil; i++ {
		var e models.Entry
		e, err = codec.DecodeEntry(entries[i].Value)
		es, err = append(es, e), stored(err)
	}
	return es, err
}

// Ledger implements models.Store.
func (s *Store) Ledger(ctx context.Context, chunk models.ID) (es []models.Entry, err error) {
	err = s.call(ctx, func() error {
		entries, err := s.engine.Read(ctx, &ledgers, chunk[:], 0, math.MaxInt32)
		if err == nil {
			es, err = decodeEntries(entries)
		}
		return err
	}, "ledger of %s", chunk)
	return es, err
}

// eraseTries is how often the erasure of a value that another call changed is tried again.
const eraseTries = 10

// errErasing is returned if other calls changed a value again and again.
var errErasing = fmt.Errorf("%w: other addresses are being erased", models.ErrUnavailable)

// Erase implements models.Store.
func (s *Store) Erase(ctx context.Context, chunk models.ID, address string) (erased models.Set, err error) {
	err = s.call(ctx, func() error {
		batch := chunk.Batch()
		at := shapes.Address{Table: &chunks, Part: chunkPart(chunk), Key: number(nil, chunk.ChunkNumber())}
		err := s.rewrite(ctx, at, func(raw []byte) ([]byte, error) {
			rs, err := codec.DecodeRecipients(raw)
			if err != nil {
				return nil, err
			}
			if erased = models.EraseRecipients(rs, address); erased.Empty() {
				return nil, nil
			}
			return codec.EncodeRecipients(rs), nil
		})
		if err == nil {
			err = s.eraseLedger(ctx, chunk, address)
		}
		if err == nil && chunk.ChunkNumber() == 0 {
			rejected := shapes.Address{Table: &pieces, Part: batch[:], Key: text(nil, models.RejectedPieces)}
			err = s.rewrite(ctx, rejected, func(raw []byte) ([]byte, error) {
				raw, err := codec.Unpack(raw)
				erased := models.EraseText(string(raw), address)
				if err != nil || erased == string(raw) {
					return nil, err
				}
				return codec.Pack([]byte(erased)), nil
			})
		}
		if err != nil {
			return err
		}
		return s.eraseFacts(ctx, chunk, address)
	}, "erase an address from %s", chunk)
	if err != nil {
		return models.Set{}, err
	}
	return erased, nil
}

// rewrite replaces the values of the rows at an address that change. change returns nil for the others.
func (s *Store) rewrite(ctx context.Context, at shapes.Address, change func(raw []byte) ([]byte, error)) error {
	rows, err := s.engine.Find(ctx, at)
	if err != nil {
		return err
	}
	for _, row := range rows[0] {
		for try := 0; row.Version > 0 && !row.Gone; try++ {
			value, err := change(row.Value)
			if err != nil {
				return stored(err)
			}
			if value == nil {
				break
			}
			if try == eraseTries {
				return errErasing
			}
			was := row.Version
			row.Value, row.Version = value, was+1
			refused, there, err := s.swap(ctx, shapes.Swap{Put: shapes.Put{Table: at.Table, Row: row}, Was: was})
			if err != nil {
				return err
			}
			if !refused {
				break
			}
			row = there
		}
	}
	return nil
}

// eraseLedger replaces entries by compare-and-set on their value.
func (s *Store) eraseLedger(ctx context.Context, chunk models.ID, address string) error {
	entries, err := s.engine.Read(ctx, &ledgers, chunk[:], 0, math.MaxInt32)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		e, err := codec.DecodeEntry(entry.Value)
		if err != nil {
			return stored(err)
		}
		if !e.Erase(address) {
			continue
		}
		was := entry.Value
		entry.Value = codec.EncodeEntry(&e)
		done, err := s.engine.Rewrite(ctx, &ledgers, chunk[:], entry, was)
		if err != nil {
			return err
		}
		if done {
			continue
		}
		there, err := s.engine.Read(ctx, &ledgers, chunk[:], entry.Number-1, 1)
		if err != nil {
			return err
		}
		if len(there) == 1 && !bytes.Equal(there[0].Value, entry.Value) {
			return errErasing
		}
	}
	return nil
}

// eraseFacts replaces facts.
func (s *Store) eraseFacts(ctx context.Context, chunk models.ID, address string) error {
	rows, err := s.engine.Find(ctx, shapes.Address{Table: &facts, Part: chunk[:]})
	if err != nil {
		return err
	}
	fs, err := decodeFacts(rows[0])
	if err != nil {
		return err
	}
	for i := range fs {
		if !fs[i].Erase(address) {
			continue
		}
		key := text(nil, fs[i].Key)
		err := s.rewrite(ctx, shapes.Address{Table: &facts, Part: chunk[:], Key: key}, func(raw []byte) ([]byte, error) {
			f, err := codec.DecodeFact(fs[i].Key, raw)
			if err != nil || !f.Erase(address) {
				return nil, err
			}
			return codec.EncodeFact(&f), nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
