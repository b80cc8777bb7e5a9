// Package oauthtest has a token server for tests, and the side of a mail server at which its tokens are used.
package oauthtest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/safedelivr/safedelivr/models/settings"
)

// A Server gives access tokens to one client. The newest token is the only one that mail servers take.
type Server struct {
	settings.OAuth

	// Before is called for each request, if it is set.
	Before func()
	// Answer answers in place of the server, if it is set.
	Answer http.HandlerFunc
	// Lasts is how many seconds a token lasts; 0: the answer does not say.
	Lasts int
	// Rotates has each answer bring another refresh token, which is the only one from then on.
	Rotates bool
	mu      sync.Mutex
	asked   []url.Values
	tokens  int
}

// New returns a server whose tokens last for an hour. With a refresh token it gives them for a user.
func New(t testing.TB, refresh string) *Server {
	s := &Server{Lasts: 3600}
	mux := http.NewServeMux()
	mux.Handle("/token", s)
	mux.HandleFunc("/about/{user}", s.about)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	s.OAuth = settings.OAuth{TokenURL: server.URL + "/token", ClientID: "c1ient", ClientSecret: "s3cret",
		RefreshToken: refresh}
	if refresh == "" {
		s.Scope = "mail other"
	}
	return s
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.Before != nil {
		s.Before()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = r.ParseForm()
	s.asked = append(s.asked, r.PostForm)
	if s.Answer != nil {
		s.Answer(w, r)
		return
	}
	id, secret, basic := r.BasicAuth()
	if !basic {
		id, secret = r.PostForm.Get("client_id"), r.PostForm.Get("client_secret")
	}
	w.Header().Set("Content-Type", "application/json")
	grant, refresh := "client_credentials", ""
	if s.RefreshToken != "" {
		grant, refresh = "refresh_token", s.RefreshToken
	}
	switch {
	case id != s.ClientID || secret != s.ClientSecret || basic != (secret != ""):
		w.WriteHeader(http.StatusUnauthorized)
		_ = json.NewEncoder(w).Encode(map[string]string{"error": "invalid_client", "error_description": "wrong " + secret})
		return
	case r.PostForm.Get("grant_type") != grant || r.PostForm.Get("refresh_token") != refresh:
		w.WriteHeader(http.StatusBadRequest)
		_, _ = fmt.Fprint(w, `{"error":"invalid_grant"}`)
		return
	}
	s.tokens++
	answer := map[string]any{"token_type": "Bearer", "access_token": s.token()}
	if s.Lasts > 0 {
		answer["expires_in"] = s.Lasts
	}
	if s.Rotates {
		s.RefreshToken = fmt.Sprintf("refresh-%d", s.tokens)
		answer["refresh_token"] = s.RefreshToken
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func (s *Server) token() string { return fmt.Sprintf("t0ken-%d", s.tokens) }

// Tokens returns how many tokens the server gave.
func (s *Server) Tokens() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tokens
}

// About returns the URL at which a mail server of somebody else asks whether a token is that of a user (RFC 7662).
func (s *Server) About(user string) string {
	return strings.TrimSuffix(s.TokenURL, "/token") + "/about/" + user
}

// about says whether a token is that of a user.
func (s *Server) about(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	active := s.tokens > 0 && r.FormValue("token") == s.token()
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"active": active, "username": r.PathValue("user")})
}

// Asked returns the forms of all requests.
func (s *Server) Asked() []url.Values {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

// Revoke has mail servers take only a token that comes later.
func (s *Server) Revoke() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tokens++
}

// Valid reports whether a mail server lets a user in who says this.
func (s *Server) Valid(user, said string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	said, begins := strings.CutPrefix(said, "user="+user+"\x01auth=Bearer ")
	return begins && s.tokens > 0 && said == s.token()+"\x01\x01"
}
