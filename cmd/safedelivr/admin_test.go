package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/simulator"
)

// TestRetold: what a handed-over command prints arrives whole and as it goes on,
// however much it is, with its exit code; an answer that breaks off is an error.
func TestRetold(t *testing.T) {
	t.Parallel()
	seen := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		said := newTeller(w)
		fmt.Fprintln(said.out, "first")
		fmt.Fprintln(said, "progress")
		select {
		case <-seen: // before the command has ended
		case <-r.Context().Done():
			return
		}
		for range 10_000 {
			fmt.Fprint(said.out, "größer ")
		}
		if r.URL.Path == "/breaks-off" {
			panic(http.ErrAbortHandler)
		}
		code := 3
		said.tell(adminPart{Code: &code})
	}))
	t.Cleanup(server.Close)
	ask := func(path string) (out string, err error) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
		require.NoError(t, err)
		resp, err := server.Client().Do(r)
		require.NoError(t, err)
		defer resp.Body.Close()
		var printed, errs strings.Builder
		c := &cli{streams: streams{out: &printed, err: tellingWriter{&errs, seen}}}
		err = c.retell(resp.Body)
		require.Equal(t, "progress\n", errs.String())
		return printed.String(), err
	}
	out, err := ask("/")
	var code exitCode
	require.ErrorAs(t, err, &code)
	require.EqualValues(t, 3, code)
	require.Equal(t, "first\n"+strings.Repeat("größer ", 10_000), out)
	_, err = ask("/breaks-off")
	require.ErrorContains(t, err, "may have been carried out")
	require.NotErrorAs(t, err, &code)
}

// tellingWriter tells when something was written.
type tellingWriter struct {
	io.Writer
	seen chan struct{}
}

func (w tellingWriter) Write(p []byte) (int, error) {
	if len(p) > 0 {
		w.seen <- struct{}{}
	}
	return w.Writer.Write(p)
}

// TestLoginWhereItListens: a link that a server prints for somebody leads to where
// that server listens, whatever the environment of its process says.
func TestLoginWhereItListens(t *testing.T) {
	r := newRig(t, backends()[0], simulator.Options{})
	r.serveHere()
	require.Contains(t, r.command("login"), "http://"+r.addr+"/login/link?secret=")
}
