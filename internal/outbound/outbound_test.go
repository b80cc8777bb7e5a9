package outbound

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

// TestSpecialNetworksAreNotReached: no connection is made to an address of a special network unless it is allowed. That
// holds for every form of the address, and if a name resolves to it.
func TestSpecialNetworksAreNotReached(t *testing.T) {
	t.Parallel()
	var reached atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	t.Cleanup(server.Close)
	_, port, _ := strings.Cut(strings.TrimPrefix(server.URL, "http://"), ":")
	c := New(nil)
	for _, host := range []string{
		"127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "[::]", "10.0.0.1", "192.168.1.1", "172.16.0.1",
		"169.254.169.254", "[fe80::1]", "[fd00:ec2::254]", "[64:ff9b::7f00:1]", "100.64.0.1", "224.0.0.1", "255.255.255.255",
	} {
		_, err := c.Post(t.Context(), "http://"+host+":"+port+"/", nil, nil)
		require.ErrorIs(t, err, ErrForbidden, host)
	}
	require.Zero(t, reached.Load())
	a, err := New(loopback).Post(t.Context(), server.URL, http.Header{}, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, a.Status)
}

// TestAnswers: an answer is read up to a bound, a redirect is an answer, and the error of a post does not name its
// address.
func TestAnswers(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = w.Write(append(body, r.Header.Get("X-A")...))
	})
	mux.HandleFunc("/large", func(w http.ResponseWriter, _ *http.Request) {
		for range 1000 {
			_, _ = w.Write(make([]byte, 1<<10))
		}
	})
	mux.HandleFunc(
		"/away",
		func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/echo", http.StatusFound) },
	)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	c := New(loopback)
	a, err := c.Post(t.Context(), server.URL+"/echo", http.Header{"X-A": {"!"}}, []byte("body"))
	require.NoError(t, err)
	require.Equal(t, Answer{Status: 429, Body: "body!", RetryAfter: 7 * time.Second, Took: a.Took}, a)
	a, err = c.Post(t.Context(), server.URL+"/large", http.Header{}, nil)
	require.NoError(t, err)
	require.Len(t, a.Body, maxAnswer)
	a, err = c.Post(t.Context(), server.URL+"/away", http.Header{}, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusFound, a.Status)

	_, err = c.Post(t.Context(), "http://127.0.0.1:1/secret", http.Header{}, nil)
	require.Error(t, err)
	require.NotContains(t, err.Error(), "secret")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = c.Post(ctx, server.URL, http.Header{}, nil)
	require.ErrorIs(t, err, context.Canceled)
}

func TestBadURL(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"https://example.com/hook?a=b", "http://10.0.0.1:8080"} {
		require.Empty(t, BadURL(good))
	}
	for _, bad := range []string{
		"", "example.com", "ftp://example.com", "https://", "https://a:b@example.com", "https://example.com/#a", "%",
		"https://example.com/" + strings.Repeat("a", maxURL),
	} {
		require.NotEmpty(t, BadURL(bad), bad)
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	require.Equal(t, time.Minute, retryAfter("Thu, 01 Jan 2026 00:01:00 GMT", now))
	require.Zero(t, retryAfter("-5", now))
	require.Equal(t, MaxRetryAfter, retryAfter("Fri, 31 Dec 9999 23:59:59 GMT", now))
	require.Equal(t, MaxRetryAfter, retryAfter("2147483647", now))
	require.Zero(t, retryAfter("soon", now))
}
