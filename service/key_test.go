package service

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// TestRevokeKey: a key is revoked and recorded once. The error for an unknown key names it.
func TestRevokeKey(t *testing.T) {
	t.Parallel()
	f := newCommandRig(t)
	k, _, err := f.People.CreateKey(t.Context(), f.who, "shop", models.KeyOptions{})
	require.NoError(t, err)
	for range 2 {
		require.NoError(t, f.People.RevokeKey(t.Context(), f.who, f.who.User, k.ID, "lost"))
	}
	log, err := f.store.Commands(t.Context(), 0, 10)
	require.NoError(t, err)
	require.Len(t, log, 2, "created and revoked")
	require.Equal(t, "lost", log[1].Why)
	var e *Error
	require.ErrorAs(t, f.People.RevokeKey(t.Context(), f.who, f.who.User, "nothing", ""), &e)
	require.Equal(t, NotFound, e.Kind)
	require.Contains(t, e.Detail, "no such API key")
}
