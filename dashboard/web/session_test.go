package web

import (
	"context"
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/people"
	"github.com/safedelivr/safedelivr/store/memory"
)

// TestSessionEnds checks that a session ends when it was idle or when it is ended.
func TestSessionEnds(t *testing.T) {
	t.Parallel()
	store := memory.Open(t)
	t.Run("idle for too long", func(t *testing.T) {
		s := Sessions{store}
		value, err := s.begin(t.Context(), Session{User: "local", Name: "local", Began: time.Now()})
		require.NoError(t, err)
		_, secret, _, err := s.find(t.Context(), value)
		require.NoError(t, err)
		hash := models.HashSecret(secret)
		require.NoError(t, store.PutTransient(t.Context(), people.SessionUseKind("local"), hash, nil, 0))
		_, _, _, err = s.find(t.Context(), value)
		require.ErrorIs(t, err, models.ErrNotFound)
	})
	t.Run("a late note of its use does not restore it", func(t *testing.T) {
		s := Sessions{store}
		value, err := s.begin(t.Context(), Session{User: "local", Name: "local", Began: time.Now()})
		require.NoError(t, err)
		_, secret, _, err := s.find(t.Context(), value)
		require.NoError(t, err)
		hash := models.HashSecret(secret)
		require.NoError(t, s.End(t.Context(), "local", hash))
		require.NoError(t, s.note(t.Context(), "local", hash, time.Now()))
		_, _, _, err = s.find(t.Context(), value)
		require.ErrorIs(t, err, models.ErrNotFound)
	})
}

func TestCookies(t *testing.T) {
	t.Parallel()
	f := newFrame(t, "https://mail.example.com")
	for host, want := range map[string]string{"mail.example.com": "__Host-sd_session", "127.0.0.1:8080": "sd_session"} {
		r, err := http.NewRequest(http.MethodGet, "http://"+host+"/", http.NoBody)
		require.NoError(t, err)
		require.Equal(t, want, f.cookieName(r))
	}
}

// noAccounts has no account that may log in.
type noAccounts struct{}

func (noAccounts) Operator(*Session) bool                                  { return false }
func (noAccounts) Origin() string                                          { return "" }
func (noAccounts) Allowed(context.Context, *Visitor, string) (bool, error) { return false, nil }

// A cookie is Secure if the request came by TLS, with any public URL.
func TestCookiesOverTLS(t *testing.T) {
	t.Parallel()
	f := newFrame(t, "http://mail.example.com")
	board := f.Serve()
	for _, secure := range []bool{true, false} {
		r := httptest.NewRequest(http.MethodGet, "http://mail.example.com/", http.NoBody)
		if secure {
			r.TLS = &tls.ConnectionState{}
		}
		w := httptest.NewRecorder()
		f.SetCookie(w, r, f.cookieName(r), "v", time.Hour)
		require.Equal(t, secure, w.Result().Cookies()[0].Secure) //nolint:bodyclose // a recorder's
		board.ServeHTTP(w, r)
		require.Equal(t, secure, w.Header().Get("Strict-Transport-Security") != "")
	}
}

// Only the secret of a session opens its token.
func TestTokenIsSealed(t *testing.T) {
	t.Parallel()
	sealed := seal("gho_1", "secret")
	require.NotContains(t, sealed, "gho_1")
	text, ok := (&Session{Token: sealed}).OpenToken("secret")
	require.True(t, ok)
	require.Equal(t, "gho_1", text)
	for _, other := range []string{sealed[:len(sealed)-2], "", "AAAA"} {
		_, ok = (&Session{Token: other}).OpenToken("secret")
		require.False(t, ok)
	}
	_, ok = (&Session{Token: sealed}).OpenToken("another")
	require.False(t, ok)
}
