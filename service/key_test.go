package service

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

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

// TestRevokeKey: a key is revoked and recorded once. The error for an unknown key names it.
func TestRevokeKey(t *testing.T) {
	t.Parallel()
	f := newCommandRig(t)
	k, _, err := f.CreateKey(t.Context(), f.who, "shop", models.KeyOptions{})
	require.NoError(t, err)
	for range 2 {
		require.NoError(t, f.RevokeKey(t.Context(), f.who, k.ID, "lost"))
	}
	log, err := f.store.Commands(t.Context(), 0, 10)
	require.NoError(t, err)
	require.Len(t, log, 2, "created and revoked")
	require.Equal(t, "lost", log[1].Why)
	var e *Error
	require.ErrorAs(t, f.RevokeKey(t.Context(), f.who, "nothing", ""), &e)
	require.Equal(t, NotFound, e.Kind)
	require.Contains(t, e.Detail, "no such API key")
}
