package sqlite

import (
	"bytes"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
)

// PutChunk implements models.Store. A batch, stored or abandoned, comes after all its
// chunks, so a chunk that comes after it is a repeat.
func (s *Store) PutChunk(ctx context.Context, ch models.Chunk) error {
	if ch.ID.ChunkNumber() == 0 {
		return fmt.Errorf("put chunk %s: %w: the first chunk comes with its batch", ch.ID, models.ErrInvalid)
	}
	raw := codec.EncodeRecipients(ch.Recipients)
	err := s.write(ctx, len(raw), func(c *conn) error {
		_, err := c.exec(`INSERT INTO chunks (id, recipients) SELECT ?, ?
			WHERE NOT EXISTS (SELECT 1 FROM batches WHERE id = ?) ON CONFLICT DO NOTHING`, ch.ID, raw, ch.ID.Batch())
		return err
	})
	if err != nil {
		return fmt.Errorf("put chunk %s: %w", ch.ID, err)
	}
	return nil
}

// PutBatch implements models.Store.
func (s *Store) PutBatch(ctx context.Context, b models.Batch, first models.Chunk) error {
	if first.ID != b.ID || b.ID != b.ID.Batch() {
		return fmt.Errorf("put batch %s: %w: its first chunk is %s", b.ID, models.ErrInvalid, first.ID)
	}
	head, raw := codec.EncodeBatch(&b), codec.EncodeRecipients(first.Recipients)
	err := s.decide(ctx, len(head)+len(raw), func(c *conn) error {
		n, err := c.exec(`INSERT INTO batches (id, head, first) VALUES (?, ?, ?) ON CONFLICT DO NOTHING`, b.ID, head, raw)
		if err != nil {
			return err
		}
		if n == 0 { // a repeat, or the batch was abandoned
			return c.exists(models.ErrNotFound, `SELECT 1 FROM batches WHERE id = ? AND head IS NOT NULL`, b.ID)
		}
		_, err = c.exec(`INSERT INTO user_batches (user, id) VALUES (?, ?) ON CONFLICT DO NOTHING`, b.User, b.ID)
		return err
	})
	if err != nil {
		return fmt.Errorf("put batch %s: %w", b.ID, err)
	}
	return nil
}

// AbandonBatch implements models.Store. It removes all chunks that there are.
func (s *Store) AbandonBatch(ctx context.Context, batch models.ID, _ int) (bool, error) {
	var gone bool
	err := s.decide(ctx, 100, func(c *conn) error {
		gone = false
		n, err := c.exec(`INSERT INTO batches (id) VALUES (?) ON CONFLICT DO NOTHING`, batch)
		if err != nil {
			return err
		}
		if n == 0 {
			err := c.exists(models.ErrNotFound, `SELECT 1 FROM batches WHERE id = ? AND head IS NULL`, batch)
			if errors.Is(err, models.ErrNotFound) { // it was not abandoned, so it exists
				return nil
			} else if err != nil {
				return err
			}
		}
		gone = true
		if _, err := c.exec(`DELETE FROM pieces WHERE batch = ?`, batch); err != nil {
			return err
		}
		_, err = c.exec(`DELETE FROM chunks WHERE id BETWEEN ? AND ?`, batch.Chunk(0), batch.Chunk(models.MaxChunks-1))
		return err
	})
	if err != nil {
		return false, fmt.Errorf("abandon batch %s: %w", batch, err)
	}
	return gone, nil
}

// Batch implements models.Store.
func (s *Store) Batch(ctx context.Context, id models.ID) (models.Batch, error) {
	var bs []models.Batch
	err := s.read(ctx, func(c *conn) error {
		return c.query(`SELECT head FROM batches WHERE id = ? AND head IS NOT NULL`, func(row []driver.Value) error {
			b, err := codec.DecodeBatch(blob(row[0]))
			bs = append(bs, b)
			return stored(err)
		}, id)
	})
	return single("batch "+id.String(), bs, err)
}

