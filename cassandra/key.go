package cassandra

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// CreateKey implements models.Store. It never touches a revocation.
func (s *Store) CreateKey(ctx context.Context, k models.Key) error {
	return s.call(ctx, func() error {
		created := k.Created.UnixMilli()
		err := s.exec(ctx, plain, `INSERT INTO keys_by_user (owner, id, hash, name, created, options)
			VALUES (?, ?, ?, ?, ?, ?)`,
			k.User, k.ID, k.Hash, k.Name, created, k.KeyOptions.Encode())
		if err != nil {
			return err
		}
		if !k.Revoked.IsZero() { // before it can be found by its hash
			if err := s.revoke(ctx, k.User, k.ID, k.Hash, k.Revoked); err != nil {
				return err
			}
		}
		return s.exec(ctx, plain, `INSERT INTO keys_by_hash (hash, owner, id, name, created, options)
			VALUES (?, ?, ?, ?, ?, ?)`,
			k.Hash, k.User, k.ID, k.Name, created, k.KeyOptions.Encode())
	}, "create key %s", k.ID)
}

func readKey(scan scanner) (k models.Key, err error) {
	var (
		created, revoked int64
		options          string
	)
	if err := scan(&k.Hash, &k.User, &k.ID, &k.Name, &created, &revoked, &options); err != nil {
		return k, err
	}
	k.Created, k.Revoked = timeOf(created), timeOf(revoked)
	k.KeyOptions, err = models.DecodeKeyOptions(options)
	return k, damaged(err)
}

// KeyByHash implements models.Store.
func (s *Store) KeyByHash(ctx context.Context, hash string) (k models.Key, err error) {
	err = s.call(ctx, func() (err error) {
		k, err = single(ctx, &s.runner, readKey,
			`SELECT hash, owner, id, name, created, revoked, options FROM keys_by_hash WHERE hash = ?`, hash)
		if err == nil && k.ID == "" { // it was revoked and never created
			err = models.ErrNotFound
		}
		return err
	}, "key by hash")
	return k, err
}

// Keys implements models.Store.
func (s *Store) Keys(ctx context.Context, user string) (ks []models.Key, err error) {
	err = s.call(ctx, func() (err error) {
		ks, err = query(ctx, &s.runner, readKey,
			`SELECT hash, owner, id, name, created, revoked, options FROM keys_by_user WHERE owner = ?`, user)
		slices.SortFunc(ks, func(a, b models.Key) int {
			return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.ID, b.ID))
		})
		return err
	}, "keys of %s", user)
	return ks, err
}

// RevokeKey implements models.Store.
func (s *Store) RevokeKey(ctx context.Context, user, key string, at time.Time) error {
	return s.call(ctx, func() error {
		hash, err := single(ctx, &s.runner, column[string], `SELECT hash FROM keys_by_user WHERE owner = ? AND id = ?`, user,
			key)
		if err != nil {
			return err
		}
		return s.revoke(ctx, user, key, hash, at)
	}, "revoke key %s", key)
}

// revoke decides when a key was revoked and writes that beside the key. Later calls
// write the same time.
func (s *Store) revoke(ctx context.Context, user, key, hash string, at time.Time) error {
	revoked := at.UnixMilli()
	applied, row, err := s.cas(ctx, plain,
		`INSERT INTO key_revocations (owner, id, revoked) VALUES (?, ?, ?) IF NOT EXISTS`, user, key, revoked)
	if err != nil {
		return err
	}
	if !applied {
		revoked, _ = row["revoked"].(int64)
	}
	err = s.exec(ctx, plain, `UPDATE keys_by_hash USING TIMESTAMP 1 SET revoked = ? WHERE hash = ?`, revoked, hash)
	if err != nil {
		return err
	}
	return s.exec(ctx, plain, `UPDATE keys_by_user USING TIMESTAMP 1 SET revoked = ? WHERE owner = ? AND id = ?`, revoked,
		user, key)
}

// RemoveKey implements models.Store. The list of the user's keys loses it at last, so that
// a repeat finds its hash.
func (s *Store) RemoveKey(ctx context.Context, user, key string) error {
	return s.call(ctx, func() error {
		hashes, err := query(ctx, &s.runner, column[string], `SELECT hash FROM keys_by_user WHERE owner = ? AND id = ?`,
			user, key)
		if err != nil {
			return err
		}
		for _, hash := range hashes {
			if err := s.exec(ctx, plain, `DELETE FROM keys_by_hash WHERE hash = ?`, hash); err != nil {
				return err
			}
		}
		if err := s.exec(ctx, plain, `DELETE FROM key_revocations WHERE owner = ? AND id = ?`, user, key); err != nil {
			return err
		}
		return s.exec(ctx, plain, `DELETE FROM keys_by_user WHERE owner = ? AND id = ?`, user, key)
	}, "remove key %s", key)
}
