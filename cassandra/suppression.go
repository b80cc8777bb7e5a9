package cassandra

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
)

const (
	// suppressionParts is the number of partitions of a suppression list. It must never
	// change.
	suppressionParts = 16
	// additionPart is the number of additions in one partition. It must never change.
	additionPart = 500
)

// suppressionPart returns the partition of an address. Partitions are in the order of
// hashes.
func suppressionPart(h models.AddressHash) int { return int(h[0]) * suppressionParts / 256 }

// PutSuppressions implements models.Store. The time of an entry is the timestamp of its
// row, so that an older one changes nothing.
func (s *Store) PutSuppressions(ctx context.Context, list string, es ...models.Suppression) error {
	return s.call(ctx, func() error {
		rows, parts := make([]row, len(es)), make([]int, len(es))
		for i := range es {
			e := &es[i]
			value := codec.EncodeSuppression(e)
			parts[i] = suppressionPart(e.Hash)
			rows[i] = row{`INSERT INTO suppressions (list, part, hash, category, reason, value)
				VALUES (?, ?, ?, ?, ?, ?) USING TIMESTAMP ?`,
				[]any{list, parts[i], e.Hash[:], e.Category, string(e.Reason), value, e.At.UnixMicro()}, len(value) + 100}
		}
		return put(ctx, s, parts, rows)
	}, "put suppressions")
}

// SuppressionsOf implements models.Store.
func (s *Store) SuppressionsOf(
	ctx context.Context, list string, hashes ...models.AddressHash,
) (out []models.Suppression, err error) {
	parts := make([][][]byte, suppressionParts)
	for _, h := range hashes {
		p := suppressionPart(h)
		parts[p] = append(parts[p], h[:])
	}
	type group struct {
		part   int
		hashes [][]byte
	}
	var groups []group
	for p, hashes := range parts {
		slices.SortFunc(hashes, bytes.Compare)
		for some := range slices.Chunk(slices.CompactFunc(hashes, bytes.Equal), keysAtOnce) {
			groups = append(groups, group{p, some})
		}
	}
	found := make([][]models.Suppression, len(groups))
	err = s.call(ctx, func() error {
		return each(ctx, len(groups), func(ctx context.Context, i int) (err error) {
			found[i], err = query(ctx, &s.runner, suppression,
				`SELECT hash, value FROM suppressions WHERE list = ? AND part = ? AND hash IN ?`,
				list, groups[i].part, groups[i].hashes)
			return err
		})
	}, "read suppressions of addresses")
	if err != nil {
		return nil, err
	}
	return slices.Concat(found...), nil
}

// suppression reads a row of suppressions.
func suppression(scan scanner) (e models.Suppression, err error) {
	var hash, raw []byte
	if err := scan(&hash, &raw); err != nil {
		return e, err
	}
	e, err = codec.DecodeSuppression(hash, raw)
	return e, damaged(err)
}

// Suppressions implements models.Store. Short lists have few rows in each partition, so
// that all partitions after the first are read together.
func (s *Store) Suppressions(
	ctx context.Context, list string, after models.SuppressionKey, limit int,
) (out []models.Suppression, err error) {
	if limit <= 0 {
		return nil, nil
	}
	err = s.call(ctx, func() error {
		first := suppressionPart(after.Hash)
		parts := make([][]models.Suppression, suppressionParts)
		read := func(ctx context.Context, part int) (err error) {
			parts[part], err = query(ctx, &s.runner, suppression, `SELECT hash, value FROM suppressions
				WHERE list = ? AND part = ? AND (hash, category, reason) > (?, ?, ?) LIMIT ?`,
				list, part, after.Hash[:], after.Category, string(after.Reason), limit)
			return err
		}
		if err := read(ctx, first); err != nil {
			return err
		}
		if rest := suppressionParts - first - 1; rest > 0 && len(parts[first]) < limit {
			if err := each(ctx, rest, func(ctx context.Context, i int) error { return read(ctx, first+1+i) }); err != nil {
				return err
			}
		}
		out = slices.Concat(parts...)
		out = out[:min(len(out), limit)]
		return nil
	}, "read suppressions")
	if err != nil {
		return nil, err
	}
	return out, nil
}

// AppendAddition implements models.Store. A plain read may decide whether the number before
// is taken, because a taken number never becomes free again.
func (s *Store) AppendAddition(ctx context.Context, list string, a models.SuppressionAddition) error {
	return s.call(ctx, func() error {
		if a.Number < 1 {
			return models.ErrInvalid
		}
		if before := a.Number - 1; before > 0 {
			_, err := single(ctx, &s.runner, column[int],
				`SELECT number FROM suppression_additions WHERE list = ? AND part = ? AND number = ?`,
				list, before/additionPart, before)
			if errors.Is(err, models.ErrNotFound) {
				return fmt.Errorf("%w: there is no addition %d", models.ErrInvalid, before)
			} else if err != nil {
				return err
			}
		}
		applied, row, err := s.cas(ctx, settling,
			`INSERT INTO suppression_additions (list, part, number, holder, marks) VALUES (?, ?, ?, ?, ?) IF NOT EXISTS`,
			list, a.Number/additionPart, a.Number, a.Token[:], codec.EncodeMarks(a.Marks))
		if err != nil || applied {
			return err
		}
		if holder, _ := row["holder"].([]byte); bytes.Equal(holder, a.Token[:]) {
			return nil
		}
		return models.ErrExists
	}, "append addition %d of suppressions", a.Number)
}

// Additions implements models.Store.
func (s *Store) Additions(
	ctx context.Context, list string, after, limit int,
) (out []models.SuppressionAddition, err error) {
	err = s.call(ctx, func() error {
		for last := max(after, 0); len(out) < limit; last = out[len(out)-1].Number {
			found, err := query(ctx, &s.runner, func(scan scanner) (a models.SuppressionAddition, err error) {
				var holder, raw []byte
				if err := scan(&a.Number, &holder, &raw); err != nil {
					return a, err
				}
				copy(a.Token[:], holder)
				a.Marks, err = codec.DecodeMarks(raw)
				return a, damaged(err)
			}, `SELECT number, holder, marks FROM suppression_additions WHERE list = ? AND part = ? AND number > ? LIMIT ?`,
				list, (last+1)/additionPart, last, limit-len(out))
			if err != nil || len(found) == 0 {
				return err
			}
			out = append(out, found...)
		}
		return nil
	}, "read additions of suppressions after %d", after)
	if err != nil {
		return nil, err
	}
	return out, nil
}
