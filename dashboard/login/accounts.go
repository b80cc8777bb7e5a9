package login

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/oauth2"

	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// githubRetry is after how many seconds GitHub may answer again.
const githubRetry = 5

// Accounts says who may log in, and who is an operator.
type Accounts struct {
	store  web.Store
	log    *slog.Logger
	github *githubLogin // nil: users log in by one-time links
}

// NewAccounts returns the accounts of a GitHub app. If there is none, everybody with a one-time link may log in.
func NewAccounts(store web.Store, log *slog.Logger, g *GitHub, public *url.URL) *Accounts {
	a := &Accounts{store: store, log: log}
	if g != nil {
		a.github = newGitHubLogin(*g, public)
	}
	return a
}

// SetGitHub replaces the client secret and the lists of operators, logins and organisations, from the next request on.
// Nothing else changes.
func (a *Accounts) SetGitHub(g GitHub) {
	if a.github != nil {
		a.github.changed.Store(&g)
	}
}

// Origin returns the origin that the login form redirects to; "" if it redirects to none.
func (a *Accounts) Origin() string {
	if a.github == nil {
		return ""
	}
	return a.github.origin
}

// Operator reports whether a session belongs to an operator: a GitHub user in the
// current configuration, or anyone with a one-time link if GitHub is not used.
func (a *Accounts) Operator(s *web.Session) bool {
	if s.Login == "" {
		return a.github == nil
	}
	return a.github != nil && inList(a.github.listed().Operators, s.User, s.Login)
}

// Allowed reports whether the user of a session may still log in: it is listed in the
// current configuration, or still a member of an organisation.
func (a *Accounts) Allowed(ctx context.Context, v *web.Visitor, secret string) (bool, error) {
	switch {
	case v.Login == "":
		return a.github == nil, nil
	case a.github == nil:
		return false, nil
	case a.github.listed().lists(v.User, v.Login):
		return true, nil
	case v.Token == "" || len(a.github.listed().Orgs) == 0:
		return false, nil
	}
	return a.stillMember(ctx, v, secret)
}

// memberAge is how long a membership counts without asking GitHub again. While GitHub
// cannot be reached, it counts for memberMost.
const (
	memberAge  = 30 * time.Minute
	memberMost = time.Hour
)

func memberKind(user string) string { return "member." + user }

// stillMember reports whether the user of a session is a member of an organisation.
func (a *Accounts) stillMember(ctx context.Context, v *web.Visitor, secret string) (bool, error) {
	raw, err := a.store.Transient(ctx, memberKind(v.User), v.ID)
	if err != nil && !errors.Is(err, models.ErrNotFound) {
		return false, web.StoreTrouble(err)
	}
	known := err == nil
	if asked, err := time.Parse(time.RFC3339, string(raw)); known && err == nil && time.Since(asked) < memberAge {
		return true, nil
	}
	token, ok := v.OpenToken(secret)
	if !ok {
		return false, nil
	}
	member, err := a.github.member(ctx, token)
	switch {
	case err != nil && known:
		a.log.Warn("GitHub cannot be asked for a membership; will retry", "user_id", v.User, "err", err)
		return true, nil
	case err != nil:
		e := service.Fail(service.Unavailable, "github_unavailable",
			"GitHub could not be asked whether you may use this page. Try again in a moment.").After(githubRetry)
		return false, e.Because(err)
	case member:
		return true, web.StoreTrouble(a.noteMember(ctx, v.User, v.ID))
	}
	return false, nil
}

// noteMember records that GitHub confirmed the membership of a session's user.
func (a *Accounts) noteMember(ctx context.Context, user, hash string) error {
	return a.store.PutTransient(ctx, memberKind(user), hash, []byte(time.Now().UTC().Format(time.RFC3339)), memberMost)
}

// GitHub configures login through GitHub.
type GitHub struct {
	ClientID, ClientSecret string
	BaseURL                string   // default: https://github.com; for GitHub Enterprise Server: its URL
	APIURL                 string   // default: https://api.github.com, or another BaseURL with /api/v3
	Operators              []string // logins of operators
	Logins                 []string // logins of users
	Orgs                   []string // organisations whose members are users
	Client                 *http.Client
}

// Operator reports whether a user is an operator: a listed GitHub user, or one that was
// created on the machine itself. If g is nil, no GitHub user is.
func (g *GitHub) Operator(u models.User) bool {
	if !strings.HasPrefix(u.ID, "gh") {
		return true
	}
	return g != nil && inList(g.Operators, u.ID, u.Name)
}

// lists reports whether a user is listed as an operator or as a user.
func (g *GitHub) lists(user, login string) bool {
	return inList(g.Operators, user, login) || inList(g.Logins, user, login)
}

const githubTimeout = 10 * time.Second

// githubLogin identifies visitors at GitHub.
type githubLogin struct {
	GitHub
	changed atomic.Pointer[GitHub] // set by SetGitHub
	oauth   oauth2.Config
	origin  string // of BaseURL
	host    string
}

// githubUser is a user at GitHub. The ID stays the same when the login changes.
type githubUser struct {
	ID    int64  `json:"id"`
	Login string `json:"login"`

	token string // set if the user may log in only as a member of an organisation
}

