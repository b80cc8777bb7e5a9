package dashboard

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A gitHubUser can log in at a gitHub.
type gitHubUser struct {
	ID    int64
	Login string
	Orgs  []string // organisations that the user is an active member of
}

// A gitHubApp is the OAuth app that a gitHub knows.
type gitHubApp struct {
	ClientID, ClientSecret string
	RedirectURL            string // the only one that is accepted
}

// A gitHub imitates the parts of GitHub that a login needs. It has the paths of GitHub Enterprise Server: authorize (a
// page on which a tester picks a login), access_token, and under /api/v3 user and user/memberships/orgs. It is safe for
// concurrent use.
type gitHub struct {
	app gitHubApp
	mux *http.ServeMux

	mu     sync.Mutex
	users  []gitHubUser
	codes  map[string]grant
	tokens map[string]grant
}

// A grant is what a code or a token allows.
type grant struct {
	user      int64
	scopes    []string
	challenge string
	redirect  string
	until     time.Time
}

const codeLife = 10 * time.Minute

// newGitHub returns a gitHub for one app and some users.
func newGitHub(app gitHubApp, users ...gitHubUser) *gitHub {
	g := &gitHub{
		app:    app,
		mux:    http.NewServeMux(),
		users:  slices.Clone(users),
		codes:  map[string]grant{},
		tokens: map[string]grant{},
	}
	g.mux.HandleFunc("GET /login/oauth/authorize", g.authorize)
	g.mux.HandleFunc("POST /login/oauth/authorize", g.decide)
	g.mux.HandleFunc("POST /login/oauth/access_token", g.accessToken)
	g.mux.HandleFunc("GET /api/v3/user", g.user)
	g.mux.HandleFunc("GET /api/v3/user/memberships/orgs/{org}", g.membership)
	return g
}

// ServeHTTP implements http.Handler.
func (g *gitHub) ServeHTTP(w http.ResponseWriter, r *http.Request) { g.mux.ServeHTTP(w, r) }

// Rename gives the user with this id another login.
func (g *gitHub) Rename(id int64, login string) {
	g.change(id, func(u *gitHubUser) { u.Login = login })
}

// SetOrgs changes the organisations that the user with this id is a member of.
func (g *gitHub) SetOrgs(id int64, orgs ...string) {
	g.change(id, func(u *gitHubUser) { u.Orgs = orgs })
}

func (g *gitHub) change(id int64, to func(*gitHubUser)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.users {
		if g.users[i].ID == id {
			to(&g.users[i])
		}
	}
}

func (g *gitHub) find(ok func(*gitHubUser) bool) (gitHubUser, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.IndexFunc(g.users, func(u gitHubUser) bool { return ok(&u) })
	if i < 0 {
		return gitHubUser{}, false
	}
	return g.users[i], true
}

