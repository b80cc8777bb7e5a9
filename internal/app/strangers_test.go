package app

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/known"
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
