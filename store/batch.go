package store

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
	"github.com/safedelivr/safedelivr/store/shapes"
)

// A batch exists with its row in heads, which PutBatch and AbandonBatch decide by compare-and-set. A fence keeps its
// content away after that was removed.
var (
	heads     = shapes.Table{Name: "batches", Decided: true, Vetoed: true, Packed: true}
	batchList = shapes.Table{Name: "user_batches", Bucket: 10 * time.Minute} // user, ID
	chunks    = shapes.Table{Name: "chunks", Fenced: true, Packed: true}     // see chunkPart; number → recipients
	pieces    = shapes.Table{Name: "pieces", Fenced: true, Packed: true}     // batch, SHA-256, number
)

// chunkGroup is how many chunks of a batch share a partition, so that no partition grows large. It must never change.
const chunkGroup = 16

// chunkPart returns the partition of a chunk: the ID of the first chunk of its group.
func chunkPart(chunk models.ID) []byte {
	return idKey(chunk.Chunk(chunk.ChunkNumber() / chunkGroup * chunkGroup))
}

// The last byte of the value of a head.
const (
	headStored    = 'b' // the batch is before it
	headAbandoned = 'a' // nothing is
	headPurged    = 'p' // a part of the batch was removed; the number of its chunks is before it
)

// The versions of a head.
const (
	firstHead = 1 + iota
	redactedHead
	purgedHead
)

const (
	// fenceAll keeps all versions of chunks and pieces out.
	fenceAll = math.MaxInt32
	// abandonedKeep is how long it is kept that a batch was abandoned.
	abandonedKeep = 400 * 24 * time.Hour
)

func headRow(batch models.ID, version int64, kind byte, value []byte) shapes.Put {
	return shapes.Put{Table: &heads, Row: shapes.Row{Part: batch[:], Version: version, Value: append(value, kind)}}
}

// headKind returns the kind of a head and what is before it.
func headKind(row *shapes.Row) (kind byte, value []byte) {
	if len(row.Value) == 0 {
		return headAbandoned, nil
	}
	last := len(row.Value) - 1
	return row.Value[last], row.Value[:last]
}

func chunkRow(chunk models.ID, rs []models.Recipient) shapes.Put {
	return shapes.Put{Table: &chunks, Row: shapes.Row{Part: chunkPart(chunk), Key: number(nil, chunk.ChunkNumber()), Version: 1,
		Value: codec.EncodeRecipients(rs)}}
}

// PutChunk implements models.Store.
func (s *Store) PutChunk(ctx context.Context, c models.Chunk) error {
	return s.db.call(ctx, func() error {
		if c.ID.ChunkNumber() == 0 {
			return fmt.Errorf("%w: the first chunk comes with its batch", models.ErrInvalid)
		}
		return s.db.engine.Put(ctx, chunkRow(c.ID, c.Recipients))
	}, "put chunk %s", c.ID)
}

// PutBatch implements models.Store. The batch may be in the list before it exists, so readers of the list check whether
// it does. The engine of a single process stores entries at the same moment. Others store them before, so that a store that
// does not answer has certainly not accepted the batch.
func (s *Store) PutBatch(ctx context.Context, b models.Batch, first models.Chunk, es ...models.AgendaEntry) error {
	return s.db.call(ctx, func() error {
		if first.ID != b.ID || b.ID != b.ID.Batch() {
			return fmt.Errorf("%w: its first chunk is %s", models.ErrInvalid, first.ID)
		}
		var entries []shapes.Put
		if len(es) > 0 {
			version, err := s.db.stamp(ctx)
			if err != nil {
				return err
			}
			entries = agendaRows(es, s.Now(), version)
		}
		if _, single := s.db.engine.(shapes.Leaser); !single && len(entries) > 0 {
			if err := s.db.engine.Put(ctx, entries...); err != nil {
				return err
			}
			entries = nil
		}
		listed := shapes.Put{Table: &batchList, Row: shapes.Row{Part: []byte(b.User), Key: b.ID[:], Version: 1}}
		refused, there, err := s.db.swap(ctx, shapes.Swap{Put: headRow(b.ID, firstHead, headStored, codec.EncodeBatch(&b))},
			append(entries, chunkRow(first.ID, first.Recipients), listed)...)
		if err != nil {
			return err
		}
		if kind, _ := headKind(&there); !refused || kind == headStored { // the latter is a repeat
			s.exist.Add(b.ID)
			return nil
		}
		return errors.Join(models.ErrNotFound, s.removeContent(ctx, b.ID, b.Chunks, fenceAll, abandonedKeep))
	}, "put batch %s", b.ID)
}

