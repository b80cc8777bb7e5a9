// Package inproctest makes in-process brokers for the tests of other packages.
package inproctest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/inproc"
)

// New returns a broker with the queues of the given providers. It is closed
// after the test.
func New(t testing.TB, providers ...string) *inproc.Broker {
	t.Helper()
	broker, err := inproc.New(providers, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, broker.Close()) })
	return broker
}
