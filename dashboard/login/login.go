// Package login has the pages to log in, by GitHub or by a one-time link, and says who may.
package login

import (
	"cmp"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/accesslog"
	"github.com/safedelivr/safedelivr/service/people"
)

// views are the templates of this room.
var views = web.NewTemplates(files, nil)

//go:embed *.html
var files embed.FS

// Pages are the pages to log in and out.
type Pages struct {
	web      *web.Frame
	accounts *Accounts
	people   *people.People
}

// New returns the pages.
func New(frame *web.Frame, accounts *Accounts, people *people.People) *Pages {
	return &Pages{frame, accounts, people}
}

// Routes returns the routes of the pages. They need no session.
func (p *Pages) Routes() web.Routes {
	return web.Routes{Templates: views, Open: map[string]web.Handler{
		"GET /login":                 p.loginPage,
		"GET /login/link":            p.linkPage,
		"POST /login/link":           p.linkLogin,
		"POST /login/github":         p.githubStart,
		"GET /login/github/callback": p.githubCallback,
		"POST /logout":               p.logout,
	}}
}

// linkLife is how long a one-time link is valid.
const linkLife = 15 * time.Minute

// linkKind is the kind of transient value that holds a link, under the hash of its secret.
const linkKind = "login-links"

// link is what the store holds of a link.
type link struct {
	User  string `json:"user"`
	Local bool   `json:"local,omitempty"` // it works only on the machine that Safedelivr runs on
}

// LocalUser returns the default user of one-time links.
func LocalUser() models.User { return models.User{ID: "local", Name: "local"} }

// NewLink returns a link below a base URL that logs in as a user: once, within 15 minutes, and from anywhere. It
// creates the user if there is none. It checks no right, because its caller has the store. The store has only a hash of
// the link's secret.
func NewLink(ctx context.Context, store web.Store, base string, u models.User) (string, error) {
	return makeLink(ctx, store, base, u, false)
}

func makeLink(ctx context.Context, store web.Store, base string, u models.User, local bool) (string, error) {
	if _, err := store.User(ctx, u.ID); errors.Is(err, models.ErrNotFound) {
		if u.Created.IsZero() {
			u.Created = time.Now().UTC()
		}
		if u, err = createUser(ctx, store, u); err != nil {
			return "", err
		}
	} else if err != nil {
		return "", err
	}
	secret := web.NewSecret()
	raw, err := json.Marshal(link{User: u.ID, Local: local})
	if err != nil {
		return "", err
	}
	if err := store.PutTransient(ctx, linkKind, models.HashSecret(secret), raw, linkLife); err != nil {
		return "", fmt.Errorf("login link: %w", err)
	}
	return strings.TrimSuffix(base, "/") + "/login/link?secret=" + secret, nil
}

// createUser stores a user. If the name is taken, it appends the ID to the name.
func createUser(ctx context.Context, store web.Store, u models.User) (models.User, error) {
	err := store.CreateUser(ctx, u)
	if !errors.Is(err, models.ErrExists) {
		return u, err
	}
	if there, rerr := store.User(ctx, u.ID); rerr == nil {
		return there, nil // created meanwhile
	}
	u.Name += "-" + u.ID
	return u, store.CreateUser(ctx, u)
}

// LocalLink returns a one-time link for a user that works only on this machine, because it ends up in logs: see
// NewLink. It fails if users log in through GitHub.
func (a *Accounts) LocalLink(ctx context.Context, base string, u models.User) (string, error) {
	if a.github != nil {
		return "", errors.New("one-time links are off: users log in through GitHub")
	}
	return makeLink(ctx, a.store, base, u, true)
}

// errLinkElsewhere is the error for a link that works only on this machine.
var errLinkElsewhere = errors.New("the link works only on the machine that Safedelivr runs on")

