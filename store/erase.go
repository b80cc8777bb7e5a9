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

// eraseTries is how often the erasure of a value that another call changed is tried again.
const eraseTries = 10

// errErasing is returned if other calls changed a value again and again.
var errErasing = fmt.Errorf("%w: other addresses are being erased", models.ErrUnavailable)

// Erase implements models.Store.
func (s *Store) Erase(ctx context.Context, chunk models.ID, address string) (models.Set, error) {
	return get(ctx, s.db, func() (models.Set, error) {
		e := erasure{s.db, chunk, address}
		erased, err := e.recipients(ctx)
		if err == nil {
			err = e.ledger(ctx)
		}
		if err == nil && chunk.ChunkNumber() == 0 {
			err = e.rejected(ctx)
		}
		if err == nil {
			err = e.facts(ctx)
		}
		return erased, err
	}, "erase an address from %s", chunk)
}

// erasure removes an address from what is stored of a chunk.
type erasure struct {
	db      *database
	chunk   models.ID
	address string
}

// recipients replaces the recipients, and returns those that had the address.
func (e *erasure) recipients(ctx context.Context) (erased models.Set, err error) {
	at := shapes.Address{Table: &chunks, Part: chunkPart(e.chunk), Key: number(nil, e.chunk.ChunkNumber())}
	err = e.db.rewrite(ctx, at, func(raw []byte) ([]byte, error) {
		rs, err := codec.DecodeRecipients(raw)
		if err != nil {
			return nil, err
		}
		if erased = models.EraseRecipients(rs, e.address); erased.Empty() {
			return nil, nil
		}
		return codec.EncodeRecipients(rs), nil
	})
	return erased, err
}

// rejected replaces the list of the recipients that were left out of the batch.
func (e *erasure) rejected(ctx context.Context) error {
	at := shapes.Address{Table: &pieces, Part: e.chunk[:], Key: text(nil, models.RejectedPieces)}
	return e.db.rewrite(ctx, at, func(raw []byte) ([]byte, error) {
		raw, err := codec.Unpack(raw)
		erased := models.EraseText(string(raw), e.address)
		if err != nil || erased == string(raw) {
			return nil, err
		}
		return codec.Pack([]byte(erased)), nil
	})
}

// ledger replaces entries by compare-and-set on their value.
func (e *erasure) ledger(ctx context.Context) error {
	entries, err := e.db.engine.Read(ctx, &ledgers, e.chunk[:], 0, math.MaxInt32)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		one, err := decodeEntry(&entry)
		if err != nil {
			return err
		}
		if !one.Erase(e.address) {
			continue
		}
		was := entry.Value
		entry.Value = codec.EncodeEntry(&one)
		done, err := e.db.engine.Rewrite(ctx, &ledgers, e.chunk[:], entry, was)
		if err != nil {
			return err
		}
		if done {
			continue
		}
		there, err := e.db.engine.Read(ctx, &ledgers, e.chunk[:], entry.Number-1, 1)
		if err != nil {
			return err
		}
		if len(there) == 1 && !bytes.Equal(there[0].Value, entry.Value) {
			return errErasing
		}
	}
	return nil
}

// facts replaces facts.
func (e *erasure) facts(ctx context.Context) error {
	rows, err := e.db.engine.Find(ctx, shapes.Address{Table: &facts, Part: e.chunk[:]})
	if err != nil {
		return err
	}
	fs, err := appendDecoded(nil, rows[0], nil, decodeFact)
	if err != nil {
		return err
	}
	for i := range fs {
		if !fs[i].Erase(e.address) {
			continue
		}
		key := text(nil, fs[i].Key)
		err := e.db.rewrite(ctx, shapes.Address{Table: &facts, Part: e.chunk[:], Key: key}, func(raw []byte) ([]byte, error) {
			f, err := codec.DecodeFact(fs[i].Key, raw)
			if err != nil || !f.Erase(e.address) {
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
