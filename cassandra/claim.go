package cassandra

import (
	"context"
	"errors"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// Claim implements models.Store. A claim ends by its TTL, on the servers'
// clocks. An answer belongs to the ID that it was stored for.
func (s *Store) Claim(
	ctx context.Context, key string, c models.Claim, ttl time.Duration,
) (stored models.Claim, err error) {
	err = s.call(ctx, func() error {
		applied, row, err := s.cas(ctx, deciding,
			`INSERT INTO claims (key, id, hash, at) VALUES (?, ?, ?, ?) IF NOT EXISTS USING TTL ?`,
			key, c.ID[:], c.Hash, c.At.UnixMilli(), seconds(ttl))
		if err != nil {
			return err
		}
		if applied {
			stored = models.Claim{ID: c.ID, Hash: c.Hash, At: timeOf(c.At.UnixMilli())}
			return nil
		}
		var there claimRow
		there.id, _ = row["id"].([]byte)
		there.hash, _ = row["hash"].(string)
		there.at, _ = row["at"].(int64)
		stored, err = s.answered(ctx, key, there)
		return err
	}, "claim")
	return stored, err
}

// Claimed implements models.Store.
func (s *Store) Claimed(ctx context.Context, key string) (stored models.Claim, err error) {
	err = s.call(ctx, func() error {
		row, err := single(ctx, &s.runner, func(scan scanner) (r claimRow, err error) {
			err = scan(&r.id, &r.hash, &r.at)
			return r, err
		}, `SELECT id, hash, at FROM claims WHERE key = ?`, key)
		if err == nil {
			stored, err = s.answered(ctx, key, row)
		}
		return err
	}, "claimed")
	return stored, err
}

// claimRow is a row of claims.
type claimRow struct {
	id   []byte
	hash string
	at   int64
}

// answerKey returns the key of the answer to a claim. Each claim has its own, so
// that no answer has to replace another.
func answerKey(key string, id models.ID) string { return key + "/" + id.String() }

// answered returns the claim of a row, with its answer if there is one.
func (s *Store) answered(ctx context.Context, key string, row claimRow) (models.Claim, error) {
	id, err := idOf(row.id)
	if err != nil {
		return models.Claim{}, err
	}
	c := models.Claim{ID: id, Hash: row.hash, At: timeOf(row.at)}
	answer, err := single(ctx, &s.runner, column[[]byte], `SELECT value FROM claim_answers WHERE key = ?`,
		answerKey(key, id))
	switch {
	case errors.Is(err, models.ErrNotFound):
		return c, nil
	case err != nil:
		return models.Claim{}, err
	}
	c.Answer = append([]byte{}, answer...) // not nil, even if it is empty
	return c, nil
}

// PutAnswer implements models.Store.
func (s *Store) PutAnswer(ctx context.Context, key string, id models.ID, answer []byte, ttl time.Duration) error {
	return s.call(ctx, func() error {
		return s.exec(ctx, plain, `INSERT INTO claim_answers (key, value) VALUES (?, ?) USING TTL ?`,
			answerKey(key, id), append([]byte{}, answer...), seconds(ttl))
	}, "answer to a claim")
}

// Unclaim implements models.Store.
func (s *Store) Unclaim(ctx context.Context, key string, id models.ID) error {
	return s.call(ctx, func() error {
		_, _, err := s.cas(ctx, plain, `DELETE FROM claims WHERE key = ? IF id = ?`, key, id[:])
		return err
	}, "unclaim")
}
