package app

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/api"
	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/sqlite"
)

// as adds who gives a command, and for whom.
type as struct {
	http.RoundTripper
	by, user string
}

func (t as) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set(api.ByHeader, t.by)
	r.Header.Set(api.UserHeader, t.user)
	return t.RoundTripper.RoundTrip(r)
}

// through returns a client of the API through a transport.
func through(t http.RoundTripper, user string) *client.Client {
	return client.New("http://safedelivr", "", client.HTTPClient(&http.Client{Transport: as{t, "zoe", user}}))
}

// TestAdminSocket: the socket in the data folder has the API for operators, without a key, under the name of the
// person who calls it and on behalf of a user. Only the owner of the folder can open it. The network has none of
// this. A process that only opens the store for a command has the same API.
func TestAdminSocket(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), strings.Repeat("long/", 30), "data") // longer than the path of a socket may be
	require.NoError(t, os.MkdirAll(dir, 0o700))
	cfg, err := config.Load("", []string{"SAFEDELIVR_DATA_DIR=" + dir, "SAFEDELIVR_LISTEN=127.0.0.1:0"})
	require.NoError(t, err)
	check := func(over http.RoundTripper, name string) {
		t.Helper()
		c := through(over, "")
		u, err := c.AddUser(t.Context(), name)
		require.NoError(t, err)
		done, err := c.PauseUser(t.Context(), name, "holidays")
		require.NoError(t, err)
		require.True(t, done.Changed)
		for e, err := range c.ListAudit(t.Context(), client.ListOptions{}) {
			require.NoError(t, err)
			require.Equal(t, "cli:zoe", e.By)
			break
		}
		usage, err := through(over, u.ID).GetUsage(t.Context())
		require.NoError(t, err)
		require.Equal(t, u.ID, usage.User)
		var out client.Check
		out, err = c.RunCheck(t.Context(), client.NewCheck{User: name}, func(*client.Step[client.Check]) {})
		require.NoError(t, err)
		require.Equal(t, 1, out.Users)
		for range 20 { // the answer comes before the request has ended
			large := strings.NewReader(`"` + strings.Repeat("x", 4<<20) + `"`)
			_, err = through(over, u.ID).CreateBatchJSON(t.Context(), large, client.IdempotencyKey("ö"))
			require.Equal(t, "invalid_idempotency_key", client.ErrorCode(err))
		}
		var link LoginLink
		require.NoError(t, c.Call(t.Context(), http.MethodPost, LoginPath, nil, nil, &link))
		require.Contains(t, link.URL, "/login/link?secret=")
	}

	alone, err := Open(t.Context(), &cfg, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	within, end := alone.Transport()
	check(within, "ann")
	end()
	alone.Close()

	a, err := New(t.Context(), &cfg, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- a.Serve(ctx) }()
	_, err = Open(t.Context(), &cfg, slog.New(slog.DiscardHandler))
	require.ErrorIs(t, err, sqlite.ErrInUse)
	socket := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return DialAdmin(ctx, dir)
	}}
	defer socket.CloseIdleConnections()
	check(socket, "bob")
	info, err := os.Stat(filepath.Join(dir, AdminSocket))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	for path, status := range map[string]int{"/v1/users": http.StatusUnauthorized, LoginPath: http.StatusNotFound} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+a.Addr()+path, http.NoBody)
		require.NoError(t, err)
		resp, err := as{http.DefaultTransport, "zoe", ""}.RoundTrip(r)
		require.NoError(t, err)
		var problem struct{ Status int }
		_ = json.NewDecoder(resp.Body).Decode(&problem)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, status, resp.StatusCode, path)
	}
	stop()
	require.NoError(t, <-served)
}

// TestWithinEnds: calls after the end of a transport without a network are errors.
func TestWithinEnds(t *testing.T) {
	t.Parallel()
	over, end := Within(http.NotFoundHandler())
	require.Error(t, through(over, "").Health(t.Context()))
	end()
	require.ErrorIs(t, through(over, "").Health(t.Context()), net.ErrClosed)
}

// TestDialAdminWaits: a process that has only begun, and opens its socket late, is reached. One that never does is an
// error.
func TestDialAdminWaits(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(dir, AdminSocket)
		_, err := dialAdmin(t.Context(), path)
		require.ErrorIs(t, err, os.ErrNotExist)
		time.AfterFunc(8*time.Second, func() {
			l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
			assert.NoError(t, err)
			t.Cleanup(func() { _ = l.Close() })
		})
		conn, err := dialAdmin(t.Context(), path)
		require.NoError(t, err)
		require.NoError(t, conn.Close())
	})
}
