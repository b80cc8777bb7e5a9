package app

import (
	"bufio"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/known"
	"github.com/safedelivr/safedelivr/lab/simulated"
	"github.com/safedelivr/safedelivr/models"
)

// TestPlacesOfStrangers: when all places are taken, a new connection gets that of the oldest stranger after a second,
// and never that of a connection with a verified request.
func TestPlacesOfStrangers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := pipeListener{make(chan net.Conn), make(chan struct{})}
		p := newPlaces(l, 3)
		open := func() (client, served net.Conn) {
			t.Helper()
			client, server := net.Pipe()
			go func() { l.conn <- server }()
			served, err := p.Accept()
			require.NoError(t, err)
			return client, served
		}
		ended := func(c net.Conn) bool {
			if c.SetReadDeadline(time.Now().Add(time.Millisecond)) != nil {
				return true
			}
			_, err := c.Read(make([]byte, 1))
			e, ok := err.(net.Error) //nolint:errorlint // of a pipe
			return !ok || !e.Timeout()
		}
		began := time.Now()
		user, served := open()
		known.Mark(placed(t.Context(), served))
		first, _ := open()
		second, _ := open()
		third, _ := open()
		require.Equal(t, strangerTime, time.Since(began), "each stranger has some time")
		require.Equal(t, []bool{false, true, false, false}, []bool{ended(user), ended(first), ended(second), ended(third)})
		_, fourth := open()
		require.True(t, ended(second), "the oldest stranger leaves")
		require.False(t, ended(user))

		require.NoError(t, fourth.Close())
		began = time.Now()
		_, _ = open()
		require.Zero(t, time.Since(began), "a place that was left is free")
		waits := make(chan error)
		for e := p.strangers.Front(); e != nil; e = p.strangers.Front() {
			c, ok := e.Value.(*placedConn)
			require.True(t, ok)
			c.known()
		}
		go func() {
			_, server := net.Pipe()
			l.conn <- server
		}()
		go func() {
			_, err := p.Accept()
			waits <- err
		}()
		time.Sleep(time.Hour)
		require.NoError(t, p.Close())
		require.ErrorIs(t, <-waits, net.ErrClosed, "without strangers it waits")
	})
}

// TestVerifiedConnectionsAreKnown: a request with a valid key makes its connection known, and one without does not.
func TestVerifiedConnectionsAreKnown(t *testing.T) {
	t.Parallel()
	a := serveApp(t, slog.New(slog.DiscardHandler), simulated.Usual.Settings("http://127.0.0.1:8025")...)
	key := newKey(t, a, models.KeyOptions{})
	p, ok := a.listener.(*places)
	require.True(t, ok)
	strangers := func() int {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.strangers.Len()
	}
	for _, c := range []struct {
		path, key string
		strangers int
	}{{"/healthz", key, 1}, {"/v1/usage", "sd_wrong", 2}, {"/v1/usage", key, 2}} {
		conn := dial(t, a.listener)
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\n\r\n", c.path, c.key)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, c.strangers, strangers(), "%s %s", c.path, c.key)
	}
}

// TestRequestPlacesAreKept: requests of strangers leave some places of their address for keys and webhooks.
func TestRequestPlacesAreKept(t *testing.T) {
	t.Parallel()
	begun, end := make(chan struct{}), make(chan struct{})
	h := trustProxies(nil, 4, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		begun <- struct{}{}
		<-end
	}))
	_, key := models.NewKey("u", "k", time.Now())
	serve := func(path, key string) int {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
		r.RemoteAddr = "192.0.2.1:1"
		r.Header.Set("Authorization", "Bearer "+key)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	for range 3 {
		go serve("/", "")
		<-begun
	}
	require.Equal(t, http.StatusTooManyRequests, serve("/", ""))
	require.Equal(t, http.StatusTooManyRequests, serve("/v1/usage", "sd_wrong"))
	status := make(chan int)
	go func() { status <- serve("/v1/usage", key) }()
	<-begun
	require.Equal(t, http.StatusTooManyRequests, serve("/webhooks/sg", ""), "all are taken")
	close(end)
	require.Equal(t, http.StatusOK, <-status)
}
