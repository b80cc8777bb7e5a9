package cassandra

import (
	"context"
	"errors"
	"fmt"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
)

// How it is decided whether a batch exists:
//
// A batch of several chunks exists when batch_commits says so. PutBatch and
// AbandonBatch decide there by compare-and-set.
//
// A batch of one chunk, the most common, exists with its row. It needs no
// compare-and-set unless doubt is set. AbandonBatch sets doubt and then reads the
// head. PutBatch writes the head and then reads doubt. Each reads after its own
// write, so at least one of them sees the other, and then decides by
// compare-and-set. PutBatch and readers decide that the batch exists. AbandonBatch
// decides that it is abandoned if it saw no head, and that it exists otherwise.
// So accepting one recipient costs only one read more, and a head that is written
// after its batch was abandoned, even hours later, does not count.

// The states of batch_commits.
const (
	committed = "committed"
	abandoned = "abandoned"
)

// The timestamps of what changes in the tables chunks and pieces after a batch was accepted. Erased
// recipients have those from erasedStamp on: see Erase.
const (
	erasedStamp   = 2
	redactedStamp = 5000
	purgedStamp   = 6000
)

// decide records a state permanently, unless another is recorded. It returns the
// recorded state.
func (s *Store) decide(ctx context.Context, batch models.ID, state string) (string, error) {
	applied, row, err := s.cas(ctx, deciding, `INSERT INTO batch_commits (batch_id, state) VALUES (?, ?) IF NOT EXISTS`,
		batch[:], state)
	if err != nil {
		return "", err
	}
	if !applied {
		state, _ = row["state"].(string)
	}
	if state == committed {
		s.exists.add(batch)
	}
	return state, nil
}

// PutChunk implements models.Store. A chunk that is written after its batch was
// abandoned is never visible.
func (s *Store) PutChunk(ctx context.Context, c models.Chunk) error {
	return s.call(ctx, func() error {
		if c.ID.ChunkNumber() == 0 {
			return fmt.Errorf("%w: the first chunk comes with its batch", models.ErrInvalid)
		}
		return s.exec(ctx, plain, `INSERT INTO chunks (chunk_id, recipients) VALUES (?, ?) USING TIMESTAMP 1`,
			c.ID[:], codec.EncodeRecipients(c.Recipients))
	}, "put chunk %s", c.ID)
}

// insertHead writes the row of the first chunk.
const insertHead = `INSERT INTO chunks (chunk_id, chunks, head, recipients) VALUES (?, ?, ?, ?) USING TIMESTAMP 1`

// PutBatch implements models.Store. The batch is in the list before it exists, so
// readers of the list check whether it does.
func (s *Store) PutBatch(ctx context.Context, b models.Batch, first models.Chunk) error {
	return s.call(ctx, func() error {
		if first.ID != b.ID || b.ID != b.ID.Batch() {
			return fmt.Errorf("%w: its first chunk is %s", models.ErrInvalid, first.ID)
		}
		if err := s.list(ctx, b.User, b.ID); err != nil {
			return err
		}
		effort := deciding
		if b.Chunks > 1 {
			effort = plain // this write does not make it exist
		}
		err := s.exec(ctx, effort, insertHead,
			b.ID[:], b.Chunks, codec.EncodeBatch(&b), codec.EncodeRecipients(first.Recipients))
		if err != nil {
			return err
		}
		if b.Chunks <= 1 {
			doubt, err := single(ctx, &s.runner, column[bool], `SELECT doubt FROM chunks WHERE chunk_id = ?`, b.ID[:])
			switch {
			case errors.Is(err, models.ErrNotFound): // the row was removed: it was abandoned
				doubt = true
			case err != nil:
				return fmt.Errorf("%w: %w", models.ErrOutcomeUnknown, err)
			}
			if !doubt {
				return nil
			}
		}
		state, err := s.decide(ctx, b.ID, committed)
		if b.Chunks <= 1 && errors.Is(err, models.ErrUnavailable) {
			return fmt.Errorf("%w: %w", models.ErrOutcomeUnknown, err) // AbandonBatch may decide that it exists
		}
		if err == nil && state != committed {
			s.unlist(ctx, b.User, b.ID)
			err = s.clear(ctx, b.ID, b.Chunks)
			if err == nil {
				err = models.ErrNotFound
			}
		}
		return err
	}, "put batch %s", b.ID)
}

