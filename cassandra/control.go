package cassandra

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
)

// controlPart is how many lines of the journal one partition holds. It is
// recorded with the keyspace.
const controlPart = 2000

// AppendCommand implements models.Store. A number is free as long as nobody has
// it; that the one before is taken never changes again, so a read may say so.
func (s *Store) AppendCommand(ctx context.Context, c models.Command) error {
	return s.call(ctx, func() error {
		if c.Number < 1 {
			return models.ErrInvalid
		}
		if before := c.Number - 1; before > 0 {
			_, err := single(ctx, &s.runner, column[int], `SELECT number FROM controls WHERE part = ? AND number = ?`, before/controlPart, before)
			if errors.Is(err, models.ErrNotFound) {
				return fmt.Errorf("%w: there is no order %d", models.ErrInvalid, before)
			} else if err != nil {
				return err
			}
		}
		applied, row, err := s.cas(ctx, settling, `INSERT INTO controls (part, number, holder, value) VALUES (?, ?, ?, ?) IF NOT EXISTS`,
			c.Number/controlPart, c.Number, c.Token[:], codec.EncodeCommand(&c))
		if err != nil || applied {
			return err
		}
		if holder, _ := row["holder"].([]byte); bytes.Equal(holder, c.Token[:]) {
			return nil
		}
		value, _ := row["value"].([]byte)
		winner, err := codec.DecodeCommand(value)
		if err != nil {
			return damaged(err)
		}
		return &models.CommandConflictError{Winner: winner}
	}, "append order %d", c.Number)
}

