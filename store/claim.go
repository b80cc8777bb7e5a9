package store

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store/shapes"
)

// Rows of all these end by the clock of the servers. Each claim has an answer of its own, so that no answer has to
// replace another.
var (
	claims     = shapes.Table{Name: "claims", Decided: true, Brief: 24 * time.Hour} // key
	answers    = shapes.Table{Name: "claim_answers", Brief: 24 * time.Hour}         // key, ID of the claim
	leases     = shapes.Table{Name: "leases", Decided: true, Brief: 24 * time.Hour} // name → holder
	transients = shapes.Table{Name: "transients", Brief: removalKeep}               // kind, name
)

// Claim implements models.Store.
func (s *Store) Claim(
	ctx context.Context, key string, c models.Claim, ttl time.Duration,
) (models.Claim, error) {
	return get(ctx, s.db, func() (found models.Claim, err error) {
		row := shapes.Row{Part: []byte(key), Version: 1, TTL: ttl,
			Value: append(append(c.ID[:], ms(c.At)...), c.Hash...)}
		refused, there, err := s.db.swap(ctx, shapes.Swap{Put: shapes.Put{Table: &claims, Row: row}})
		if err != nil {
			return found, err
		}
		if !refused {
			return c, nil // a new claim has no answer
		}
		return s.answered(ctx, key, &there)
	}, "claim")
}

// Claimed implements models.Store.
func (s *Store) Claimed(ctx context.Context, key string) (models.Claim, error) {
	return get(ctx, s.db, func() (models.Claim, error) {
		row, err := s.db.row(ctx, &claims, []byte(key), nil)
		if err != nil {
			return models.Claim{}, err
		}
		return s.answered(ctx, key, &row)
	}, "claimed")
}

// answered returns the claim of a row, with its answer if there is one.
func (s *Store) answered(ctx context.Context, key string, row *shapes.Row) (c models.Claim, err error) {
	const fixed = len(c.ID) + 8
	if len(row.Value) < fixed {
		return c, stored(errors.New("a claim is cut off"))
	}
	copy(c.ID[:], row.Value)
	c.At, c.Hash = timeOf(row.Value[len(c.ID):fixed]), string(row.Value[fixed:])
	answer, err := s.db.row(ctx, &answers, []byte(key), c.ID[:])
	switch {
	case errors.Is(err, models.ErrNotFound):
		return c, nil
	case err != nil:
		return models.Claim{}, err
	}
	c.Answer = append([]byte{}, answer.Value...) // not nil, even if it is empty
	return c, nil
}

// PutAnswer implements models.Store.
func (s *Store) PutAnswer(ctx context.Context, key string, id models.ID, answer []byte, ttl time.Duration) error {
	return s.db.call(ctx, func() error {
		return s.db.engine.Put(ctx, shapes.Put{Table: &answers, Row: shapes.Row{Part: []byte(key), Key: id[:], Version: 1,
			Value: answer, TTL: ttl}})
	}, "answer to a claim")
}

// Unclaim implements models.Store.
func (s *Store) Unclaim(ctx context.Context, key string, id models.ID) error {
	return s.db.call(ctx, func() error {
		row, err := s.db.row(ctx, &claims, []byte(key), nil)
		if errors.Is(err, models.ErrNotFound) || err == nil && !bytes.HasPrefix(row.Value, id[:]) {
			return nil
		}
		if err != nil {
			return err
		}
		_, _, err = s.db.swap(ctx, shapes.Swap{Put: shapes.Put{Table: &claims, Row: row}, Was: row.Version, Remove: true})
		return err
	}, "unclaim")
}

// Lease implements models.Store.
func (s *Store) Lease(ctx context.Context, name, holder string, ttl time.Duration) (bool, error) {
	return get(ctx, s.db, func() (held bool, err error) {
		if l, ok := s.db.engine.(shapes.Leaser); ok {
			held, err = l.Lease(ctx, name, holder, ttl)
			return held, err
		}
		for {
			row, err := s.db.row(ctx, &leases, []byte(name), nil)
			if err != nil && !errors.Is(err, models.ErrNotFound) {
				return held, err
			}
			if row.Version > 0 && string(row.Value) != holder {
				return held, nil
			}
			if row.Version == 0 && ttl <= 0 {
				return held, nil
			}
			was := row.Version
			row = shapes.Row{Part: []byte(name), Version: was + 1, Value: []byte(holder), TTL: ttl}
			refused, _, err := s.db.swap(ctx, shapes.Swap{Put: shapes.Put{Table: &leases, Row: row}, Was: was, Remove: ttl <= 0})
			if err != nil || !refused {
				held = err == nil && ttl > 0
				return held, err
			}
		}
	}, "lease %s", name)
}

// removalKeep is how long the removal of a transient value is kept at least. It must outlast a write that timed out.
const removalKeep = 24 * time.Hour

// PutTransient implements models.Store. The new value has a higher version than the value that is there, whatever
// clocks say. A removal is a row that is hidden, for as long as what it removes would have lasted.
func (s *Store) PutTransient(ctx context.Context, kind, name string, value []byte, ttl time.Duration) error {
	return s.db.call(ctx, func() error {
		at := shapes.Address{Table: &transients, Part: []byte(kind), Key: text(nil, name)}
		found, err := s.db.engine.Find(ctx, at)
		if err != nil {
			return err
		}
		version, err := s.db.stamp(ctx)
		if err != nil {
			return err
		}
		row := shapes.Row{Part: at.Part, Key: at.Key, Version: version, Value: value, TTL: ttl}
		var there shapes.Row
		if len(found[0]) > 0 {
			there = found[0][0]
			row.Version = max(row.Version, there.Version+1)
		}
		if ttl <= 0 {
			row.Value, row.Gone, row.TTL = nil, true, max(there.TTL, removalKeep)
		}
		return s.db.engine.Put(ctx, shapes.Put{Table: &transients, Row: row})
	}, "put %s value of %s", kind, name)
}

// Transients implements models.Store.
func (s *Store) Transients(ctx context.Context, kind string) (map[string][]byte, error) {
	return get(ctx, s.db, func() (out map[string][]byte, err error) {
		rows, err := s.db.engine.Find(ctx, shapes.Address{Table: &transients, Part: []byte(kind)})
		if err != nil {
			return out, err
		}
		out = make(map[string][]byte, len(rows[0]))
		for _, row := range rows[0] {
			if row.Gone {
				continue
			}
			name, _, err := cutText(row.Key)
			if err != nil {
				return out, err
			}
			out[name] = append([]byte{}, row.Value...)
		}
		return out, nil
	}, "read %s values", kind)
}

// Transient implements models.Store.
func (s *Store) Transient(ctx context.Context, kind, name string) ([]byte, error) {
	return get(ctx, s.db, func() (out []byte, err error) {
		row, err := s.db.row(ctx, &transients, []byte(kind), text(nil, name))
		out = append([]byte{}, row.Value...)
		return out, err
	}, "read %s value of %s", kind, name)
}