// AbandonBatch implements models.Store.
func (s *Store) AbandonBatch(ctx context.Context, batch models.ID, chunks int) (bool, error) {
	return get(ctx, s.db, func() (gone bool, err error) {
		head := headRow(batch, firstHead, headAbandoned, nil)
		head.TTL = abandonedKeep
		refused, there, err := s.db.swap(ctx, shapes.Swap{Put: head, Veto: true})
		if err != nil {
			return gone, err
		}
		if kind, _ := headKind(&there); refused && kind == headStored {
			return gone, nil
		}
		gone = true
		return gone, s.removeContent(ctx, batch, chunks, fenceAll, abandonedKeep)
	}, "abandon batch %s", batch)
}

// removeContent removes the recipients of some chunks and the attachments. fence keeps away what is written late until
// keep is over, or for ever.
func (s *Store) removeContent(ctx context.Context, batch models.ID, count int, fence int64, keep time.Duration) error {
	parts := [][]byte{batch[:]}
	for n := chunkGroup; n < min(count, models.MaxChunks); n += chunkGroup {
		parts = append(parts, idKey(batch.Chunk(n)))
	}
	for some := range slices.Chunk(parts, pageRows) {
		if err := s.db.engine.RemoveParts(ctx, &chunks, fence, keep, some...); err != nil {
			return err
		}
	}
	return s.db.engine.RemoveParts(ctx, &pieces, fence, keep, batch[:])
}

// readBatch reads a batch from its head. Errors: models.ErrNotFound.
func readBatch(rows []shapes.Row) (b models.Batch, err error) {
	row, err := only(rows)
	if err != nil {
		return b, err
	}
	kind, value := headKind(&row)
	if kind != headStored {
		return b, models.ErrNotFound
	}
	b, err = codec.DecodeBatch(value)
	return b, stored(err)
}

// Batch implements models.Store.
func (s *Store) Batch(ctx context.Context, id models.ID) (models.Batch, error) {
	return get(ctx, s.db, func() (b models.Batch, err error) {
		rows, err := s.db.engine.Find(ctx, shapes.Address{Table: &heads, Part: id[:]})
		if err == nil {
			b, err = readBatch(rows[0])
		}
		if err == nil {
			s.exist.Add(id)
		}
		return b, err
	}, "batch %s", id)
}

// Batches implements models.Store.
func (s *Store) Batches(ctx context.Context, user string, before models.ID, limit int) ([]models.Batch, error) {
	return get(ctx, s.db, func() (out []models.Batch, err error) {
		for len(out) < limit {
			ids, err := s.listed(ctx, user, shapes.Range{To: below(before), Back: true, Limit: limit - len(out)})
			if err != nil || len(ids) == 0 {
				return out, err
			}
			at := mapped(ids, func(id *models.ID) shapes.Address { return shapes.Address{Table: &heads, Part: id[:]} })
			found, err := s.db.engine.Find(ctx, at...)
			if err != nil {
				return out, err
			}
			for i := range found {
				b, err := readBatch(found[i])
				switch {
				case errors.Is(err, models.ErrNotFound): // it is being stored, or was abandoned
					continue
				case err != nil:
					b = models.Batch{ID: ids[i], User: user, Damaged: true}
				}
				out = append(out, b)
			}
			before = ids[len(ids)-1]
		}
		return out, nil
	}, "batches of %s", user)
}

// listed returns IDs of a user's list.
func (s *Store) listed(ctx context.Context, user string, r shapes.Range) ([]models.ID, error) {
	rows, err := s.db.engine.Scan(ctx, &batchList, []byte(user), r)
	ids := make([]models.ID, len(rows))
	for i := range rows {
		if ids[i], err = idOf(rows[i].Key); err != nil {
			return nil, err
		}
	}
	return ids, err
}

// BatchIDs implements models.Store.
func (s *Store) BatchIDs(ctx context.Context, user string, before models.ID, limit int) ([]models.ID, error) {
	return get(ctx, s.db, func() ([]models.ID, error) {
		return s.listed(ctx, user, shapes.Range{To: below(before), Back: true, Limit: limit})
	}, "list of %s", user)
}

// BatchIDsAfter implements models.Store.
func (s *Store) BatchIDsAfter(ctx context.Context, user string, after models.ID, limit int) ([]models.ID, error) {
	return get(ctx, s.db, func() ([]models.ID, error) {
		return s.listed(ctx, user, shapes.Range{From: next(after[:]), Limit: limit})
	}, "list of %s", user)
}

