package storetest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

func userCases() []testCase {
	return []testCase{
		{"User/CreateAndFind", testUser},
		{"User/NameRace", testUserNameRace},
		{"User/ListByName", testUserList},
		{"Key/CreateAndFind", testKey},
		{"Key/Revoke", testKeyRevoke},
		{"Key/RevokeRace", testKeyRevokeRace},
	}
}

func newUser(prefix string) models.User {
	id := models.NewUserID()
	return models.User{ID: id, Name: prefix + "-" + id, Created: now()}
}

func testUser(t *testing.T, s models.Store) {
	ctx := t.Context()
	u := newUser("zoë")
	_, err := s.User(ctx, u.ID)
	require.ErrorIs(t, err, models.ErrNotFound)
	_, err = s.UserByName(ctx, u.Name)
	require.ErrorIs(t, err, models.ErrNotFound)

	require.NoError(t, s.CreateUser(ctx, u))
	got, err := s.User(ctx, u.ID)
	require.NoError(t, err)
	require.Equal(t, u, got)
	got, err = s.UserByName(ctx, u.Name)
	require.NoError(t, err)
	require.Equal(t, u, got)

	require.NoError(t, s.CreateUser(ctx, u), "a repeat changes nothing")
	other := models.User{ID: models.NewUserID(), Name: u.Name, Created: now()}
	require.ErrorIs(t, s.CreateUser(ctx, other), models.ErrExists)
	_, err = s.User(ctx, other.ID)
	require.ErrorIs(t, err, models.ErrNotFound, "a user without the name does not exist")
	got, err = s.UserByName(ctx, u.Name)
	require.NoError(t, err)
	require.Equal(t, u, got)

	require.ErrorIs(t, s.CreateUser(ctx, models.User{ID: models.NewUserID(), Created: now()}), models.ErrInvalid)
	require.ErrorIs(t, s.CreateUser(ctx, models.User{Name: newUser("x").Name, Created: now()}), models.ErrInvalid)
}

func testUserNameRace(t *testing.T, s models.Store) {
	ctx := t.Context()
	name := newUser("race").Name
	users := make([]models.User, 16)
	for i := range users {
		users[i] = models.User{ID: models.NewUserID(), Name: name, Created: now()}
	}
	winner := -1
	for i, err := range together(len(users), func(i int) error { return s.CreateUser(ctx, users[i]) }) {
		if err == nil {
			require.Equal(t, -1, winner, "two got the name")
			winner = i
			continue
		}
		require.ErrorIs(t, err, models.ErrExists)
	}
	require.NotEqual(t, -1, winner, "no caller got the name")
	got, err := s.UserByName(ctx, name)
	require.NoError(t, err)
	require.Equal(t, users[winner], got)
	for i := range users {
		_, err := s.User(ctx, users[i].ID)
		if i == winner {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, models.ErrNotFound)
		}
	}
}

func testUserList(t *testing.T, s models.Store) {
	ctx := t.Context()
	prefix := newUser("list").Name
	var want []models.User
	for _, suffix := range []string{"c", "a", "d", "b"} {
		u := models.User{ID: models.NewUserID(), Name: prefix + suffix, Created: now()}
		require.NoError(t, s.CreateUser(ctx, u))
		want = append(want, u)
	}
	byName := func(a, b models.User) int { return strings.Compare(a.Name, b.Name) }
	slices.SortFunc(want, byName)
	got, err := s.Users(ctx)
	require.NoError(t, err)
	require.True(t, slices.IsSortedFunc(got, byName), "users come by name")
	got = slices.DeleteFunc(got, func(u models.User) bool { return !strings.HasPrefix(u.Name, prefix) })
	require.Equal(t, want, got)
}

