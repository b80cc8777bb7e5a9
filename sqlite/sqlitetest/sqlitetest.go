// Package sqlitetest opens SQLite stores for the tests of other packages.
package sqlitetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models/codec"
	"github.com/safedelivr/safedelivr/sqlite"
)

// compressed uses the compression of stored forms before any test. It makes channels at its first use, and those of one
// synctest bubble cannot be used in another one.
var _, compressed = codec.Unpack(codec.Pack(make([]byte, 1<<10)))

// Open returns an empty store. It is closed after the test.
func Open(t testing.TB) *sqlite.Store {
	t.Helper()
	require.NoError(t, compressed)
	store, err := sqlite.Open(t.TempDir(), sqlite.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	return store
}
