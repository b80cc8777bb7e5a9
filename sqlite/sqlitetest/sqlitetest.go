// Package sqlitetest opens SQLite stores for the tests of other packages.
package sqlitetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/sqlite"
)

// Open returns an empty store. It is closed after the test.
func Open(t testing.TB) *sqlite.Store {
	t.Helper()
	store, err := sqlite.Open(t.TempDir(), sqlite.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	return store
}
