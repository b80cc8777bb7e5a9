package perclient

import (
	"fmt"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOf(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"192.0.2.1:5":          "192.0.2.1",
		"[::ffff:192.0.2.1]:5": "192.0.2.1",
		"[2001:db8::1]:5":      "2001:db8::",
		"[2001:db8::ffff]:6":   "2001:db8::",
		"[2001:db8:0:1::1]:5":  "2001:db8:0:1::",
		"[fe80::1%eth0]:5":     "fe80::",
		"unknown":              "invalid IP",
	} {
		require.Equal(t, want, Of(Address(&http.Request{RemoteAddr: address})).String(), address)
	}
}

func TestCounts(t *testing.T) {
	t.Parallel()
	var c Counts
	c.Remove(netip.MustParseAddr("192.0.2.2"), 0)
	a, b := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("192.0.2.2")
	require.True(t, c.Add(a, 3, 3))
	require.False(t, c.Add(netip.MustParseAddr("2001:db8::2"), 1, 3), "the same client")
	require.True(t, c.Add(a, 1, 4), "the limit is that of the call")
	require.True(t, c.Add(b, 3, 3))
	require.Equal(t, 2, c.Clients())
	c.Remove(a, 4)
	c.Remove(b, 2)
	require.Equal(t, 1, c.Clients())
	require.True(t, c.Add(a, 3, 3))
}

// TestRates: all addresses of a client share a limiter, also if they come at the same time.
func TestRates(t *testing.T) {
	t.Parallel()
	r := NewRates(0, 3)
	var all sync.WaitGroup
	var allowed atomic.Int64
	for i := range 50 {
		all.Go(func() {
			if r.Of(netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", i))).Allow() {
				allowed.Add(1)
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 3, allowed.Load())
	require.True(t, r.Of(netip.MustParseAddr("2001:db8:0:1::1")).Allow(), "another client")
}