// AbandonBatch implements models.Store. Only the head tells how many chunks the batch
// has: the caller may be wrong.
func (s *Store) AbandonBatch(ctx context.Context, batch models.ID, chunks int) (gone bool, err error) {
	err = s.call(ctx, func() error {
		if err := s.exec(ctx, plain, `UPDATE chunks USING TIMESTAMP 1 SET doubt = true WHERE chunk_id = ?`,
			batch[:]); err != nil {
			return err
		}
		h, err := s.head(ctx, batch)
		state := abandoned
		switch {
		case err == nil && h.chunks <= 1:
			state = committed
		case err == nil:
			chunks = max(chunks, h.chunks)
		case !errors.Is(err, models.ErrNotFound):
			return err
		}
		state, err = s.decide(ctx, batch, state)
		if err != nil || state != abandoned {
			return err
		}
		gone = true
		return s.clear(ctx, batch, chunks)
	}, "abandon batch %s", batch)
	return gone && err == nil, err
}

// PutPiece implements models.Store.
func (s *Store) PutPiece(ctx context.Context, batch models.ID, sha256 string, number int, piece []byte) error {
	return s.call(ctx, func() error {
		return s.exec(ctx, plain, `INSERT INTO pieces (batch_id, sha256, number, piece) VALUES (?, ?, ?, ?)
			USING TIMESTAMP 1`, batch[:], sha256, number, codec.Pack(piece))
	}, "put piece %d of %s", number, batch)
}

// Piece implements models.Store.
func (s *Store) Piece(ctx context.Context, batch models.ID, sha256 string, number int) (piece []byte, err error) {
	err = s.call(ctx, func() error {
		raw, err := single(ctx, &s.runner, column[[]byte], `SELECT piece FROM pieces
			WHERE batch_id = ? AND sha256 = ? AND number = ?`, batch[:], sha256, number)
		if err != nil {
			return err
		}
		piece, err = codec.Unpack(raw)
		return damaged(err)
	}, "piece %d of %s", number, batch)
	return piece, err
}

// dropPieces removes the attachments of a batch. The tombstone hides pieces that are written
// later.
func (s *Store) dropPieces(ctx context.Context, batch models.ID) error {
	return s.exec(ctx, plain, `DELETE FROM pieces USING TIMESTAMP ? WHERE batch_id = ?`, redactedStamp, batch[:])
}

// clear removes the rows of an abandoned batch. Doubt stays, and the tombstones hide
// chunks that are written later.
func (s *Store) clear(ctx context.Context, batch models.ID, chunks int) error {
	if err := s.dropPieces(ctx, batch); err != nil {
		return err
	}
	return each(ctx, max(chunks, 1), func(ctx context.Context, n int) error {
		id := batch.Chunk(n)
		return s.exec(ctx, plain, `DELETE chunks, head, recipients FROM chunks USING TIMESTAMP 2 WHERE chunk_id = ?`, id[:])
	})
}

// head is the row of a batch's first chunk.
type head struct {
	chunks int
	doubt  bool
	raw    []byte // of the batch
}

// head reads the row of a batch. The batch may not exist yet. Errors:
// models.ErrNotFound.
func (s *Store) head(ctx context.Context, batch models.ID) (head, error) {
	h, err := single(ctx, &s.runner, func(scan scanner) (h head, err error) {
		err = scan(&h.chunks, &h.doubt, &h.raw)
		return h, err
	}, `SELECT chunks, doubt, head FROM chunks WHERE chunk_id = ?`, batch[:])
	if err == nil && h.raw == nil {
		err = models.ErrNotFound
	}
	return h, err
}