// user returns the ID of the user here.
func (u *githubUser) user() string { return "gh" + strconv.FormatInt(u.ID, 10) }

// number returns how a configuration lists the user by its ID.
func (u *githubUser) number() string { return "id:" + strconv.FormatInt(u.ID, 10) }

func newGitHubLogin(g GitHub, public *url.URL) *githubLogin {
	g.BaseURL, g.APIURL = strings.TrimSuffix(g.BaseURL, "/"), strings.TrimSuffix(g.APIURL, "/")
	switch {
	case g.BaseURL == "" || g.BaseURL == "https://github.com":
		g.BaseURL = "https://github.com"
		if g.APIURL == "" {
			g.APIURL = "https://api.github.com"
		}
	case g.APIURL == "":
		g.APIURL = g.BaseURL + "/api/v3"
	}
	if g.Client == nil {
		g.Client = &http.Client{Timeout: githubTimeout}
	}
	l := &githubLogin{GitHub: g, oauth: oauth2.Config{
		ClientID:    g.ClientID,
		RedirectURL: public.String() + "/login/github/callback",
		Endpoint: oauth2.Endpoint{
			AuthURL:   g.BaseURL + "/login/oauth/authorize",
			TokenURL:  g.BaseURL + "/login/oauth/access_token",
			AuthStyle: oauth2.AuthStyleInParams,
		},
	}}
	if u, err := url.Parse(g.BaseURL); err == nil {
		l.origin, l.host = u.Scheme+"://"+u.Host, u.Host
	}
	return l
}

// listed returns the settings whose client secret and lists count now.
func (g *githubLogin) listed() *GitHub {
	if c := g.changed.Load(); c != nil {
		return c
	}
	return &g.GitHub
}

// app returns the settings of the OAuth app.
func (g *githubLogin) app() *oauth2.Config {
	now, c := g.listed(), g.oauth
	c.ClientSecret = now.ClientSecret
	if len(now.Orgs) > 0 {
		c.Scopes = []string{"read:org"}
	}
	return &c
}

func (g *githubLogin) authURL(state, verifier string) string {
	return g.app().AuthCodeURL(
		state, oauth2.S256ChallengeOption(verifier), oauth2.SetAuthURLParam("allow_signup", "false"),
	)
}

// inList reports whether a configuration lists a user, given by its ID here, by login or as
// id:<number at GitHub>.
func inList(names []string, user, login string) bool {
	return contains(names, login) || contains(names, "id:"+strings.TrimPrefix(user, "gh"))
}

func contains(logins []string, login string) bool {
	return slices.ContainsFunc(logins, func(l string) bool { return strings.EqualFold(l, login) })
}

// identify exchanges a code for a token and returns its user, with a Forbidden error if that
// user may not log in.
func (g *githubLogin) identify(ctx context.Context, code, verifier string) (githubUser, error) {
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, oauth2.HTTPClient, g.Client), githubTimeout)
	defer cancel()
	token, err := g.app().Exchange(ctx, code, oauth2.VerifierOption(verifier))
	if err != nil {
		return githubUser{}, fmt.Errorf("exchange the code: %w", err)
	}
	var u githubUser
	if status, err := g.get(ctx, token, "/user", &u); err != nil || status != http.StatusOK || u.ID == 0 || u.Login == "" {
		return githubUser{}, fmt.Errorf("read the user: status %d: %w", status, err)
	}
	if g.listed().lists(u.user(), u.Login) {
		return u, nil
	}
	u.token = token.AccessToken
	switch member, err := g.member(ctx, u.token); {
	case err != nil:
		return githubUser{}, err
	case member:
		return u, nil
	}
	return u, service.Fail(service.Forbidden, "not_allowed",
		"The GitHub user %s may not use this Safedelivr. Ask its operator for access.", u.Login)
}

// member reports whether the user of a token is an active member of an organisation whose
// members may log in. A token that GitHub no longer accepts belongs to no member.
func (g *githubLogin) member(ctx context.Context, token string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, githubTimeout)
	defer cancel()
	for _, org := range g.listed().Orgs {
		var member struct {
			State string `json:"state"`
		}
		path := "/user/memberships/orgs/" + url.PathEscape(org)
		switch status, err := g.get(ctx, &oauth2.Token{AccessToken: token}, path, &member); {
		case err != nil:
			return false, fmt.Errorf("read the membership in %s: %w", org, err)
		case status >= http.StatusInternalServerError || status == http.StatusTooManyRequests:
			return false, fmt.Errorf("read the membership in %s: status %d", org, status)
		case status == http.StatusOK && member.State == "active":
			return true, nil
		}
	}
	return false, nil
}

// get reads from GitHub's API. A response other than 200 sets only status.
func (g *githubLogin) get(ctx context.Context, token *oauth2.Token, path string, out any) (status int, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, g.APIURL+path, http.NoBody)
	if err != nil {
		return 0, err
	}
	token.SetAuthHeader(r)
	r.Header.Set("Accept", "application/vnd.github+json")
	resp, err := g.Client.Do(r)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return resp.StatusCode, nil
	}
	return resp.StatusCode, json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(out)
}
