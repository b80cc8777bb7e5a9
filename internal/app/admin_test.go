package app

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

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
		fmt.Fprintln(a.out, "first")
		fmt.Fprintln(a, "progress")
		select {
		case <-seen: // before the command has ended
		case <-r.Context().Done():
			return
		}
		for range 10_000 {
			fmt.Fprint(a.out, "größer ")
		}
		if r.URL.Path == "/breaks-off" {
			panic(http.ErrAbortHandler)
		}
		code := 3
		a.write(adminPart{Code: &code})
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
