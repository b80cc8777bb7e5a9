package cassandra

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// nameParts is how many partitions the names of users are spread over.
const nameParts = 16

// namePart returns the partition of a name.
func namePart(name string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name)) // never fails
	return int(h.Sum32() % nameParts)
}

// CreateUser implements models.Store. The ID is written first and counts only when it
// has got the name.
func (s *Store) CreateUser(ctx context.Context, u models.User) error {
	return s.call(ctx, func() error {
		if u.ID == "" || u.Name == "" {
			return fmt.Errorf("%w: id and name are needed", models.ErrInvalid)
		}
		if err := s.name(ctx, u); err != nil {
			return err
		}
		applied, row, err := s.cas(ctx, plain,
			`INSERT INTO users_by_name (part, name, id, created) VALUES (?, ?, ?, ?) IF NOT EXISTS`,
			namePart(u.Name), u.Name, u.ID, u.Created.UnixMilli())
		if err == nil && !applied && row["id"] != u.ID {
			err = models.ErrExists
		}
		return err
	}, "create user %s", u.Name)
}

// name writes the name of a user's ID. It replaces a name that the ID tried to get and
// did not: the timestamp counts the names. Errors: models.ErrExists (the ID has
// another name).
func (s *Store) name(ctx context.Context, u models.User) error {
	type try struct {
		name  string
		stamp int64
	}
	last, err := single(ctx, &s.runner, func(scan scanner) (t try, err error) {
		err = scan(&t.name, &t.stamp)
		return t, err
	}, `SELECT name, WRITETIME(name) FROM users WHERE id = ?`, u.ID)
	switch {
	case errors.Is(err, models.ErrNotFound):
	case err != nil:
		return err
	case last.name == u.Name:
		return nil
	default:
		switch other, err := s.userByName(ctx, last.name); {
		case err == nil && other.ID == u.ID:
			return models.ErrExists
		case err != nil && !errors.Is(err, models.ErrNotFound):
			return err
		}
	}
	return s.exec(ctx, plain, `INSERT INTO users (id, name) VALUES (?, ?) USING TIMESTAMP ?`, u.ID, u.Name, last.stamp+1)
}

func readUser(scan scanner) (u models.User, err error) {
	var created int64
	err = scan(&u.ID, &u.Name, &created)
	u.Created = timeOf(created)
	return u, err
}

func (s *Store) userByName(ctx context.Context, name string) (models.User, error) {
	return single(ctx, &s.runner, readUser, `SELECT id, name, created FROM users_by_name WHERE part = ? AND name = ?`,
		namePart(name), name)
}

func (s *Store) user(ctx context.Context, id string) (models.User, error) {
	name, err := single(ctx, &s.runner, column[string], `SELECT name FROM users WHERE id = ?`, id)
	if err != nil {
		return models.User{}, err
	}
	u, err := s.userByName(ctx, name)
	if err == nil && u.ID != id { // it did not get the name
		return models.User{}, models.ErrNotFound
	}
	return u, err
}

// UserByName implements models.Store.
func (s *Store) UserByName(ctx context.Context, name string) (u models.User, err error) {
	err = s.call(ctx, func() (err error) {
		u, err = s.userByName(ctx, name)
		return err
	}, "user %s", name)
	return u, err
}

// User implements models.Store.
func (s *Store) User(ctx context.Context, id string) (u models.User, err error) {
	err = s.call(ctx, func() (err error) {
		u, err = s.user(ctx, id)
		return err
	}, "user %s", id)
	return u, err
}

// Users implements models.Store.
func (s *Store) Users(ctx context.Context) (us []models.User, err error) {
	err = s.call(ctx, func() error {
		var parts [nameParts][]models.User
		err := each(ctx, nameParts, func(ctx context.Context, i int) (err error) {
			parts[i], err = query(ctx, &s.runner, readUser, `SELECT id, name, created FROM users_by_name WHERE part = ?`, i)
			return err
		})
		us = slices.Concat(parts[:]...)
		slices.SortFunc(us, func(a, b models.User) int { return cmp.Compare(a.Name, b.Name) })
		return err
	}, "users")
	return us, err
}

// timeOf reverses time.Time.UnixMilli. 0 is the zero time.
func timeOf(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

// ceilMilli returns the first millisecond that is not before t.
func ceilMilli(t time.Time) int64 {
	ms := t.UnixMilli()
	if t.After(time.UnixMilli(ms)) {
		ms++
	}
	return ms
}

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
