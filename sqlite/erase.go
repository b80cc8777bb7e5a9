package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
)

// Erase implements models.Store. One transaction reads and replaces the values.
func (s *Store) Erase(ctx context.Context, chunk models.ID, address string) (erased models.Set, err error) {
	err = s.write(ctx, 1<<16, func(c *conn) (err error) {
		if erased, err = eraseRecipients(c, chunk, address); err != nil {
			return err
		}
		if err := eraseRows(c, `SELECT number, entry FROM ledger WHERE chunk = ?`,
			`UPDATE ledger SET entry = ? WHERE chunk = ? AND number = ?`, chunk,
			func(_ driver.Value, raw []byte) ([]byte, error) {
				e, err := codec.DecodeEntry(raw)
				if err != nil || !e.Erase(address) {
					return nil, err
				}
				return codec.EncodeEntry(&e), nil
			}); err != nil {
			return err
		}
		return eraseRows(c, `SELECT key, fact FROM facts WHERE chunk = ?`,
			`UPDATE facts SET fact = ? WHERE chunk = ? AND key = ?`, chunk,
			func(key driver.Value, raw []byte) ([]byte, error) {
				f, err := codec.DecodeFact(key.(string), raw)
				if err != nil || !f.Erase(address) {
					return nil, err
				}
				return codec.EncodeFact(&f), nil
			})
	})
	if err == nil && chunk.ChunkNumber() == 0 {
		err = s.eraseRejections(ctx, chunk, address)
	}
	if err != nil {
		return models.Set{}, fmt.Errorf("erase an address from %s: %w", chunk, err)
	}
	return erased, nil
}

// eraseRejections replaces the pieces of the rejections of a batch that name an address.
func (s *Store) eraseRejections(ctx context.Context, batch models.ID, address string) error {
	var numbers []driver.Value
	err := s.read(ctx, func(c *conn) error {
		return c.query(`SELECT number FROM pieces WHERE batch = ? AND sha256 = ?`, func(row []driver.Value) error {
			numbers = append(numbers, row[0])
			return nil
		}, batch, models.RejectedPieces)
	})
	for i := 0; i < len(numbers) && err == nil; i++ {
		err = s.write(ctx, models.PieceSize, func(c *conn) error {
			var changed []byte
			err := c.query(`SELECT piece FROM pieces WHERE batch = ? AND sha256 = ? AND number = ?`,
				func(row []driver.Value) error {
					raw, err := codec.Unpack(blob(row[0]))
					if text := models.EraseText(string(raw), address); text != string(raw) {
						changed = codec.Pack([]byte(text))
					}
					return stored(err)
				}, batch, models.RejectedPieces, numbers[i])
			if err != nil || changed == nil {
				return err
			}
			_, err = c.exec(`UPDATE pieces SET piece = ? WHERE batch = ? AND sha256 = ? AND number = ?`,
				changed, batch, models.RejectedPieces, numbers[i])
			return err
		})
	}
	return err
}

// eraseRecipients erases the recipients of a chunk that have an address.
func eraseRecipients(c *conn, chunk models.ID, address string) (erased models.Set, err error) {
	read, update := `SELECT first FROM batches WHERE id = ?`, `UPDATE batches SET first = ? WHERE id = ?`
	if chunk.ChunkNumber() > 0 {
		read, update = `SELECT recipients FROM chunks WHERE id = ?`, `UPDATE chunks SET recipients = ? WHERE id = ?`
	}
	var raw []byte
	err = c.query(read, func(row []driver.Value) error {
		raw = blob(row[0])
		return nil
	}, chunk)
	if err != nil || raw == nil {
		return erased, err
	}
	rs, err := codec.DecodeRecipients(raw)
	if err != nil {
		return erased, stored(err)
	}
	if erased = models.EraseRecipients(rs, address); erased.Empty() {
		return erased, nil
	}
	_, err = c.exec(update, codec.EncodeRecipients(rs), chunk)
	return erased, err
}

// eraseRows replaces the values of a chunk that change. change returns nil for the others.
func eraseRows(
	c *conn, read, update string, chunk models.ID, change func(key driver.Value, raw []byte) ([]byte, error),
) error {
	type row struct {
		key driver.Value
		raw []byte
	}
	var changed []row
	err := c.query(read, func(r []driver.Value) error {
		raw, err := change(r[0], blob(r[1]))
		if raw != nil {
			changed = append(changed, row{r[0], raw})
		}
		return stored(err)
	}, chunk)
	for i := 0; i < len(changed) && err == nil; i++ {
		_, err = c.exec(update, changed[i].raw, chunk, changed[i].key)
	}
	return err
}

// EraseInbox implements models.Store.
func (s *Store) EraseInbox(ctx context.Context, id models.ID, address string) (changed bool, err error) {
	err = s.write(ctx, 1<<16, func(c *conn) error {
		changed = false
		in := models.Inbox{ID: id}
		err := c.query(`SELECT replay, body FROM inbox WHERE id = ?`, func(row []driver.Value) (err error) {
			in.Posts, err = codec.DecodePosts(row[0].(string), blob(row[1]))
			return stored(err)
		}, id)
		if changed = err == nil && in.Erase(address); !changed {
			return err
		}
		replay, body := codec.EncodePosts(in.Posts)
		_, err = c.exec(`UPDATE inbox SET replay = ?, body = ? WHERE id = ?`, replay, body, id)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("erase an address from post %s: %w", id, err)
	}
	return changed, nil
}
