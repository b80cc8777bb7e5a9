package web

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit"
)

func TestMain(m *testing.M) { testkit.VerifyNoLeaks(m) }

// newFrame returns a frame without sessions.
func newFrame(t *testing.T, public string) *Frame {
	t.Helper()
	at, err := url.Parse(public)
	require.NoError(t, err)
	f, err := New(Config{Accounts: noAccounts{}, Public: at, Providers: NewProviders(nil),
		Refuse: func(http.ResponseWriter, *http.Request, []string) {}, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(f.Close)
	return f
}

// TestKeptFormsAreBounded: the forms of one client that are being read have a bounded size, and so have those of all.
func TestKeptFormsAreBounded(t *testing.T) {
	t.Parallel()
	f := newFrame(t, "http://localhost")
	pages := f.Serve(Routes{Users: map[string]Handler{"POST /compose": nil}})
	send := func() *httptest.ResponseRecorder {
		form := strings.NewReader("subject=Hello")
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost/compose", form)
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		pages.ServeHTTP(w, r)
		return w
	}
	require.Contains(t, send().Body.String(), `value="Hello"`)
	require.True(t, f.keeping.take(netip.MustParseAddr("2001:db8::1"), maxKept))
	require.False(t, f.keeping.take(netip.MustParseAddr("2001:db8::2"), 1), "the same client")
	for _, address := range []string{"192.0.2.2", "192.0.2.3", "192.0.2.4"} {
		require.True(t, f.keeping.take(netip.MustParseAddr(address), maxKept-2))
	}
	w := send()
	require.Equal(t, http.StatusUnauthorized, w.Code)
	require.NotContains(t, w.Body.String(), `value="Hello`)
}
