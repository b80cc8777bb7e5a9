// Package embeddedtest opens the embedded backends for the tests of other rooms.
package embeddedtest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/embedded"
)

// Open returns an empty store, and a broker with the queues of the given
// providers. Both are closed after the test.
func Open(t testing.TB, providers ...string) (*embedded.Store, *embedded.Broker) {
	t.Helper()
	store, err := embedded.OpenStore(t.TempDir(), embedded.StoreOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	broker, err := embedded.NewBroker(providers, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, broker.Close()) })
	return store, broker
}