// Recipients implements models.Store. It reads the head, which may be large, only once: the chunks of a batch that
// existed are removed with it.
func (s *Store) Recipients(ctx context.Context, chunk models.ID) ([]models.Recipient, error) {
	return get(ctx, s.db, func() (rs []models.Recipient, err error) {
		batch := chunk.Batch()
		at := []shapes.Address{{Table: &chunks, Part: chunkPart(chunk), Key: number(nil, chunk.ChunkNumber())}}
		if !s.exist.Has(batch) {
			at = append(at, shapes.Address{Table: &heads, Part: batch[:]})
		}
		found, err := s.db.engine.Find(ctx, at...)
		if err != nil {
			return rs, err
		}
		if len(found) > 1 {
			head, err := only(found[1])
			if kind, _ := headKind(&head); err == nil && kind != headStored {
				err = models.ErrNotFound
			}
			if err != nil {
				return rs, err
			}
			s.exist.Add(batch)
		}
		row, err := only(found[0])
		if err == nil {
			rs, err = codec.DecodeRecipients(row.Value)
			err = stored(err)
		}
		return rs, err
	}, "recipients of %s", chunk)
}

// Redact implements models.Store.
func (s *Store) Redact(ctx context.Context, batch models.ID) error {
	return s.db.call(ctx, func() error {
		rows, err := s.db.engine.Find(ctx, shapes.Address{Table: &heads, Part: batch[:]})
		if err != nil {
			return err
		}
		b, err := readBatch(rows[0])
		if err != nil {
			return err
		}
		if err := s.removeContent(ctx, batch, b.Chunks, fenceAll, 0); err != nil {
			return err
		}
		b.Redact()
		return s.db.engine.Put(ctx, headRow(batch, redactedHead, headStored, codec.EncodeBatch(&b)))
	}, "redact %s", batch)
}

func pieceKey(sha256 string, n int) []byte { return number(text(nil, sha256), n) }

// PutPiece implements models.Store.
func (s *Store) PutPiece(ctx context.Context, batch models.ID, sha256 string, n int, piece []byte) error {
	return s.db.call(ctx, func() error {
		return s.db.engine.Put(ctx, shapes.Put{Table: &pieces, Row: shapes.Row{Part: batch[:], Key: pieceKey(sha256, n),
			Version: 1, Value: codec.Pack(piece)}})
	}, "put piece %d of %s", n, batch)
}

func decodePiece(row *shapes.Row) ([]byte, error) {
	piece, err := codec.Unpack(row.Value)
	return piece, stored(err)
}

// Piece implements models.Store.
func (s *Store) Piece(ctx context.Context, batch models.ID, sha256 string, n int) ([]byte, error) {
	return get(ctx, s.db, func() ([]byte, error) {
		return decodedRow(ctx, s.db, &pieces, batch[:], pieceKey(sha256, n), decodePiece)
	}, "piece %d of %s", n, batch)
}

// Purge implements models.Store. The number of chunks stays in the head until all else is removed, so that a repeat
// reaches all of them.
func (s *Store) Purge(ctx context.Context, user string, batch models.ID) error {
	return s.db.call(ctx, func() error {
		count, err := s.chunksOf(ctx, batch)
		if err != nil {
			return err
		}
		if count > 0 {
			if err := s.db.engine.Put(ctx, headRow(batch, purgedHead, headPurged, number(nil, count))); err != nil {
				return err
			}
		}
		if err := s.removeContent(ctx, batch, count, 0, 0); err != nil {
			return err
		}
		first, last := batch.Chunk(0), batch.Chunk(models.MaxChunks-1)
		if err := s.db.engine.RemoveRange(ctx, &summaries, []byte(user), first[:], next(last[:])); err != nil {
			return err
		}
		var parts [][]byte
		for n := range max(count, 1) {
			id := batch.Chunk(n)
			parts = append(parts, id[:])
		}
		for _, t := range []*shapes.Table{&published, &facts, &ledgers} {
			for some := range slices.Chunk(parts, pageRows) {
				if err := s.db.engine.RemoveParts(ctx, t, 0, 0, some...); err != nil {
					return err
				}
			}
		}
		if err := s.db.engine.RemoveParts(ctx, &heads, 0, 0, batch[:]); err != nil {
			return err
		}
		return s.db.engine.RemoveRows(ctx, shapes.Address{Table: &batchList, Part: []byte(user), Key: batch[:]})
	}, "purge %s", batch)
}

// chunksOf returns how many chunks a batch has that may be purged in part, or 0 if there is no batch.
func (s *Store) chunksOf(ctx context.Context, batch models.ID) (int, error) {
	row, err := s.db.row(ctx, &heads, batch[:], nil)
	if errors.Is(err, models.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	switch kind, value := headKind(&row); kind {
	case headStored:
		if b, err := codec.DecodeBatch(value); err == nil {
			return b.Chunks, nil
		}
		return models.MaxChunks, nil // it is damaged: all that it could have
	case headPurged:
		if len(value) == 4 {
			return int(value[0])<<24 | int(value[1])<<16 | int(value[2])<<8 | int(value[3]), nil
		}
	}
	return 1, nil
}
