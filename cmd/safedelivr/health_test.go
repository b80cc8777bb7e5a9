package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHealth(t *testing.T) {
	t.Parallel()
	status, body := http.StatusOK, `{"status":"ready","missing":[],"checks":{}}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" {
			t.Error(r.URL.Path)
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	defer server.Close()
	ask := func(args ...string) (int, string) {
		var out, errs bytes.Buffer
		env := []string{"SAFEDELIVR_LISTEN=" + server.Listener.Addr().String()}
		code := run(context.Background(), append([]string{"health"}, args...), streams{out: &out, err: &errs}, env)
		return code, out.String() + errs.String()
	}
	code, text := ask()
	require.Zero(t, code)
	require.Equal(t, "ready\n", text)
	code, _ = ask(server.URL + "/")
	require.Zero(t, code)
	status, body = http.StatusServiceUnavailable, `{"status":"not ready","missing":["store"],"checks":{"store":"gone"}}`
	code, text = ask()
	require.Equal(t, 1, code)
	require.Contains(t, text, "not ready: store: gone")
	status, body = http.StatusBadGateway, "a proxy"
	code, _ = ask()
	require.Equal(t, 1, code)
	server.Close()
	code, _ = ask()
	require.Equal(t, 1, code)
}

// A process that is not ready is alive: restarting it would not bring back its store. The check works over TLS,
// although the certificate has another name.
func TestHealthLive(t *testing.T) {
	t.Parallel()
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	plain, secure := httptest.NewServer(answer), httptest.NewTLSServer(answer)
	defer plain.Close()
	defer secure.Close()
	for server, env := range map[*httptest.Server][]string{
		plain:  nil,
		secure: {"SAFEDELIVR_TLS_CERT=x", "SAFEDELIVR_TLS_KEY=x"},
	} {
		env = append(env, "SAFEDELIVR_LISTEN="+server.Listener.Addr().String())
		var out, errs bytes.Buffer
		code := run(context.Background(), []string{"health", "--live"}, streams{out: &out, err: &errs}, env)
		require.Zero(t, code, errs.String())
		require.Equal(t, "alive\n", out.String())
		require.Equal(t, 1, run(context.Background(), []string{"health"}, streams{out: &out, err: &errs}, env))
	}
	elsewhere := []string{"health", "--live", plain.URL + "/nowhere"}
	code := run(context.Background(), elsewhere, streams{io.Discard, io.Discard}, nil)
	require.Equal(t, 1, code)
}

func TestReachable(t *testing.T) {
	t.Parallel()
	for listen, want := range map[string]string{
		":8080":        "127.0.0.1:8080",
		"0.0.0.0:8080": "127.0.0.1:8080",
		"[::]:8080":    "[::1]:8080",
		"10.1.2.3:80":  "10.1.2.3:80",
		"localhost:1":  "localhost:1",
	} {
		require.Equal(t, want, reachable(listen))
	}
}