// exist returns nil if a batch whose head was read exists. Errors: models.ErrNotFound.
func (s *Store) exist(ctx context.Context, batch models.ID, chunks int, doubt bool) error {
	switch {
	case chunks > 1:
		return s.isCommitted(ctx, batch)
	case !doubt || s.exists.has(batch):
		return nil
	}
	state, err := s.decide(ctx, batch, committed)
	if errors.Is(err, models.ErrOutcomeUnknown) {
		return fmt.Errorf("%w: %w", models.ErrUnavailable, err) // a read has no outcome
	}
	if err == nil && state != committed {
		err = models.ErrNotFound
	}
	return err
}

// isCommitted returns nil if batch_commits says that a batch exists. A plain read sees
// every commit whose caller was told. Errors: models.ErrNotFound.
func (s *Store) isCommitted(ctx context.Context, batch models.ID) error {
	if s.exists.has(batch) {
		return nil
	}
	state, err := single(ctx, &s.runner, column[string], `SELECT state FROM batch_commits WHERE batch_id = ?`, batch[:])
	if err == nil && state != committed {
		err = models.ErrNotFound
	}
	if err == nil {
		s.exists.add(batch)
	}
	return err
}

// batch reads a batch that exists. Errors: models.ErrNotFound.
func (s *Store) batch(ctx context.Context, id models.ID) (b models.Batch, err error) {
	h, err := s.head(ctx, id)
	if err == nil {
		err = s.exist(ctx, id, h.chunks, h.doubt)
	}
	if err != nil {
		return b, err
	}
	b, err = codec.DecodeBatch(h.raw)
	return b, damaged(err)
}

// Batch implements models.Store.
func (s *Store) Batch(ctx context.Context, id models.ID) (b models.Batch, err error) {
	err = s.call(ctx, func() (err error) {
		b, err = s.batch(ctx, id)
		return err
	}, "batch %s", id)
	return b, err
}

// Recipients implements models.Store.
func (s *Store) Recipients(ctx context.Context, chunk models.ID) (rs []models.Recipient, err error) {
	err = s.call(ctx, func() error {
		type row struct {
			head
			recipients []byte
		}
		if chunk.ChunkNumber() > 0 {
			if err := s.isCommitted(ctx, chunk.Batch()); err != nil {
				return err
			}
		}
		r, err := single(ctx, &s.runner, func(scan scanner) (r row, err error) {
			err = scan(&r.chunks, &r.doubt, &r.recipients)
			return r, err
		}, `SELECT chunks, doubt, recipients FROM chunks WHERE chunk_id = ?`, chunk[:])
		switch {
		case err != nil:
			return err
		case r.recipients == nil:
			return models.ErrNotFound
		case chunk.ChunkNumber() == 0:
			if err := s.exist(ctx, chunk, r.chunks, r.doubt); err != nil {
				return err
			}
		}
		rs, err = codec.DecodeRecipients(r.recipients)
		return damaged(err)
	}, "recipients of %s", chunk)
	return rs, err
}

// Redact implements models.Store. The removal and the head that is written after it have
// the same timestamp.
func (s *Store) Redact(ctx context.Context, batch models.ID) error {
	return s.call(ctx, func() error {
		b, err := s.batch(ctx, batch)
		if err != nil {
			return err
		}
		err = each(ctx, b.Chunks, func(ctx context.Context, n int) error {
			id := batch.Chunk(n)
			return s.exec(ctx, plain, `DELETE recipients FROM chunks USING TIMESTAMP ? WHERE chunk_id = ?`,
				redactedStamp, id[:])
		})
		if err != nil {
			return err
		}
		if err := s.dropPieces(ctx, batch); err != nil {
			return err
		}
		b.Redact()
		return s.exec(ctx, plain, `UPDATE chunks USING TIMESTAMP ? SET head = ? WHERE chunk_id = ?`,
			redactedStamp, codec.EncodeBatch(&b), batch[:])
	}, "redact %s", batch)
}
