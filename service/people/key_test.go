package people

import (
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/service/audit"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/store/memory"
)

// newPeople returns the users of a store with this process alone.
func newPeople(t *testing.T, store models.Store) *People {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	s := New(Deps{
		Store: store, Log: log,
		Audit: audit.New(audit.Deps{
			Store: store, Follower: control.NewFollower(store), Sole: true, RetryTime: time.Minute, Log: log,
		}),
	})
	t.Cleanup(s.Close)
	return s
}

// TestCachedKeyExpires: a cached key is read again after keyTTL, which is at most a second.
func TestCachedKeyExpires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var keys keyCache
		k := models.Key{User: "ann"}
		keys.put("hash", k, time.Now())
		_, ok := keys.get("hash")
		require.True(t, ok)
		time.Sleep(keyTTL - time.Millisecond)
		_, ok = keys.get("hash")
		require.True(t, ok)
		time.Sleep(time.Millisecond)
		_, ok = keys.get("hash")
		require.False(t, ok, "must be read again")
		require.LessOrEqual(t, keyTTL, time.Second)
	})
}

// TestKeyCacheIsBounded: the cache of keys does not grow without limit.
func TestKeyCacheIsBounded(t *testing.T) {
	t.Parallel()
	var keys keyCache
	for range 5000 {
		keys.put(models.NewUserID(), models.Key{}, time.Now())
	}
	require.LessOrEqual(t, len(keys.keys), 1001)
}

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

	store := memory.Open(t)
	s := newPeople(t, store)
	ann := caller.Caller{User: "ann"}
	require.NoError(t, store.CreateUser(t.Context(), models.User{ID: "ann", Name: "ann", Created: now}))
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