func testKey(t *testing.T, s models.Store) {
	ctx := t.Context()
	user, stranger := models.NewUserID(), models.NewUserID()
	keys, err := s.Keys(ctx, user)
	require.NoError(t, err)
	require.Empty(t, keys)

	var want []models.Key
	for i, name := range []string{"laptop", "ci 🤖", "laptop"} {
		k, secret := models.NewKey(user, name, now().Add(time.Duration(i-3)*time.Minute))
		k.Created = k.Created.Truncate(time.Millisecond)
		_, err := s.KeyByHash(ctx, models.HashSecret(secret))
		require.ErrorIs(t, err, models.ErrNotFound)
		if i == 1 {
			k.KeyOptions = models.KeyOptions{Scopes: []models.Scope{models.ScopeRead}, Expires: now(),
				Networks: []string{"10.0.0.0/8", "::1/128"}}
		}
		want = append(want, k)
	}
	for _, k := range []models.Key{want[2], want[0], want[1], want[0]} { // out of order, and one twice
		require.NoError(t, s.CreateKey(ctx, k))
	}
	foreign, _ := models.NewKey(stranger, "other", now())
	foreign.Created = foreign.Created.Truncate(time.Millisecond)
	require.NoError(t, s.CreateKey(ctx, foreign))

	keys, err = s.Keys(ctx, user)
	require.NoError(t, err)
	require.Equal(t, want, keys, "the user's own keys, oldest first")
	for _, k := range append(want, foreign) {
		got, err := s.KeyByHash(ctx, k.Hash)
		require.NoError(t, err)
		require.Equal(t, k, got)
	}
}

func testKeyRevoke(t *testing.T, s models.Store) {
	ctx := t.Context()
	user := models.NewUserID()
	k, _ := models.NewKey(user, "k", now())
	k.Created = k.Created.Truncate(time.Millisecond)
	require.ErrorIs(t, s.RevokeKey(ctx, user, k.ID, now()), models.ErrNotFound)
	require.NoError(t, s.CreateKey(ctx, k))
	require.ErrorIs(t, s.RevokeKey(ctx, models.NewUserID(), k.ID, now()), models.ErrNotFound, "a stranger's key")

	first := now()
	require.NoError(t, s.RevokeKey(ctx, user, k.ID, first))
	require.NoError(t, s.RevokeKey(ctx, user, k.ID, first.Add(time.Hour)))
	require.NoError(t, s.RevokeKey(ctx, user, k.ID, first.Add(-time.Hour)), "the first call counts, not the lowest time")
	require.NoError(t, s.CreateKey(ctx, k), "a late repeat does not make a revoked key valid")
	revoked := k
	revoked.Revoked = first
	got, err := s.KeyByHash(ctx, k.Hash)
	require.NoError(t, err)
	require.Equal(t, revoked, got)
	keys, err := s.Keys(ctx, user)
	require.NoError(t, err)
	require.Equal(t, []models.Key{revoked}, keys)

	for range 2 {
		require.NoError(t, s.RemoveKey(ctx, user, k.ID))
		_, err = s.KeyByHash(ctx, k.Hash)
		require.ErrorIs(t, err, models.ErrNotFound)
		keys, err = s.Keys(ctx, user)
		require.NoError(t, err)
		require.Empty(t, keys)
	}
}

func testKeyRevokeRace(t *testing.T, s models.Store) {
	ctx := t.Context()
	user := models.NewUserID()
	k, _ := models.NewKey(user, "k", now())
	require.NoError(t, s.CreateKey(ctx, k))
	start := now()
	allNil(t, together(8, func(i int) error {
		if err := s.RevokeKey(ctx, user, k.ID, start.Add(time.Duration(i)*time.Second)); err != nil {
			return err
		}
		got, err := s.KeyByHash(ctx, k.Hash)
		if err == nil && got.Revoked.IsZero() {
			err = errors.New("still valid after its revocation")
		}
		return err
	}))
	seen := revokedAt(ctx, t, s, k)
	require.NoError(t, s.RevokeKey(ctx, user, k.ID, start.Add(time.Hour)))
	require.Equal(t, seen, revokedAt(ctx, t, s, k))
}

// revokedAt returns when k was revoked, and checks that both look-ups agree.
func revokedAt(ctx context.Context, t *testing.T, s models.Store, k models.Key) time.Time {
	t.Helper()
	got, err := s.KeyByHash(ctx, k.Hash)
	require.NoError(t, err)
	keys, err := s.Keys(ctx, k.User)
	require.NoError(t, err)
	require.Equal(t, []models.Key{got}, keys)
	return got.Revoked
}
