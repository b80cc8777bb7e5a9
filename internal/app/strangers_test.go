package app

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/known"
	"github.com/safedelivr/safedelivr/internal/testkit"
)

// TestStrangersAreSlowedDown: a client gets its answers later if it sends many requests that nothing verifies. Others,
// and its own verified requests, are answered at once.
func TestStrangersAreSlowedDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stopped := make(chan struct{})
		var late atomic.Int64
		h := slowStrangers(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "" {
				known.Mark(r.Context())
			}
			w.WriteHeader(http.StatusUnauthorized)
		}), stopped, func() { late.Add(1) })
		ask := func(ctx context.Context, address, key string) time.Duration {
			r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/v1/usage", http.NoBody)
			if r.RemoteAddr = address; key != "" {
				r.Header.Set("Authorization", key)
			}
			start := time.Now()
			h.ServeHTTP(httptest.NewRecorder(), r)
			return time.Since(start)
		}
		const stranger = "192.0.2.1:1"
		for range strangerBurst {
			require.Zero(t, ask(t.Context(), stranger, ""))
		}
		require.Zero(t, late.Load())
		require.Equal(t, time.Second/strangerRate, ask(t.Context(), stranger, ""))
		require.EqualValues(t, 1, late.Load())
		require.Zero(t, ask(t.Context(), stranger, "Bearer good"))
		require.Zero(t, ask(t.Context(), "192.0.2.2:1", ""))

		var all sync.WaitGroup
		for range strangerWaits {
			all.Go(func() { require.LessOrEqual(t, ask(t.Context(), stranger, ""), strangerWait) })
		}
		synctest.Wait()
		require.PanicsWithValue(t, http.ErrAbortHandler, func() { ask(t.Context(), stranger, "") }, "too many wait")
		require.Zero(t, ask(t.Context(), stranger, "Bearer good"))
		require.Zero(t, ask(t.Context(), "192.0.2.2:1", ""))
		time.Sleep(time.Second) // some have been answered
		gone, leave := context.WithCancel(t.Context())
		leave()
		require.Zero(t, ask(gone, stranger, ""))
		start := time.Now()
		close(stopped)
		all.Wait()
		require.Zero(t, time.Since(start))
		require.Zero(t, ask(t.Context(), stranger, ""))
	})
}

// TestDroppedConnectionsStayOpen: a client whose requests are dropped cannot connect again at once, and again without
// end. Others at its address can if one of them has sent a verified request. A trusted proxy loses its connection.
func TestDroppedConnectionsStayOpen(t *testing.T) {
	t.Parallel()
	for name, trusted := range map[string][]netip.Prefix{
		"client": nil, "trusted proxy": {netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				network := testkit.NewNetwork(t)
				l := limitConnections(network.Listen(), 1000, 1000, trusted, func() {})
				h := slowStrangers(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/verified" {
						known.Mark(r.Context())
					}
					w.WriteHeader(http.StatusUnauthorized)
				}), make(chan struct{}), func() {})
				serveHandler(t, l, h.ServeHTTP)
				ask := func(path string) net.Conn {
					c, err := network.Dial(t.Context(), "tcp", l.Addr().String())
					require.NoError(t, err)
					fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", path)
					return c
				}
				answer := func(c net.Conn) (time.Duration, error) {
					began := time.Now()
					resp, err := http.ReadResponse(bufio.NewReader(c), nil)
					if err == nil {
						err = resp.Body.Close()
					}
					return time.Since(began), err
				}
				for range strangerBurst {
					_, err := answer(ask("/guess"))
					require.NoError(t, err)
				}
				for range strangerWaits {
					ask("/guess")
				}
				synctest.Wait()
				took, err := answer(ask("/guess"))
				require.Error(t, err)
				if trusted != nil {
					require.Zero(t, took)
					return
				}
				require.Equal(t, strangerWait, took)

				flood := func() {
					for range strangerWaits + droppedMost {
						ask("/guess")
					}
					synctest.Wait()
				}
				verified := func() error {
					took, err := answer(ask("/verified"))
					require.Zero(t, took)
					return err
				}
				flood()
				require.Error(t, verified(), "no connection is accepted")
				time.Sleep(strangerWait)
				require.NoError(t, verified())
				flood()
				require.NoError(t, verified(), "the connection before is open")
			})
		})
	}
}
