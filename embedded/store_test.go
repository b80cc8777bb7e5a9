package embedded

import (
	"testing"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/storetest"
	"github.com/stretchr/testify/require"
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) models.Store { return newStore(t) })
}

func TestStoreDurable(t *testing.T) {
	storetest.RunDurable(t, func(t *testing.T) func() models.Store {
		dir := t.TempDir()
		return func() models.Store { return openStore(t, dir) }
	})
}

// newStore returns an empty store that is closed with the test.
func newStore(t testing.TB) *Store { return openStore(t, t.TempDir()) }

func openStore(t testing.TB, dir string) *Store {
	t.Helper()
	s, err := OpenStore(dir, StoreOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}