var gitHubPage = template.Must(template.New("authorize").Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Simulated GitHub</title>
<main><h1>Simulated GitHub</h1>
<p>{{.Query.Get "client_id"}} asks who you are{{with .Query.Get "scope"}} (scopes: {{.}}){{end}}. Log in as:</p>
<form method="post">
{{range $name, $values := .Query}}{{range $values}}<input type="hidden" name="{{$name}}" value="{{.}}">{{end}}{{end}}
{{range .Users}}<p><button name="login" value="{{.Login}}">{{.Login}}</button></p>{{end}}
<p><button name="deny" value="yes">Cancel</button></p></form></main></html>
`))

// checkAuthorize reports whether an app may ask for a login. If not, it answers the
// request itself, as GitHub does: nothing may be redirected then.
func (g *gitHub) checkAuthorize(w http.ResponseWriter, v url.Values) bool {
	switch {
	case v.Get("client_id") != g.app.ClientID:
		http.Error(w, "there is no app with this client_id", http.StatusNotFound)
	case v.Get("redirect_uri") != g.app.RedirectURL:
		http.Error(w, "the redirect_uri is not associated with this application", http.StatusBadRequest)
	case v.Get("code_challenge") != "" && v.Get("code_challenge_method") != "S256":
		http.Error(w, "code_challenge_method must be S256", http.StatusBadRequest)
	default:
		return true
	}
	return false
}

// authorize shows the page on which a login is picked.
func (g *gitHub) authorize(w http.ResponseWriter, r *http.Request) {
	if !g.checkAuthorize(w, r.URL.Query()) {
		return
	}
	g.mu.Lock()
	users := slices.Clone(g.users)
	g.mu.Unlock()
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_ = gitHubPage.Execute(w, map[string]any{"Query": r.URL.Query(), "Users": users}) // the tester may be gone
}

// decide sends the browser back with a code, or with a refusal.
func (g *gitHub) decide(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		http.Error(w, "not a form", http.StatusBadRequest)
		return
	}
	v := r.PostForm
	if !g.checkAuthorize(w, v) {
		return
	}
	back := url.Values{"state": {v.Get("state")}}
	if v.Get("deny") != "" {
		back.Set("error", "access_denied")
		back.Set("error_description", "The user has denied your application access.")
	} else {
		u, ok := g.find(func(u *gitHubUser) bool { return u.Login == v.Get("login") })
		if !ok {
			http.Error(w, "there is no such user", http.StatusBadRequest)
			return
		}
		code := newSecret()
		g.mu.Lock()
		g.codes[code] = grant{
			user:      u.ID,
			scopes:    strings.Fields(v.Get("scope")),
			challenge: v.Get("code_challenge"),
			redirect:  v.Get("redirect_uri"),
			until:     time.Now().Add(codeLife),
		}
		g.mu.Unlock()
		back.Set("code", code)
	}
	http.Redirect(w, r, g.app.RedirectURL+"?"+back.Encode(), http.StatusFound)
}

// accessToken exchanges a code. GitHub answers mistakes with 200, too.
func (g *gitHub) accessToken(w http.ResponseWriter, r *http.Request) {
	id, secret, ok := r.BasicAuth()
	if err := r.ParseForm(); err != nil {
		http.Error(w, "not a form", http.StatusBadRequest)
		return
	}
	if !ok {
		id, secret = r.PostForm.Get("client_id"), r.PostForm.Get("client_secret")
	}
	answer := func(v url.Values) {
		w.Header().Set("Content-Type", "application/x-www-form-urlencoded; charset=utf-8")
		_, _ = w.Write([]byte(v.Encode())) // the caller may be gone
	}
	fail := func(code, description string) {
		answer(url.Values{"error": {code}, "error_description": {description}})
	}
	if id != g.app.ClientID || subtle.ConstantTimeCompare([]byte(secret), []byte(g.app.ClientSecret)) != 1 {
		fail("incorrect_client_credentials", "The client_id and/or client_secret passed are incorrect.")
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	code := r.PostForm.Get("code")
	grant, ok := g.codes[code]
	delete(g.codes, code) // a code is good for one try
	sum := sha256.Sum256([]byte(r.PostForm.Get("code_verifier")))
	proven := grant.challenge == "" || grant.challenge == base64.RawURLEncoding.EncodeToString(sum[:])
	if !ok || time.Now().After(grant.until) || !proven || grant.redirect != r.PostForm.Get("redirect_uri") {
		fail("bad_verification_code", "The code passed is incorrect or expired.")
		return
	}
	token := "gho_" + newSecret()
	g.tokens[token] = grant
	answer(url.Values{
		"access_token": {token},
		"scope":        {strings.Join(grant.scopes, ",")},
		"token_type":   {"bearer"},
	})
}

// caller returns the user and the grant of the token that a request bears. It
// answers the request if there is none.
func (g *gitHub) caller(w http.ResponseWriter, r *http.Request) (gitHubUser, grant, bool) {
	_, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	g.mu.Lock()
	grant, ok := g.tokens[token]
	g.mu.Unlock()
	if ok {
		u, found := g.find(func(u *gitHubUser) bool { return u.ID == grant.user })
		if found {
			w.Header().Set("X-Oauth-Scopes", strings.Join(grant.scopes, ", "))
			return u, grant, true
		}
	}
	replyMessage(w, http.StatusUnauthorized, "Bad credentials")
	return gitHubUser{}, grant, false
}

func replyMessage(w http.ResponseWriter, status int, text string) {
	reply(w, status, map[string]string{"message": text, "status": strconv.Itoa(status)})
}

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the caller may be gone
}

func (g *gitHub) user(w http.ResponseWriter, r *http.Request) {
	if u, _, ok := g.caller(w, r); ok {
		reply(w, http.StatusOK, map[string]any{"id": u.ID, "login": u.Login, "type": "User", "name": u.Login})
	}
}

func (g *gitHub) membership(w http.ResponseWriter, r *http.Request) {
	u, grant, ok := g.caller(w, r)
	if !ok {
		return
	}
	org := r.PathValue("org")
	switch {
	case !slices.Contains(grant.scopes, "read:org"):
		replyMessage(w, http.StatusForbidden, "You'll need the read:org scope.")
	case !slices.ContainsFunc(u.Orgs, func(o string) bool { return strings.EqualFold(o, org) }):
		replyMessage(w, http.StatusNotFound, "Not Found")
	default:
		reply(w, http.StatusOK, map[string]any{
			"state":        "active",
			"role":         "member",
			"organization": map[string]string{"login": org}, //nolint:misspell // the field is GitHub's
		})
	}
}

func newSecret() string {
	var b [20]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}
