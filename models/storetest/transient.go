package storetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

func transientCases() []testCase {
	return []testCase{
		{"Transient/PutAndRemove", testTransient},
		{"Transient/EndsAfterTTL", testTransientEnds},
	}
}

func testTransient(t *testing.T, s models.Store) {
	ctx := t.Context()
	kind := newUser("transient").ID
	_, err := s.Transient(ctx, kind, "a")
	require.ErrorIs(t, err, models.ErrNotFound)
	require.NoError(t, s.PutTransient(ctx, kind, "a", []byte("1"), time.Hour))
	require.NoError(t, s.PutTransient(ctx, kind, "b", nil, time.Hour))
	got, err := s.Transient(ctx, kind, "a")
	require.NoError(t, err)
	require.Equal(t, []byte("1"), got)
	got, err = s.Transient(ctx, kind, "b")
	require.NoError(t, err)
	require.Empty(t, got)
	require.NoError(t, s.PutTransient(ctx, kind, "a", nil, 0))
	_, err = s.Transient(ctx, kind, "a")
	require.ErrorIs(t, err, models.ErrNotFound)
}

func testTransientEnds(t *testing.T, s models.Store) {
	ctx := t.Context()
	kind := "kind-" + models.NewUserID()
	require.NoError(t, s.PutTransient(ctx, kind, "a", []byte("1"), time.Hour))
	require.NoError(t, s.PutTransient(ctx, kind, "a", []byte("2"), time.Hour))
	require.NoError(t, s.PutTransient(ctx, kind, "b", []byte("3"), time.Second))
	require.NoError(t, s.PutTransient(ctx, kind+"x", "c", []byte("4"), time.Hour))
	got, err := s.Transients(ctx, kind)
	require.NoError(t, err)
	require.Equal(t, []byte("2"), got["a"], "the newer replaces the older")
	require.Eventually(t, func() bool {
		got, err := s.Transients(ctx, kind)
		return err == nil && len(got) == 1
	}, patience, 20*time.Millisecond, "the other ends after its TTL")
	none, err := s.Transients(ctx, kind+"none")
	require.NoError(t, err)
	require.Empty(t, none)
}