// takeLink returns the user of a link and uses the link up. If it is called several times, one call succeeds and the
// others return models.ErrNotFound. here reports whether the link was opened on this machine.
func (p *Pages) takeLink(ctx context.Context, secret string, here bool) (models.User, error) {
	hash := models.HashSecret(secret)
	raw, err := p.accounts.store.Transient(ctx, linkKind, hash)
	if err != nil {
		return models.User{}, err
	}
	var l link
	if err := json.Unmarshal(raw, &l); err != nil {
		return models.User{}, fmt.Errorf("login link: %w", err)
	}
	if l.Local && !here {
		return models.User{}, errLinkElsewhere
	}
	now := time.Now()
	mine := models.Claim{ID: models.NewBatchID(now), Hash: hash, At: now.UTC()}
	won, err := p.accounts.store.Claim(ctx, "login-link."+hash, mine, linkLife+time.Minute)
	if errors.Is(err, models.ErrOutcomeUnknown) {
		won, err = p.accounts.store.Claim(ctx, "login-link."+hash, mine, linkLife+time.Minute)
	}
	if err != nil {
		return models.User{}, err
	}
	if won.ID != mine.ID {
		return models.User{}, models.ErrNotFound
	}
	if err := p.accounts.store.PutTransient(ctx, linkKind, hash, nil, 0); err != nil {
		return models.User{}, err
	}
	return p.accounts.store.User(ctx, l.User)
}

// loginView is what the login page knows.
type loginView struct {
	GitHub  bool
	Host    string // of GitHub
	To      string
	Problem string
}

// loginPage is GET /login.
func (p *Pages) loginPage(w http.ResponseWriter, r *http.Request, _ *web.Visitor) error {
	to := web.LocalPath(r.URL.Query().Get("to"))
	if _, err := p.web.Visitor(r); err == nil {
		return web.SeeOther(w, r, to)
	}
	return p.showLogin(w, r, http.StatusOK, to, "")
}

func (p *Pages) showLogin(w http.ResponseWriter, r *http.Request, status int, to, problem string) error {
	v := loginView{GitHub: p.accounts.github != nil, To: to, Problem: problem}
	if v.GitHub {
		v.Host = p.accounts.github.host
	}
	w.Header().Set("Cache-Control", "no-store")
	return p.web.Render(w, r, nil, status, "login", web.Page{Title: "Log in", Data: v})
}

// linkPage is GET /login/link. It does not use up the link, because link scanners open links before people do. The form
// on the page does.
func (p *Pages) linkPage(w http.ResponseWriter, r *http.Request, _ *web.Visitor) error {
	w.Header().Set("Cache-Control", "no-store")
	return p.web.Render(w, r, nil, http.StatusOK, "link", web.Page{Title: "Log in", Data: r.URL.Query().Get("secret")})
}

// linkLogin is POST /login/link.
func (p *Pages) linkLogin(w http.ResponseWriter, r *http.Request, _ *web.Visitor) error {
	if p.accounts.github != nil {
		return p.refuse(w, r, "/", refusal{reason: "links_off",
			detail: "One-time links are turned off. Log in through GitHub."})
	}
	form, err := web.ReadForm(w, r, web.MaxForm)
	if err != nil {
		return err
	}
	u, err := p.takeLink(r.Context(), form.Get("secret"), web.OnThisMachine(r))
	switch {
	case errors.Is(err, errLinkElsewhere):
		return p.refuse(w, r, "/", refusal{
			reason: "link_not_local",
			detail: "This link works only on the machine that Safedelivr runs on. " +
				"Open it there, or run safedelivr login to get one that works from anywhere.",
		})
	case errors.Is(err, models.ErrNotFound):
		return p.refuse(w, r, "/", refusal{reason: "link_invalid",
			detail: "This link has been used or has expired. Run safedelivr login to get another."})
	case err == nil:
		err = p.login(w, r, u, nil)
	default:
		err = web.StoreTrouble(err)
	}
	if err != nil {
		return p.failLogin(w, r, "/", u.ID, "", err)
	}
	return web.SeeOther(w, r, "/")
}

// refusal says why a login is refused.
type refusal struct {
	status      int    // default: Forbidden
	reason      string // in the access log
	detail      string // on the page
	user, login string // ID, and login at GitHub, if they are known
}

