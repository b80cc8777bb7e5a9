package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// health runs the command until the server was asked in time, and returns its exit code and what it prints. A machine
// that stands still makes each server late.
func health(env []string, args ...string) (code int, text string) {
	for {
		var out bytes.Buffer
		code = run(context.Background(), append([]string{"health"}, args...), streams{out: &out, err: &out}, env)
		if text = out.String(); !strings.Contains(text, context.DeadlineExceeded.Error()) {
			return code, text
		}
	}
}

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
	env := []string{"SAFEDELIVR_LISTEN=" + server.Listener.Addr().String()}
	ask := func(args ...string) (int, string) { return health(env, args...) }
	code, text := ask()
	require.Zero(t, code)
	require.Equal(t, "ready\n", text)
	code, _ = ask(server.URL + "/")
	require.Zero(t, code)
	status, body = http.StatusServiceUnavailable, `{"status":"not ready","missing":["store"],"checks":{"store":"gone"}}`
	code, text = ask()
	require.Equal(t, 1, code)
	require.Contains(t, text, "not ready: store: gone")
	code, text = ask("--json")
	require.Equal(t, int(exitFailed), code)
	require.JSONEq(t, body, text)
	status, body = http.StatusBadGateway, "a proxy"
	code, _ = ask()
	require.Equal(t, int(exitUnreachable), code)
	code, _ = ask("http://127.0.0.1:1/")
	require.Equal(t, int(exitUnreachable), code)
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
		code, text := health(env, "--live")
		require.Zero(t, code, text)
		require.Equal(t, "alive\n", text)
		code, _ = health(env)
		require.Equal(t, int(exitUnreachable), code)
	}
	code, _ := health(nil, "--live", plain.URL+"/nowhere")
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
