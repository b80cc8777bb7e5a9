package service

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/sqlite"
)

// TestKeyUses: the use of a key is recorded at most once a minute, and only if the key was
// accepted.
func TestKeyUses(t *testing.T) {
	t.Parallel()
	var u keyUses
	now := time.Now()
	require.True(t, u.due("a", now))
	require.False(t, u.due("a", now.Add(keyUseEvery-1)))
	require.True(t, u.due("b", now.Add(1)))
	require.True(t, u.due("a", now.Add(keyUseEvery)))

	store, err := sqlite.Open(t.TempDir(), sqlite.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, store.Close()) }()
	s := New(Deps{Store: store})
	ann := Caller{User: "ann"}
	require.NoError(t, store.CreateUser(context.Background(), models.User{ID: "ann", Name: "ann", Created: now}))
	in, secret, err := s.CreateKey(t.Context(), ann, "in", models.KeyOptions{})
	require.NoError(t, err)
	_, far, err := s.CreateKey(t.Context(), ann, "far", models.KeyOptions{Networks: []string{"192.0.2.0/24"}})
	require.NoError(t, err)
	for range 3 {
		_, err = s.Authenticate(t.Context(), secret, netip.MustParseAddr("127.0.0.1"))
		require.NoError(t, err)
		_, err = s.Authenticate(t.Context(), far, netip.MustParseAddr("127.0.0.1"))
		require.Error(t, err)
	}
	s.Close()
	got, err := s.lastUses(t.Context(), ann.User)
	require.NoError(t, err)
	require.Len(t, got, 1)
	require.WithinDuration(t, now, got[in.ID], time.Minute)
}