// refuse adds a refused login to the access log and shows the login page.
func (p *Pages) refuse(w http.ResponseWriter, r *http.Request, to string, why refusal) error {
	_ = p.people.RecordAccess(r.Context(), accesslog.Event{ // it only fails for a login that succeeded
		Kind:    accesslog.FailedLogin,
		Reason:  why.reason,
		User:    why.user,
		Login:   why.login,
		Address: web.ClientAddr(r),
	})
	return p.showLogin(w, r, cmp.Or(why.status, http.StatusForbidden), to, why.detail)
}

// failLogin refuses a login if err says why the user may not log in. Otherwise it returns err.
func (p *Pages) failLogin(w http.ResponseWriter, r *http.Request, to, user, login string, err error) error {
	if e := web.Refused(err); e != nil && e.Kind == service.Forbidden {
		return p.refuse(w, r, to, refusal{reason: e.Code, detail: e.Detail, user: user, login: login})
	}
	return err
}

// flowCookie ties GitHub's answer to the browser that started the login: it holds the state, the PKCE verifier and the
// page to open afterwards.
const (
	flowCookie = "sd_login"
	flowLife   = 10 * time.Minute
)

// githubStart is POST /login/github.
func (p *Pages) githubStart(w http.ResponseWriter, r *http.Request, _ *web.Visitor) error {
	if p.accounts.github == nil {
		return web.ErrNoPage
	}
	form, err := web.ReadForm(w, r, web.MaxForm)
	if err != nil {
		return err
	}
	state, verifier := web.NewSecret(), web.NewSecret()
	flow := url.Values{"state": {state}, "verifier": {verifier}, "to": {web.LocalPath(form.Get("to"))}}
	p.web.SetCookie(w, r, flowCookie, flow.Encode(), flowLife)
	return web.SeeOther(w, r, p.accounts.github.authURL(state, verifier))
}

// githubCallback is GET /login/github/callback, which GitHub redirects to. OAuth logs in with a GET; the state proves
// that this browser started the login.
func (p *Pages) githubCallback(w http.ResponseWriter, r *http.Request, _ *web.Visitor) error {
	if p.accounts.github == nil {
		return web.ErrNoPage
	}
	var flow url.Values
	if c, err := r.Cookie(flowCookie); err == nil {
		flow, _ = url.ParseQuery(c.Value) // on error it has no state
	}
	p.web.SetCookie(w, r, flowCookie, "", 0)
	q, state := r.URL.Query(), flow.Get("state")
	if len(state) != web.SecretLength || web.HashOf(state) != web.HashOf(q.Get("state")) {
		return p.refuse(w, r, "/", refusal{reason: "wrong_state",
			detail: "This login was started in another browser or took too long. Try again."})
	}
	to := web.LocalPath(flow.Get("to"))
	if q.Get("error") != "" {
		return p.refuse(w, r, to, refusal{reason: "github_refused",
			detail: "GitHub did not log you in: the request was cancelled or denied. Try again."})
	}
	who, err := p.accounts.github.identify(r.Context(), q.Get("code"), flow.Get("verifier"))
	if err != nil {
		if refused := new(service.Error); errors.As(err, &refused) {
			return p.failLogin(w, r, to, "", who.Login, err)
		}
		p.web.Log.Error("login through GitHub failed", "err", err)
		w.Header().Set("Retry-After", strconv.Itoa(githubRetry))
		return p.refuse(w, r, to, refusal{
			status: http.StatusBadGateway,
			reason: "github_unavailable",
			detail: "GitHub could not be reached. Try again in a moment.",
		})
	}
	u := models.User{ID: who.user(), Name: strings.ToLower(who.Login), Created: time.Now().UTC()}
	taken, err := p.takenLogin(r.Context(), &who)
	if err != nil {
		return web.StoreTrouble(err)
	}
	if taken {
		p.web.Log.Warn("login refused: the listed login belongs to another GitHub account here", "login", who.Login, "id",
			who.ID)
		return p.refuse(w, r, to, refusal{
			reason: "login_taken",
			login:  who.Login,
			detail: "The login " + who.Login + " belongs to another GitHub account here. Ask the operator to list " +
				who.number() + " instead.",
		})
	}
	there, err := p.accounts.store.User(r.Context(), u.ID)
	switch {
	case err == nil:
		u = there // the ID identifies the user; names change
	case errors.Is(err, models.ErrNotFound):
		u, err = createUser(r.Context(), p.accounts.store, u)
	}
	if err == nil {
		err = p.login(w, r, u, &who)
	}
	if err != nil {
		return p.failLogin(w, r, to, u.ID, who.Login, err)
	}
	return web.SeeOther(w, r, to)
}