// Batches implements models.Store.
func (s *Store) Batches(ctx context.Context, user string, before models.ID, limit int) (bs []models.Batch, err error) {
	end := before[:]
	if before.IsZero() {
		end = bytes.Repeat([]byte{0xff}, len(before))
	}
	err = s.read(ctx, func(c *conn) error {
		return c.query(`SELECT b.head, u.id FROM user_batches u CROSS JOIN batches b ON b.id = u.id
			WHERE u.user = ? AND u.id < ? ORDER BY u.id DESC LIMIT ?`, func(row []driver.Value) error {
			b, err := codec.DecodeBatch(blob(row[0]))
			if err != nil {
				b = models.Batch{ID: models.ID(blob(row[1])), User: user, Damaged: true}
			}
			bs = append(bs, b)
			return nil
		}, user, end, max(limit, 0))
	})
	if err != nil {
		return nil, fmt.Errorf("batches of %s: %w", user, err)
	}
	return bs, nil
}

// Recipients implements models.Store.
func (s *Store) Recipients(ctx context.Context, chunk models.ID) (rs []models.Recipient, err error) {
	query, args := `SELECT first FROM batches WHERE id = ? AND head IS NOT NULL`, []any{chunk}
	if chunk.ChunkNumber() > 0 {
		query = `SELECT recipients FROM chunks WHERE id = ? AND EXISTS (SELECT 1 FROM batches
			WHERE id = ? AND head IS NOT NULL)`
		args = append(args, chunk.Batch())
	}
	var raw []byte
	err = s.read(ctx, func(c *conn) error {
		return c.query(query, func(row []driver.Value) error {
			raw = blob(row[0])
			return nil
		}, args...)
	})
	switch {
	case err == nil && raw == nil:
		err = models.ErrNotFound
	case err == nil:
		rs, err = codec.DecodeRecipients(raw)
		err = stored(err)
	}
	if err != nil {
		return nil, fmt.Errorf("recipients of %s: %w", chunk, err)
	}
	return rs, nil
}

// Redact implements models.Store.
func (s *Store) Redact(ctx context.Context, batch models.ID) error {
	b, err := s.Batch(ctx, batch)
	if err != nil {
		return fmt.Errorf("redact: %w", err)
	}
	for n := 1; n < b.Chunks; n += sweepRows { // a batch of a million is a thousand rows
		from, to := batch.Chunk(n), batch.Chunk(min(n+sweepRows, b.Chunks)-1)
		if err := s.write(ctx, 100*sweepRows, func(c *conn) error {
			_, err := c.exec(`DELETE FROM chunks WHERE id BETWEEN ? AND ?`, from, to)
			return err
		}); err != nil {
			return fmt.Errorf("redact %s: %w", batch, err)
		}
	}
	b.Redact()
	head := codec.EncodeBatch(&b)
	if err := s.write(ctx, len(head), func(c *conn) error {
		if _, err := c.exec(`DELETE FROM pieces WHERE batch = ?`, batch); err != nil {
			return err
		}
		_, err := c.exec(`UPDATE batches SET head = ?, first = NULL WHERE id = ? AND head IS NOT NULL`, head, batch)
		return err
	}); err != nil {
		return fmt.Errorf("redact %s: %w", batch, err)
	}
	return nil
}

// PutPiece implements models.Store. As with PutChunk, a piece that comes after its batch is a
// repeat.
func (s *Store) PutPiece(ctx context.Context, batch models.ID, sha256 string, number int, piece []byte) error {
	raw := codec.Pack(piece)
	err := s.write(ctx, len(raw), func(c *conn) error {
		_, err := c.exec(`INSERT INTO pieces (batch, sha256, number, piece) SELECT ?, ?, ?, ?
			WHERE NOT EXISTS (SELECT 1 FROM batches WHERE id = ?) ON CONFLICT DO NOTHING`, batch, sha256, number, raw, batch)
		return err
	})
	if err != nil {
		return fmt.Errorf("put piece %d of %s: %w", number, batch, err)
	}
	return nil
}

// Piece implements models.Store.
func (s *Store) Piece(ctx context.Context, batch models.ID, sha256 string, number int) ([]byte, error) {
	var all [][]byte
	err := s.read(ctx, func(c *conn) error {
		return c.query(`SELECT piece FROM pieces WHERE batch = ? AND sha256 = ? AND number = ?`,
			func(row []driver.Value) error {
				piece, err := codec.Unpack(blob(row[0]))
				all = append(all, piece)
				return stored(err)
			}, batch, sha256, number)
	})
	return single(fmt.Sprintf("piece %d of %s", number, batch), all, err)
}
