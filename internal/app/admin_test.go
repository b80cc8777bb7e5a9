package app

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/config"
)

// TestHandedOverOutput requires that what a handed-over command prints arrives whole and while it runs, however much it
// is, with its exit code, and that an answer that breaks off is an error.
func TestHandedOverOutput(t *testing.T) {
	t.Parallel()
	seen := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := newAnswer(w)
		defer a.close()
		out := output{a}
		fmt.Fprintln(out, "first")
		if r.URL.Path == "/follows" {
			<-r.Context().Done()
			a.end(0)
			return
		}
		fmt.Fprintln(a, "progress")
		select {
		case <-seen: // before the command has ended
		case <-r.Context().Done():
			return
		}
		for range 10_000 {
			fmt.Fprint(out, "größer ")
		}
		if r.URL.Path == "/breaks-off" {
			panic(http.ErrAbortHandler)
		}
		a.end(3)
	}))
	t.Cleanup(server.Close)
	ask := func(path string) (out string, code int, err error) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
		require.NoError(t, err)
		resp, err := server.Client().Do(r)
		require.NoError(t, err)
		defer resp.Body.Close()
		var printed, errs strings.Builder
		code, err = copyAnswer(resp.Body, Command{Out: &printed, Err: notifyingWriter{&errs, seen}})
		require.Equal(t, "progress\n", errs.String())
		return printed.String(), code, err
	}
	out, code, err := ask("/")
	require.NoError(t, err)
	require.Equal(t, 3, code)
	require.Equal(t, "first\n"+strings.Repeat("größer ", 10_000), out)
	_, _, err = ask("/breaks-off")
	require.ErrorContains(t, err, "may have been carried out")

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/follows", nil)
	require.NoError(t, err)
	resp, err := server.Client().Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	var part adminPart
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&part), "it is sent though nothing follows")
	require.Equal(t, "first\n", string(part.Out))
}

// notifyingWriter says when something was written.
type notifyingWriter struct {
	io.Writer
	seen chan struct{}
}

func (w notifyingWriter) Write(p []byte) (int, error) {
	if len(p) > 0 {
		w.seen <- struct{}{}
	}
	return w.Writer.Write(p)
}

// TestHandOver hands commands over to a process: one that it runs, under the name of who ran it, and one that it
// refuses.
func TestHandOver(t *testing.T) {
	t.Parallel()
	cfg, err := config.Load("", []string{"SAFEDELIVR_DATA_DIR=" + t.TempDir(), "SAFEDELIVR_LISTEN=127.0.0.1:0"})
	require.NoError(t, err)
	commands := Commands{Names: []string{"audit"}, Run: func(_ context.Context, a *App, c Command) int {
		fmt.Fprint(c.Out, c.RanBy, c.Folder, c.Args, a.Addr())
		return 4
	}}
	a, err := New(t.Context(), &cfg, slog.New(slog.DiscardHandler), commands)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- a.Serve(ctx) }()
	var out strings.Builder
	c := Command{Args: []string{"audit", "--all"}, RanBy: "zoe", Folder: "/here", Out: &out, Err: &out}
	code, err := HandOver(t.Context(), cfg.DataDir, c)
	require.NoError(t, err)
	require.Equal(t, 4, code)
	require.Equal(t, "zoe/here[audit --all]"+a.Addr(), out.String())
	c.Args = []string{"serve"}
	_, err = HandOver(t.Context(), cfg.DataDir, c)
	require.ErrorContains(t, err, "400")
	stop()
	require.NoError(t, <-served)
}

// TestHandOverWaits: a process that has only begun, and opens its socket late, is reached. One that never does is an
// error.
func TestHandOverWaits(t *testing.T) {
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
