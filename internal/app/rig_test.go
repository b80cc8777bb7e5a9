package app

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/lab/simulated"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// serveApp serves a process on the embedded store with these settings until the test ends.
func serveApp(t *testing.T, log *slog.Logger, environ ...string) *App {
	t.Helper()
	cfg, err := config.Load("", append([]string{
		"SAFEDELIVR_DATA_DIR=" + t.TempDir(),
		"SAFEDELIVR_LISTEN=127.0.0.1:0",
		"SAFEDELIVR_METRICS_LISTEN=off",
	}, environ...))
	require.NoError(t, err)
	a, err := New(t.Context(), &cfg, log)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- a.Serve(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-done)
	})
	return a
}

// bubbleApp serves the requests of a process, and none of its other work, on a network for a bubble of testing/synctest.
func bubbleApp(t *testing.T, environ ...string) (*testkit.Network, net.Listener) {
	t.Helper()
	cfg, err := config.Load("", append(simulated.Usual.Settings("http://127.0.0.1:8025"), append(environ,
		"SAFEDELIVR_DATA_DIR="+t.TempDir(), "SAFEDELIVR_LISTEN=127.0.0.1:0", "SAFEDELIVR_METRICS_LISTEN=off")...))
	require.NoError(t, err)
	a, err := New(t.Context(), &cfg, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.NoError(t, a.listener.Close())
	network := testkit.NewNetwork(t)
	a.listener = network.Listen()
	failed := make(chan error, 1)
	go a.serveHTTP(failed)
	t.Cleanup(func() {
		a.stopRequests(context.WithoutCancel(t.Context()))
		a.Close()
		require.Empty(t, failed)
	})
	return network, a.listener
}

// newKey returns the secret of a key of a new user.
func newKey(t *testing.T, a *App, o models.KeyOptions) string {
	t.Helper()
	u := models.User{ID: models.NewUserID(), Name: "ann", Created: time.Now()}
	require.NoError(t, a.store.CreateUser(t.Context(), u))
	_, secret, err := a.service.People.CreateKey(t.Context(), service.Caller{User: u.ID}, "", o)
	require.NoError(t, err)
	return secret
}

// status returns the status of the answer to a GET with a key and a header.
func status(t *testing.T, c *http.Client, url, key string, header http.Header) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	if header != nil {
		r.Header = header.Clone()
	}
	r.Header.Set("Authorization", "Bearer "+key)
	resp, err := c.Do(r)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp.StatusCode
}
