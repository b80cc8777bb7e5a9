package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
	"github.com/safedelivr/safedelivr/store/shapes"
)

// A user's name is decided by compare-and-set in userNames, one partition that can be listed. A row of users counts
// only if the name that it has belongs to the same user. The rows of a key are version 1, and version 2 once it is
// revoked: userKeys decides the first revocation, which is then copied to keys.
var (
	users     = shapes.Table{Name: "users"}                     // ID → name
	userNames = shapes.Table{Name: "user_names", Decided: true} // name → user
	keys      = shapes.Table{Name: "keys"}                      // hash → key
	userKeys  = shapes.Table{Name: "user_keys", Decided: true}  // user, ID of the key → key
)

// allNames is the partition of userNames.
var allNames = []byte("names")

// CreateUser implements models.Store.
func (s *Store) CreateUser(ctx context.Context, u models.User) error {
	return s.db.call(ctx, func() error {
		if u.ID == "" || u.Name == "" {
			return fmt.Errorf("%w: id and name are needed", models.ErrInvalid)
		}
		switch other, err := s.user(ctx, u.ID); {
		case err == nil && other.Name != u.Name:
			return models.ErrExists
		case err != nil && !errors.Is(err, models.ErrNotFound):
			return err
		}
		version, err := s.db.stamp(ctx)
		if err != nil {
			return err
		}
		name := shapes.Put{Table: &userNames, Row: shapes.Row{Part: allNames, Key: text(nil, u.Name), Version: 1,
			Value: codec.PackJSON(u)}}
		id := shapes.Put{Table: &users, Row: shapes.Row{Part: []byte(u.ID), Version: version, Value: []byte(u.Name)}}
		refused, there, err := s.db.swap(ctx, shapes.Swap{Put: name}, id)
		if err != nil || !refused {
			return err
		}
		if owner, err := decodeUser(&there); err != nil || owner.ID != u.ID {
			return cmp.Or(err, models.ErrExists)
		}
		return nil // a repeat
	}, "create user %s", u.Name)
}

func decodeUser(row *shapes.Row) (u models.User, err error) {
	return u, stored(codec.UnpackJSON(row.Value, &u))
}

func (s *Store) userByName(ctx context.Context, name string) (models.User, error) {
	return decodedRow(ctx, s.db, &userNames, allNames, text(nil, name), decodeUser)
}

func (s *Store) user(ctx context.Context, id string) (u models.User, err error) {
	row, err := s.db.row(ctx, &users, []byte(id), nil)
	if err != nil {
		return u, err
	}
	if u, err = s.userByName(ctx, string(row.Value)); err == nil && u.ID != id {
		return models.User{}, models.ErrNotFound
	}
	return u, err
}

// UserByName implements models.Store.
func (s *Store) UserByName(ctx context.Context, name string) (models.User, error) {
	return get(ctx, s.db, func() (models.User, error) { return s.userByName(ctx, name) }, "user %s", name)
}

// User implements models.Store.
func (s *Store) User(ctx context.Context, id string) (models.User, error) {
	return get(ctx, s.db, func() (models.User, error) { return s.user(ctx, id) }, "user %s", id)
}

// Users implements models.Store.
func (s *Store) Users(ctx context.Context) (us []models.User, err error) {
	for u, err := range decoded(s.db.scanAll(ctx, &userNames, allNames, shapes.Range{}, "users"), decodeUser) {
		if err != nil {
			return nil, err
		}
		us = append(us, u)
	}
	return us, nil
}

// keyRows returns the rows of a key.
func keyRows(k *models.Key) []shapes.Put {
	version, value := int64(1), codec.PackJSON(k)
	if !k.Revoked.IsZero() {
		version = 2
	}
	return []shapes.Put{
		{Table: &userKeys, Row: shapes.Row{Part: []byte(k.User), Key: text(nil, k.ID), Version: version, Value: value}},
		{Table: &keys, Row: shapes.Row{Part: []byte(k.Hash), Version: version, Value: value}},
	}
}

func decodeKey(row *shapes.Row) (k models.Key, err error) {
	return k, stored(codec.UnpackJSON(row.Value, &k))
}

// CreateKey implements models.Store.
func (s *Store) CreateKey(ctx context.Context, k models.Key) error {
	return s.db.call(ctx, func() error { return s.db.engine.Put(ctx, keyRows(&k)...) }, "create key %s", k.ID)
}

// KeyByHash implements models.Store.
func (s *Store) KeyByHash(ctx context.Context, hash string) (models.Key, error) {
	return get(ctx, s.db, func() (models.Key, error) {
		return decodedRow(ctx, s.db, &keys, []byte(hash), nil, decodeKey)
	}, "key by hash")
}

// Keys implements models.Store.
func (s *Store) Keys(ctx context.Context, user string) ([]models.Key, error) {
	return get(ctx, s.db, func() (ks []models.Key, err error) {
		rows, err := s.db.engine.Find(ctx, shapes.Address{Table: &userKeys, Part: []byte(user)})
		if err == nil {
			ks, err = appendDecoded(ks, rows[0], nil, decodeKey)
		}
		slices.SortFunc(ks, func(a, b models.Key) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID)) })
		return ks, err
	}, "keys of %s", user)
}

// RevokeKey implements models.Store.
func (s *Store) RevokeKey(ctx context.Context, user, key string, at time.Time) error {
	return s.db.call(ctx, func() error {
		k, err := decodedRow(ctx, s.db, &userKeys, []byte(user), text(nil, key), decodeKey)
		if err != nil {
			return err
		}
		if k.Revoked.IsZero() {
			k.Revoked = at.UTC()
			refused, there, err := s.db.swap(ctx, shapes.Swap{Put: keyRows(&k)[0], Was: 1})
			if err != nil {
				return err
			}
			if refused { // another call revoked it, or removed it
				if there.Version == 0 {
					return models.ErrNotFound
				}
				if k, err = decodeKey(&there); err != nil {
					return err
				}
			}
		}
		return s.db.engine.Put(ctx, keyRows(&k)[1])
	}, "revoke key %s", key)
}

// RemoveKey implements models.Store.
func (s *Store) RemoveKey(ctx context.Context, user, key string) error {
	return s.db.call(ctx, func() error {
		row, err := s.db.row(ctx, &userKeys, []byte(user), text(nil, key))
		if errors.Is(err, models.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		k, err := decodeKey(&row)
		if err == nil {
			err = s.db.engine.RemoveRows(ctx, shapes.Address{Table: &keys, Part: []byte(k.Hash)})
		}
		if err == nil {
			err = s.db.engine.RemoveRows(ctx, shapes.Address{Table: &userKeys, Part: row.Part, Key: row.Key})
		}
		return err
	}, "remove key %s", key)
}