// Controls implements models.Store.
func (s *Store) Commands(ctx context.Context, after, limit int) (out []models.Command, err error) {
	err = s.call(ctx, func() error {
		last := max(after, 0)
		for len(out) < limit {
			part := (last + 1) / controlPart
			found, err := query(ctx, &s.runner, func(scan scanner) (c models.Command, err error) {
				var raw []byte
				if err := scan(&raw); err != nil {
					return c, err
				}
				c, err = codec.DecodeCommand(raw)
				return c, damaged(err)
			}, `SELECT value FROM controls WHERE part = ? AND number > ? LIMIT ?`, part, last, limit-len(out))
			if err != nil || len(found) == 0 {
				return err
			}
			out = append(out, found...)
			last = found[len(found)-1].Number // at the end of a part the next one goes on
		}
		return nil
	}, "orders after %d", after)
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Claim implements models.Store. A claim ends by its TTL, on the servers'
// clocks. An answer counts for the ID it was given to.
func (s *Store) Claim(ctx context.Context, key string, c models.Claim, ttl time.Duration) (there models.Claim, err error) {
	err = s.call(ctx, func() error {
		applied, row, err := s.cas(ctx, deciding, `INSERT INTO claims (key, id, hash, at) VALUES (?, ?, ?, ?) IF NOT EXISTS USING TTL ?`,
			key, c.ID[:], c.Hash, c.At.UnixMilli(), seconds(ttl))
		if err != nil {
			return err
		}
		there = models.Claim{ID: c.ID, Hash: c.Hash, At: timeOf(c.At.UnixMilli())}
		if applied {
			return nil
		}
		raw, _ := row["id"].([]byte)
		hash, _ := row["hash"].(string)
		at, _ := row["at"].(int64)
		there, err = s.answered(ctx, key, raw, hash, at)
		return err
	}, "claim")
	return there, err
}

// Claimed implements models.Store.
func (s *Store) Claimed(ctx context.Context, key string) (there models.Claim, err error) {
	err = s.call(ctx, func() error {
		type row struct {
			id   []byte
			hash string
			at   int64
		}
		r, err := single(ctx, &s.runner, func(scan scanner) (r row, err error) {
			err = scan(&r.id, &r.hash, &r.at)
			return r, err
		}, `SELECT id, hash, at FROM claims WHERE key = ?`, key)
		if err == nil {
			there, err = s.answered(ctx, key, r.id, r.hash, r.at)
		}
		return err
	}, "claimed")
	return there, err
}

// answerKey is what the answer to a claim stands under: each claim's for itself,
// so that none has to replace another.
func answerKey(key string, id models.ID) string { return key + "/" + id.String() }

// answered is a claim with its answer, if there is one. Earlier builds wrote that
// under the key alone, where it may be that of an earlier claim.
func (s *Store) answered(ctx context.Context, key string, raw []byte, hash string, at int64) (models.Claim, error) {
	id, err := idOf(raw)
	if err != nil {
		return models.Claim{}, err
	}
	there := models.Claim{ID: id, Hash: hash, At: timeOf(at)}
	type answer struct{ id, value []byte }
	answers, err := query(ctx, &s.runner, func(scan scanner) (a answer, err error) {
		err = scan(&a.id, &a.value)
		return a, err
	}, `SELECT id, value FROM claim_answers WHERE key IN ?`, []string{answerKey(key, id), key})
	for _, a := range answers {
		if bytes.Equal(a.id, id[:]) {
			there.Answer = append([]byte{}, a.value...)
		}
	}
	return there, err
}

// PutAnswer implements models.Store.
func (s *Store) PutAnswer(ctx context.Context, key string, id models.ID, answer []byte, ttl time.Duration) error {
	return s.call(ctx, func() error {
		return s.exec(ctx, plain, `INSERT INTO claim_answers (key, id, value) VALUES (?, ?, ?) USING TTL ?`, answerKey(key, id), id[:], answer, seconds(ttl))
	}, "answer to a claim")
}

// Unclaim implements models.Store.
func (s *Store) Unclaim(ctx context.Context, key string, id models.ID) error {
	return s.call(ctx, func() error {
		_, _, err := s.cas(ctx, plain, `DELETE FROM claims WHERE key = ? IF id = ?`, key, id[:])
		return err
	}, "unclaim")
}

func hourOf(t time.Time) int64 { return t.Unix() / 3600 }

// PutAddressIndex implements models.Store. That an hour is not empty is written once
// per process.
func (s *Store) PutAddressIndex(ctx context.Context, user string, p models.AddressIndex) error {
	return s.call(ctx, func() error {
		in := ownerBucket{user, hourOf(p.Chunk.Time())}
		if !s.printed.has(in) {
			if err := s.exec(ctx, plain, `INSERT INTO print_hours (owner, hour) VALUES (?, ?)`, in.owner, in.bucket); err != nil {
				return err
			}
			s.printed.add(in)
		}
		return s.exec(ctx, plain, `INSERT INTO prints (owner, hour, chunk_id, marks) VALUES (?, ?, ?, ?)`, in.owner, in.bucket, p.Chunk[:], p.Fingerprints)
	}, "put print of %s", p.Chunk)
}

// Prints implements models.Store.
func (s *Store) AddressIndexes(ctx context.Context, user string, t time.Time) iter.Seq2[models.AddressIndex, error] {
	hour := hourOf(t)
	find := func(ctx context.Context, _ int64, state []byte) ([]models.AddressIndex, []byte, error) {
		return page(ctx, &s.runner, pageRows, state, func(scan scanner) (p models.AddressIndex, err error) {
			var raw []byte
			if err := scan(&raw, &p.Fingerprints); err != nil {
				return p, err
			}
			p.Chunk, err = idOf(raw)
			return p, err
		}, `SELECT chunk_id, marks FROM prints WHERE owner = ? AND hour = ?`, user, hour)
	}
	return cursor(ctx, s, hour, hour, find, "prints of %s", user)
}

// AddressIndexHours implements models.Store.
func (s *Store) AddressIndexHours(ctx context.Context, user string, before time.Time, limit int) (out []time.Time, err error) {
	err = s.call(ctx, func() error {
		hours, err := query(ctx, &s.runner, column[int64], `SELECT hour FROM print_hours WHERE owner = ? AND hour < ? LIMIT ?`,
			user, (before.UnixMilli()+3_599_999)/3_600_000, max(limit, 1))
		for _, h := range hours {
			out = append(out, time.Unix(h*3600, 0).UTC())
		}
		return err
	}, "hours of prints of %s", user)
	return out, err
}

// DropAddressIndexes implements models.Store.
func (s *Store) DropAddressIndexes(ctx context.Context, user string, t time.Time) error {
	return s.call(ctx, func() error {
		if err := s.exec(ctx, plain, `DELETE FROM prints WHERE owner = ? AND hour = ?`, user, hourOf(t)); err != nil {
			return err
		}
		return s.exec(ctx, plain, `DELETE FROM print_hours WHERE owner = ? AND hour = ?`, user, hourOf(t))
	}, "drop prints of %s", user)
}

// Redact implements models.Store. The removal has the timestamp 2, as every
// removal of chunks; so does the head that follows it.
func (s *Store) Redact(ctx context.Context, batch models.ID) error {
	return s.call(ctx, func() error {
		b, err := s.batch(ctx, batch)
		if err != nil {
			return err
		}
		err = each(ctx, b.Chunks, func(ctx context.Context, n int) error {
			id := batch.Chunk(n)
			return s.exec(ctx, plain, `DELETE recipients FROM chunks USING TIMESTAMP 2 WHERE chunk_id = ?`, id[:])
		})
		if err != nil {
			return err
		}
		b.Redact()
		return s.exec(ctx, plain, `UPDATE chunks USING TIMESTAMP 2 SET head = ? WHERE chunk_id = ?`, codec.EncodeBatch(&b), batch[:])
	}, "redact %s", batch)
}
