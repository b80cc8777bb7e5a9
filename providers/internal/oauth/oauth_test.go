package oauth

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/providers/internal/oauth/oauthtest"
)

// use returns the token with which a user logs in at a mail server that takes those of a token server.
func use(t *testing.T, s *Source, from *oauthtest.Server) (used string, err error) {
	t.Helper()
	err = s.Use(t.Context(), func(token string) (bool, error) {
		_, said, err := Client("ann", token).Start()
		require.NoError(t, err)
		if used = token; from.Valid("ann", string(said)) {
			return false, nil
		}
		return true, errors.New("535")
	})
	return used, err
}

// used returns a source with a token that was used once, and the server that it is from.
func used(t *testing.T) (*Source, *oauthtest.Server) {
	t.Helper()
	from := oauthtest.New(t, "")
	s := New(&from.OAuth)
	_, err := use(t, s, from)
	require.NoError(t, err)
	return s, from
}

// TestGrants: a client gets tokens in its own name, or for a user. A token is kept while it lasts for more than a
// minute.
func TestGrants(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		refresh string
		change  func(s *oauthtest.Server)
		tokens  int // after three logins
		scope   string
	}{
		"in its own name":         {"", nil, 1, "mail other"},
		"for a user":              {"refresh", nil, 1, ""},
		"with no end":             {"", func(s *oauthtest.Server) { s.Lasts = 0 }, 1, "mail other"},
		"that end soon":           {"", func(s *oauthtest.Server) { s.Lasts = 59 }, 3, "mail other"},
		"with new refresh tokens": {"refresh", func(s *oauthtest.Server) { s.Lasts, s.Rotates = 59, true }, 3, ""},
		"without a secret":        {"refresh", func(s *oauthtest.Server) { s.ClientSecret = "" }, 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			from := oauthtest.New(t, c.refresh)
			if c.change != nil {
				c.change(from)
			}
			s := New(&from.OAuth)
			for range 3 {
				_, err := use(t, s, from)
				require.NoError(t, err)
			}
			require.Equal(t, c.tokens, from.Tokens())
			require.Equal(t, c.scope, from.Asked()[0].Get("scope"))
		})
	}
}

// TestAtOnce: logins at the same time wait for one request.
func TestAtOnce(t *testing.T) {
	t.Parallel()
	from := oauthtest.New(t, "")
	s := New(&from.OAuth)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			_, err := use(t, s, from)
			require.NoError(t, err)
		})
	}
	all.Wait()
	require.Equal(t, 1, from.Tokens())
}

// TestRefusedByServer: a token that was kept and is refused is replaced at once. A new one that is refused is not.
func TestRefusedByServer(t *testing.T) {
	t.Parallel()
	s, from := used(t)
	from.Revoke()
	second, err := use(t, s, from)
	require.NoError(t, err)
	require.Equal(t, "t0ken-3", second)

	logins, no := 0, errors.New("535")
	require.ErrorIs(t, s.Use(t.Context(), func(string) (bool, error) { logins++; return true, no }), no)
	require.Equal(t, 2, logins, "with the token that was kept, and with a new one")
	require.Len(t, from.Asked(), 3)
	require.ErrorIs(t, s.Use(t.Context(), func(string) (bool, error) { logins++; return true, no }), no)
	require.Equal(t, 3, logins, "none was kept")
	down := errors.New("the line breaks")
	require.ErrorIs(t, s.Use(t.Context(), func(string) (bool, error) { return false, down }), down)
	require.ErrorIs(t, s.Use(t.Context(), func(string) (bool, error) { return false, down }), down)
	require.Len(t, from.Asked(), 5, "a token is kept that was not refused")
}

// TestRefusedAtOnce: if all tokens are refused, each of many logins at the same time tries two at most.
func TestRefusedAtOnce(t *testing.T) {
	t.Parallel()
	s, _ := used(t)
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			logins := 0
			_ = s.Use(t.Context(), func(string) (bool, error) { logins++; return true, errors.New("535") })
			require.LessOrEqual(t, logins, 2)
		})
	}
	all.Wait()
}

// TestNoToken: what a token server answers in place of a token is final, or may be better later. No text has a secret.
func TestNoToken(t *testing.T) {
	t.Parallel()
	answer := func(status int, kind, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		}
	}
	const json = "application/json"
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		final  bool
		text   string
	}{
		"revoked":         {answer(400, json, `{"error":"invalid_grant","error_description":"r3fresh was revoked"}`), true, "invalid_grant <secret> was revoked"},
		"unknown client":  {answer(401, json, `{"error":"invalid_client","error_description":"not s3cret"}`), true, "invalid_client not <secret>"},
		"no such URL":     {answer(404, "text/html", "<h1>Not found</h1>"), true, "404 Not Found"},
		"another URL":     {answer(302, "text/plain", ""), true, "302 Found"},
		"too often":       {answer(429, json, `{"error":"slow_down"}`), false, "slow_down"},
		"down":            {answer(503, "text/html", "<h1>s3cret</h1>"), false, "503 Service Unavailable"},
		"no token":        {answer(200, json, `{"token_type":"Bearer"}`), false, "cannot be asked"},
		"no JSON":         {answer(200, json, `{`), false, "cannot be asked"},
		"an error in 200": {answer(200, json, `{"error":"invalid_scope"}`), true, "invalid_scope"},
		"the line breaks": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, false, "cannot be asked"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			from := oauthtest.New(t, "r3fresh")
			from.Answer = c.answer
			_, err := use(t, New(&from.OAuth), from)
			var refused *RefusedError
			require.Equal(t, c.final, errors.As(err, &refused), "%v", err)
			require.ErrorContains(t, err, c.text)
			require.NotContains(t, err.Error(), "s3cret")
		})
	}
}

// TestCallEnds: a call that ends waits neither for the token server nor for the request of another call. The request
// goes on, so that no refresh token is lost.
func TestCallEnds(t *testing.T) {
	t.Parallel()
	from := oauthtest.New(t, "")
	asked, answer := make(chan struct{}), make(chan struct{})
	from.Before = func() {
		asked <- struct{}{}
		<-answer
	}
	s := New(&from.OAuth)
	first, endFirst := context.WithCancel(t.Context())
	ended := make(chan error)
	none := func(string) (bool, error) { return false, nil }
	go func() { ended <- s.Use(first, none) }()
	<-asked
	second, endSecond := context.WithCancel(t.Context())
	endSecond()
	require.ErrorIs(t, s.Use(second, none), context.Canceled)
	endFirst()
	require.ErrorIs(t, <-ended, context.Canceled)
	close(answer)
	require.NoError(t, s.Use(t.Context(), none))
	require.Equal(t, 1, from.Tokens())
}
