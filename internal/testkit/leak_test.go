package testkit

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestLeak: a goroutine that ends within the patience is no leak, and one that does not is.
func TestLeak(t *testing.T) { //nolint:paralleltest // the goroutines of other tests would be found
	end := make(chan struct{})
	go func() { <-end }()
	require.ErrorContains(t, leak(0), "TestLeak")
	time.AfterFunc(2*time.Second, func() { close(end) }) // goleak alone waits for half a second
	require.NoError(t, leak(leakPatience))
}
