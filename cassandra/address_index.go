package cassandra

import (
	"bytes"
	"context"
	"iter"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

func hourOf(t time.Time) int64 { return t.Unix() / 3600 }

// PutAddressIndex implements models.Store. That an hour is not empty is written
// once per process.
func (s *Store) PutAddressIndex(ctx context.Context, user string, p models.AddressIndex) error {
	return s.call(ctx, func() error {
		in := ownerBucket{user, hourOf(p.Chunk.Time())}
		if !s.indexedHours.has(in) {
			err := s.exec(ctx, plain, `INSERT INTO address_index_hours (owner, hour) VALUES (?, ?)`, in.owner, in.bucket)
			if err != nil {
				return err
			}
			s.indexedHours.add(in)
		}
		return s.exec(ctx, plain, `INSERT INTO address_index (owner, hour, chunk_id, fingerprints) VALUES (?, ?, ?, ?)`,
			in.owner, in.bucket, p.Chunk[:], p.Fingerprints)
	}, "put address index of %s", p.Chunk)
}

// AddressIndexes implements models.Store.
func (s *Store) AddressIndexes(
	ctx context.Context, user string, t time.Time, before models.ID,
) iter.Seq2[models.AddressIndex, error] {
	hour := hourOf(t)
	if before.IsZero() {
		copy(before[:], bytes.Repeat([]byte{0xff}, len(before)))
	}
	find := func(ctx context.Context, _ int64, state []byte) ([]models.AddressIndex, []byte, error) {
		return page(ctx, pageRequest{&s.runner, pageRows, state}, func(scan scanner) (p models.AddressIndex, err error) {
			var raw []byte
			if err := scan(&raw, &p.Fingerprints); err != nil {
				return p, err
			}
			p.Chunk, err = idOf(raw)
			return p, err
		}, `SELECT chunk_id, fingerprints FROM address_index WHERE owner = ? AND hour = ? AND chunk_id < ?`,
			user, hour, before[:])
	}
	return cursor(ctx, s, partitions{hour, hour}, find, "address index of "+user)
}

// AddressIndexHours implements models.Store.
func (s *Store) AddressIndexHours(
	ctx context.Context, user string, before time.Time, limit int,
) (out []time.Time, err error) {
	err = s.call(ctx, func() error {
		hours, err := query(ctx, &s.runner, column[int64],
			`SELECT hour FROM address_index_hours WHERE owner = ? AND hour < ? LIMIT ?`,
			user, (before.UnixMilli()+3_599_999)/3_600_000, max(limit, 1))
		for _, h := range hours {
			out = append(out, time.Unix(h*3600, 0).UTC())
		}
		return err
	}, "hours of the address index of %s", user)
	return out, err
}

// DropAddressIndexes implements models.Store.
func (s *Store) DropAddressIndexes(ctx context.Context, user string, t time.Time) error {
	return s.call(ctx, func() error {
		err := s.exec(ctx, plain, `DELETE FROM address_index WHERE owner = ? AND hour = ?`, user, hourOf(t))
		if err != nil {
			return err
		}
		return s.exec(ctx, plain, `DELETE FROM address_index_hours WHERE owner = ? AND hour = ?`, user, hourOf(t))
	}, "drop address index of %s", user)
}