// takenLogin reports whether a login that is listed by name was first used here by another GitHub account. GitHub gives
// the login of a deleted account to anyone.
func (p *Pages) takenLogin(ctx context.Context, who *githubUser) (bool, error) {
	now := p.accounts.github.listed()
	names := append(slices.Clone(now.Operators), now.Logins...)
	if !contains(names, who.Login) || contains(names, who.number()) {
		return false, nil
	}
	owner, err := p.accounts.store.UserByName(ctx, strings.ToLower(who.Login))
	if errors.Is(err, models.ErrNotFound) {
		return false, nil
	}
	return strings.HasPrefix(owner.ID, "gh") && owner.ID != who.user(), err
}

// login records a login, begins a session and ends the browser's previous one. The account is the user's at GitHub;
// nil: the user has a one-time link. It refuses a disabled user.
func (p *Pages) login(w http.ResponseWriter, r *http.Request, u models.User, account *githubUser) error {
	if old, err := p.web.Visitor(r); err == nil {
		if err := p.web.Sessions.End(r.Context(), old.User, old.ID); err != nil {
			return err
		}
	}
	upTo, err := p.people.AdmitSession(r.Context(), u.ID)
	if err != nil {
		return err
	}
	s := web.Session{
		UpTo: upTo, User: u.ID, Name: u.Name, Began: time.Now().UTC(), Browser: browserName(r.UserAgent()),
		Address: web.ClientAddr(r),
	}
	done := accesslog.Event{Kind: accesslog.Login, Reason: "link", User: u.ID, Address: s.Address}
	if account != nil {
		s.Login, s.Token = account.Login, account.token
		done.Reason, done.Login = "github", account.Login
	}
	if err := p.people.RecordAccess(r.Context(), done); err != nil {
		return err
	}
	if err := p.web.BeginSession(w, r, s); err != nil {
		return err
	}
	p.web.Log.Info("logged in", "user_id", u.ID)
	return nil
}

// logout ends this browser's session.
func (p *Pages) logout(w http.ResponseWriter, r *http.Request, _ *web.Visitor) error {
	v, err := p.web.Visitor(r)
	if err == nil {
		err = p.web.Sessions.End(r.Context(), v.User, v.ID)
	}
	if err != nil && !errors.Is(err, models.ErrNotFound) {
		return err
	}
	p.web.ForgetSession(w, r)
	return web.SeeOther(w, r, "/login")
}

// browserName names a browser and its system, for the list of sessions.
func browserName(agent string) string {
	find := func(names [][2]string) string {
		for _, n := range names {
			if strings.Contains(agent, n[0]) {
				return n[1]
			}
		}
		return ""
	}
	browser := find([][2]string{
		{"Edg/", "Edge"}, {"OPR/", "Opera"}, {"Firefox/", "Firefox"}, {"Chrome/", "Chrome"}, {"Safari/", "Safari"},
	})
	system := find([][2]string{
		{"Android", "Android"}, {"iPhone", "iPhone"}, {"iPad", "iPad"}, {"Mac OS X", "macOS"}, {"Windows", "Windows"},
		{"Linux", "Linux"},
	})
	switch {
	case browser != "" && system != "":
		return browser + " on " + system
	case browser+system != "":
		return browser + system
	}
	return "Unknown browser"
}
