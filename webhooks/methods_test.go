package webhooks

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// TestMethods checks that other methods than POST are refused, and handed over to an adapter that names them.
func TestMethods(t *testing.T) {
	t.Parallel()
	seen := make(chan string, 1)
	takes := func(methods ...string) *fakeProvider {
		return &fakeProvider{methods: methods, verify: func(w *models.Webhook) (models.Verified, error) {
			seen <- w.Method
			return models.Verified{Status: http.StatusNoContent}, nil
		}}
	}
	f := newFixture(t, Provider{"post", takes()}, Provider{"all", takes("GET", "HEAD", "OPTIONS")})
	for _, c := range []struct {
		method, provider, allow string
	}{
		{"POST", "post", ""},
		{"GET", "post", "POST"},
		{"HEAD", "post", "POST"},
		{"OPTIONS", "post", "POST"},
		{"PUT", "post", "POST"},
		{"NONSENSE", "post", "POST"},
		{"POST", "all", ""},
		{"GET", "all", ""},
		{"HEAD", "all", ""},
		{"OPTIONS", "all", ""},
		{"DELETE", "all", "POST, GET, HEAD, OPTIONS"},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, f.url+"/webhooks/"+c.provider, http.NoBody)
		require.NoError(t, err)
		res, err := f.client.Do(req)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, c.allow, res.Header.Get("Allow"), "%s %s", c.method, c.provider)
		if c.allow != "" {
			require.Equal(t, http.StatusMethodNotAllowed, res.StatusCode, "%s %s", c.method, c.provider)
			continue
		}
		require.Equal(t, http.StatusNoContent, res.StatusCode, "%s %s", c.method, c.provider)
		require.Equal(t, c.method, <-seen)
	}
	require.Empty(t, f.inbox.stored(t))
	require.Empty(t, seen, "a refused request was handed over")
}

// TestWebhookValue checks what an adapter gets: the configured URL with the query, and never the host of the request.
// What it answers arrives, and is not stored.
func TestWebhookValue(t *testing.T) {
	t.Parallel()
	var got models.Webhook
	var deadline bool
	answering := &answers{fakeProvider{}, func(ctx context.Context, w *models.Webhook) models.Verified {
		got = *w
		_, deadline = ctx.Deadline()
		return models.Verified{Status: http.StatusAccepted, ContentType: "application/x-test", Answer: []byte("hello")}
	}}
	f := newFixture(t, Provider{"sg", answering})
	rec := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/webhooks/sg/?a=1&b=%2F", strings.NewReader("{}"))
	r.Host = "evil.test"
	r.Header.Set("X-Own", "x")
	f.server.ServeHTTP(rec, r)
	require.Equal(t, http.StatusAccepted, rec.Code)
	require.Equal(t, "hello", rec.Body.String())
	require.Equal(t, "application/x-test", rec.Header().Get("Content-Type"))
	require.Equal(t, "POST https://mail.example.com/webhooks/sg?a=1&b=%2F", got.Method+" "+got.URL)
	require.Equal(t, "x", got.Header.Get("X-Own"))
	require.Equal(t, "{}", string(got.Body))
	require.False(t, got.At.IsZero())
	require.True(t, deadline, "a call to the provider has a limit")
	require.Empty(t, f.inbox.stored(t))
}

// answers is a provider whose posts want an answer.
type answers struct {
	fakeProvider
	answer func(ctx context.Context, w *models.Webhook) models.Verified
}

func (a *answers) Verify(ctx context.Context, w *models.Webhook) (models.Verified, error) {
	return a.answer(ctx, w), nil
}
