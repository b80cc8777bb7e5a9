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
	settings common.OAuth
	client   *transport.Client
	ask      func(ctx context.Context, refresh string) (*oauth2.Token, error)
	newest   atomic.Pointer[token]
	refresh  chan string // has the newest refresh token while nobody asks
}

// token is an access token.
type token struct {
	*oauth2.Token
	refused bool   // by the mail service
	before  string // the access token before
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
	for _, m := range []struct {
		is            bool
		setting, text string
	}{
		{s.TokenURL == "", "oauth_token_url", "required: the URL at which the mail service gives access tokens"},
		{s.TokenURL != "" && !valid(s.TokenURL), "oauth_token_url", "must be an https:// URL without a password"},
		{s.ClientID == "", "oauth_client_id", "required: the ID of the client that gets the tokens"},
		{s.ClientSecret == "" && s.RefreshToken == "", "oauth_client_secret", "required without oauth_refresh_token"},
		{s.RefreshToken != "" && s.Scope != "", "oauth_scope", "is that of oauth_refresh_token: set only one of them"},
		{s.User == "", "user", "required: the mailbox for which the access tokens are"},
		{s.Password != "", "password", "set either this or oauth_token_url"},
	} {
		if m.is {
			errs = append(errs, settings.Mistake{Setting: m.setting, Text: m.text})
		}
	}
	return errs
}

// valid reports whether tokens may be asked for at a URL.
func valid(text string) bool {
	u, err := url.Parse(text)
	return err == nil && u.Host != "" && u.User == nil &&
		(u.Scheme == "https" || u.Scheme == "http" && settings.Loopback(u.Hostname()))
}

// New returns a source for settings that were checked; nil if they have no URL.
func New(o *common.OAuth) *Source { return (*Source)(nil).With(o) }

// With returns a source for other settings that were checked: s itself, with its tokens, if they are those that it has.
func (s *Source) With(o *common.OAuth) *Source {
	switch {
	case o.TokenURL == "":
		return nil
	case s != nil && s.settings == *o:
		return s
	}
	out := &Source{settings: *o, client: transport.NewClient(1), refresh: make(chan string, 1)}
	style, scopes := oauth2.AuthStyleInHeader, strings.Fields(o.Scope) // each server takes it so (RFC 6749, 2.3.1)
	if o.ClientSecret == "" {
		style = oauth2.AuthStyleInParams
	}
	if o.RefreshToken == "" {
		c := &clientcredentials.Config{ClientID: o.ClientID, ClientSecret: o.ClientSecret, TokenURL: o.TokenURL,
			Scopes: scopes, AuthStyle: style}
		out.ask = func(ctx context.Context, _ string) (*oauth2.Token, error) { return c.Token(ctx) }
	} else {
		c := &oauth2.Config{ClientID: o.ClientID, ClientSecret: o.ClientSecret,
			Endpoint: oauth2.Endpoint{TokenURL: o.TokenURL, AuthStyle: style}}
		out.ask = func(ctx context.Context, refresh string) (*oauth2.Token, error) {
			return c.TokenSource(ctx, &oauth2.Token{RefreshToken: refresh}).Token()
		}
	}
	out.refresh <- o.RefreshToken
	return out
}

// A RefusedError is an answer that gives no token, and that is the same for each request with these settings.
type RefusedError struct{ text string }

// Error implements error.
func (e *RefusedError) Error() string { return "the token server gives no access token: " + e.text }

// Use calls login with an access token. If the mail service refuses one that was kept, Use tries another one, once.
//
// Errors: *RefusedError, and those of login.
func (s *Source) Use(ctx context.Context, login func(token string) (refused bool, err error)) error {
	for again := true; ; again = false {
		t, kept, err := s.get(ctx)
		if err != nil {
			return err
		}
		refused, err := login(t.AccessToken)
		if refused {
			s.newest.CompareAndSwap(t, &token{t.Token, true, t.before})
		}
		if !refused || !kept || !again {
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
	if t = s.newest.Load(); t.usable() { // somebody else asked
		s.refresh <- refresh
		return t, true, nil
	}
	// The request goes on if the call ends: its answer may have the only refresh token that is valid then.
	type result struct {
		t   *token
		err error
	}
	asked := make(chan result, 1)
	go func() {
		t, err := s.request(context.WithoutCancel(ctx), refresh)
		asked <- result{t, err}
	}()
	select {
	case got := <-asked:
		return got.t, false, got.err
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
}

// request asks for a token and keeps it.
func (s *Source) request(ctx context.Context, refresh string) (*token, error) {
	defer func() { s.refresh <- refresh }()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ctx, _ = transport.Record(ctx, time.Time{})
	got, err := s.ask(context.WithValue(ctx, oauth2.HTTPClient, s.client.HTTP), refresh)
	s.client.Close() // the next request is long after
	if err != nil {
		return nil, s.failed(err, refresh)
	}
	t := &token{Token: got}
	if before := s.newest.Load(); before != nil {
		t.before = before.AccessToken
	}
	refresh = cmp.Or(got.RefreshToken, refresh)
	s.newest.Store(t)
	return t, nil
}

// failed returns the error of a request without secrets.
func (s *Source) failed(err error, refresh string) error {
	text := func(words string) string {
		return parse.Text(words, s.settings.ClientSecret, s.settings.RefreshToken, refresh)
	}
	var answer *oauth2.RetrieveError
	if !errors.As(err, &answer) {
		return errors.New("the token server cannot be asked: " + text(err.Error()))
	}
	words := text(cmp.Or(strings.TrimSpace(answer.ErrorCode+" "+answer.ErrorDescription), answer.Response.Status))
	switch status := answer.Response.StatusCode; {
	case status >= http.StatusInternalServerError, status == http.StatusTooManyRequests,
		status == http.StatusRequestTimeout:
		return errors.New("the token server gives no access token now: " + words)
	}
	return &RefusedError{words}
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

// Written returns the newest tokens as connections of some users have them: a server may repeat what it does not
// understand.
func (s *Source) Written(users ...string) (out []string) {
	if s == nil || s.newest.Load() == nil {
		return nil
	}
	t := s.newest.Load()
	for _, one := range []string{t.AccessToken, t.before} {
		for _, user := range users {
			_, first, _ := Client(user, one).Start()
			out = append(out, base64.StdEncoding.EncodeToString(first))
		}
		out = append(out, one)
	}
	return out
}
