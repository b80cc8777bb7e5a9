// Package oauth gets the access tokens (OAuth 2.0, RFC 6749) with which an adapter logs in at a mail service, and keeps
// each of them until shortly before it ends.
package oauth

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/emersion/go-sasl"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	common "github.com/safedelivr/safedelivr/models/settings"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
	"github.com/safedelivr/safedelivr/providers/internal/settings"
	"github.com/safedelivr/safedelivr/providers/internal/transport"
)

const (
	timeout = 10 * time.Second // of a request
	margin  = time.Minute      // a token that ends sooner is not used to log in
)

// A Source gets the access tokens of one account. Its methods may be called at the same time.
type Source struct {
	client  *transport.Client
	ask     func(ctx context.Context, refresh string) (*oauth2.Token, error)
	secrets []string
	newest  atomic.Pointer[token]
	refresh chan string // has the newest refresh token while nobody asks
}

// token is an access token.
type token struct {
	*oauth2.Token
	refused bool // by the mail service
}

// usable reports whether a token may be used to log in.
func (t *token) usable() bool {
	return t != nil && !t.refused && (t.Expiry.IsZero() || time.Until(t.Expiry) > margin)
}

// Check returns the mistakes in the settings of access tokens, if there are any.
func Check(s *settings.Settings) (errs []error) {
	if s.OAuth == (common.OAuth{}) {
		return nil
	}
	u, err := url.Parse(s.TokenURL)
	for _, m := range []struct {
		is            bool
		setting, text string
	}{
		{s.TokenURL == "", "oauth_token_url", "required: the URL at which the mail service gives access tokens"},
		{err != nil || s.TokenURL != "" && (u.Host == "" || u.User != nil || u.Scheme != "https" &&
			(u.Scheme != "http" || !settings.Loopback(u.Hostname()))), "oauth_token_url", "must be an https:// URL without a password"},
		{s.ClientID == "", "oauth_client_id", "required: the ID of the client that gets the tokens"},
		{s.ClientSecret == "" && s.RefreshToken == "", "oauth_client_secret", "required without oauth_refresh_token"},
		{s.User == "", "user", "required: the mailbox for which the access tokens are"},
		{s.Password != "", "password", "set either this or oauth_token_url"},
	} {
		if m.is {
			errs = append(errs, settings.Mistake{Setting: m.setting, Text: m.text})
		}
	}
	return errs
}

// New returns a source for settings that were checked; nil if they have no URL.
func New(s *common.OAuth) *Source {
	if s.TokenURL == "" {
		return nil
	}
	o := &Source{client: transport.NewClient(1), secrets: []string{s.ClientSecret, s.RefreshToken}, refresh: make(chan string, 1)}
	scopes := strings.Fields(s.Scope)
	if s.RefreshToken == "" {
		c := &clientcredentials.Config{ClientID: s.ClientID, ClientSecret: s.ClientSecret, TokenURL: s.TokenURL, Scopes: scopes}
		o.ask = func(ctx context.Context, _ string) (*oauth2.Token, error) { return c.Token(ctx) }
	} else {
		c := &oauth2.Config{ClientID: s.ClientID, ClientSecret: s.ClientSecret, Scopes: scopes,
			Endpoint: oauth2.Endpoint{TokenURL: s.TokenURL}}
		o.ask = func(ctx context.Context, refresh string) (*oauth2.Token, error) {
			return c.TokenSource(ctx, &oauth2.Token{RefreshToken: refresh}).Token()
		}
	}
	o.refresh <- s.RefreshToken
	return o
}

// A RefusedError is an answer that gives no token, and that is the same for each request with these settings.
type RefusedError struct{ text string }

// Error implements error.
func (e *RefusedError) Error() string { return "the token server gives no access token: " + e.text }

// Use calls login with an access token. If the mail service refuses one that was kept, Use tries a new one.
//
// Errors: *RefusedError, and those of login.
func (s *Source) Use(ctx context.Context, login func(token string) (refused bool, err error)) error {
	for {
		t, kept, err := s.get(ctx)
		if err != nil {
			return err
		}
		refused, err := login(t.AccessToken)
		if refused {
			s.newest.CompareAndSwap(t, &token{t.Token, true})
		}
		if !refused || !kept {
			return err
		}
	}
}

// get returns an access token, and whether it was kept. Only one request is made at a time.
func (s *Source) get(ctx context.Context) (t *token, kept bool, err error) {
	if t = s.newest.Load(); t.usable() {
		return t, true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var refresh string
	select {
	case refresh = <-s.refresh:
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
	defer func() { s.refresh <- refresh }()
	if t = s.newest.Load(); t.usable() { // somebody else asked
		return t, true, nil
	}
	got, err := s.ask(context.WithValue(ctx, oauth2.HTTPClient, &http.Client{Transport: each{s.client},
		CheckRedirect: s.client.HTTP.CheckRedirect}), refresh)
	s.client.Close() // the next request is long after
	if err != nil {
		return nil, false, s.failed(err, refresh)
	}
	t, refresh = &token{Token: got}, cmp.Or(got.RefreshToken, refresh)
	s.newest.Store(t)
	return t, false, nil
}

// failed returns the error of a request without secrets.
func (s *Source) failed(err error, refresh string) error {
	text := func(words string) string { return parse.Text(words, append(s.secrets, refresh)...) }
	var answer *oauth2.RetrieveError
	if !errors.As(err, &answer) {
		return errors.New("the token server cannot be asked: " + text(err.Error()))
	}
	words := text(cmp.Or(strings.TrimSpace(answer.ErrorCode+" "+answer.ErrorDescription), answer.Response.Status))
	switch status := answer.Response.StatusCode; {
	case status >= http.StatusInternalServerError, status == http.StatusTooManyRequests, status == http.StatusRequestTimeout:
		return errors.New("the token server gives no access token now: " + words)
	}
	return &RefusedError{words}
}

// each records each request of a client by itself: the library asks twice if a server wants the secret in another place.
type each struct{ *transport.Client }

// RoundTrip implements http.RoundTripper.
func (e each) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, _ := transport.Record(r.Context(), time.Time{})
	return e.HTTP.Transport.RoundTrip(r.WithContext(ctx))
}

// Mechanism is how a client logs in with a token.
const Mechanism = "XOAUTH2"

// Client returns the client of Mechanism.
func Client(user, token string) sasl.Client {
	return login("user=" + user + "\x01auth=Bearer " + token + "\x01\x01")
}

// login is what the client says first.
type login string

// Start implements sasl.Client.
func (l login) Start() (string, []byte, error) { return Mechanism, []byte(l), nil }

// Next implements sasl.Client. The challenge says why the token is refused: the refusal follows an empty answer.
func (login) Next([]byte) ([]byte, error) { return []byte{}, nil }

// Written returns the newest token as connections of some users have it: a server may repeat what it does not understand.
func (s *Source) Written(users ...string) (out []string) {
	if s == nil || s.newest.Load() == nil {
		return nil
	}
	t := s.newest.Load().AccessToken
	for _, user := range users {
		_, first, _ := Client(user, t).Start()
		out = append(out, base64.StdEncoding.EncodeToString(first))
	}
	return append(out, t)
}
