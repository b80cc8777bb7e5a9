package app

import (
	"bufio"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/lab/simulated"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/unsubscribe"
)

// TestPathsWithoutVersion: a client of the API that leaves out /v1 gets a problem with the right path in place of a page
// or of the login.
func TestPathsWithoutVersion(t *testing.T) {
	t.Parallel()
	a := serveApp(t, slog.New(slog.DiscardHandler), simulated.Usual.Settings("http://127.0.0.1:8025")...)
	key, clients := newKey(t, a, models.KeyOptions{}), 0
	detail := func(method, path string, status int, header, value string) string {
		t.Helper()
		clients++
		r := httptest.NewRequestWithContext(t.Context(), method, path, http.NoBody)
		r.RemoteAddr = fmt.Sprintf("192.0.2.%d:1", clients) // the answers of a client would be slow
		r.Header.Set(header, value)
		w := httptest.NewRecorder()
		a.http.Handler.ServeHTTP(w, r)
		require.Equal(t, status, w.Code, "%s %s", method, path)
		require.Equal(t, "application/problem+json", w.Header().Get("Content-Type"), "%s %s", method, path)
		var p struct{ Detail string }
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &p))
		return p.Detail
	}
	routes := []string{"POST /v1/batches", "PUT /v1/messages", "GET /v1/suppressions/export"}
	for _, o := range service.Operations(a.service) {
		routes = append(routes, o.Method()+" "+o.Path())
	}
	require.Greater(t, len(routes), 80)
	for _, route := range routes {
		method, want, _ := strings.Cut(route, " ")
		path := strings.TrimPrefix(want, "/v1")
		for part := range strings.SplitSeq(path, "/") {
			if strings.HasPrefix(part, ":") {
				path = strings.Replace(path, part, "x", 1)
				want = strings.Replace(want, part, "{"+part[1:]+"}", 1)
			}
		}
		require.Contains(t, detail(method, path, http.StatusNotFound, "Authorization", "Bearer "+key),
			"Did you mean "+want+"?", route)
	}
	require.Contains(t, detail(http.MethodGet, "/batches", http.StatusNotFound, "X-Api-Key", key), "/v1/batches?")
	require.Contains(t, detail(http.MethodGet, "/batches/", http.StatusNotFound, "Accept", "*/*"), "/v1/batches?")
	require.Contains(t, detail(http.MethodGet, "/v2/batches/x", http.StatusNotFound, "Accept", "*/*"), "/v1/batches/{id}?")
	require.Contains(t, detail(http.MethodPost, "/batches", http.StatusMethodNotAllowed, "Accept", "*/*"), "GET, HEAD")

	pages := map[string]string{"/batches": "/login?to=%2Fbatches", "/": "/login?to=%2F"}
	for path, want := range pages {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody)
		r.Header.Set("Authorization", "Bearer token-of-a-proxy")
		w := httptest.NewRecorder()
		a.http.Handler.ServeHTTP(w, r)
		require.Equal(t, http.StatusSeeOther, w.Code)
		require.True(t, slices.Contains(w.Header()["Location"], want), "%s %s", path, w.Header())
	}
}

// TestRefusalsDoNotWait: every page and form that refuses a request does so although its body never comes.
func TestRefusalsDoNotWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		network, l := bubbleApp(t)
		link := unsubscribe.Path + new(models.Unsubscription).Token(models.ID{}, "ann@example.com") // of no batch
		const form = 2 * time.Second                                                                // for the beginning of a form that is kept
		for _, c := range []struct {
			path   string
			status int
			most   time.Duration
		}{
			{"/batches/x/stop", 401, form},
			{"/compose", 401, form},
			{"/operations/blocks", 401, form},
			{"/theme", 400, form},
			{"/login/link", 400, form},
			{"/batches", 405, 0},
			{"/x", 404, 0},
			{link, 404, 0},
			{unsubscribe.Path + "x", 404, 0},
			{"/v1/batches", 401, 0},
			{"/v1/x", 404, 0},
			{"/webhooks/sg", 401, 0},
			{"/webhooks/x", 429, 0},
			{"/webhooks/mg", 400, 5 * time.Second}, // it is signed within
		} {
			for _, kind := range []string{
				"", "application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=b",
			} {
				client, err := network.Dial(t.Context(), "tcp", l.Addr().String())
				require.NoError(t, err)
				began := time.Now()
				fmt.Fprintf(client, "POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: %s\r\nContent-Length: 1000\r\n\r\n",
					c.path, kind)
				resp, err := http.ReadResponse(bufio.NewReader(client), nil)
				require.NoError(t, err, "%s %s", c.path, kind)
				require.NoError(t, resp.Body.Close())
				require.LessOrEqual(t, time.Since(began), c.most, "%s %s", c.path, kind)
				if kind == "application/x-www-form-urlencoded" || c.most != form {
					require.Equal(t, c.status, resp.StatusCode, "%s %s", c.path, kind)
				}
				require.NoError(t, client.Close())
			}
		}
	})
}
