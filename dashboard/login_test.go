package dashboard

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/people"
)

var (
	ann = gitHubUser{ID: 7, Login: "Ann", Orgs: []string{"acme"}}
	bob = gitHubUser{ID: 8, Login: "bob"}
	eve = gitHubUser{ID: 9, Login: "eve"}
)

func TestLoginByLink(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	require.Contains(t, b.get("/").text, "Operator")

	link, err := f.board.LoginLink(t.Context(), login.LocalUser())
	require.NoError(t, err)
	u, err := url.Parse(link)
	require.NoError(t, err)
	t.Run("GET does not use it up", func(t *testing.T) {
		for range 3 {
			require.Contains(t, f.browser().get(link).text, u.Query().Get("secret"))
		}
	})
	t.Run("not through a proxy", func(t *testing.T) {
		a := f.browser().do(http.MethodPost, "/login/link", u.Query(), "X-Forwarded-For", "203.0.113.9")
		require.Equal(t, http.StatusForbidden, a.StatusCode)
		require.Contains(t, a.text, "only on the machine")
	})
	t.Run("once", func(t *testing.T) {
		won := make(chan bool, 8)
		for range cap(won) {
			other := f.browser()
			go func() { won <- other.post("/login/link", u.Query()).StatusCode == http.StatusOK }()
		}
		n := 0
		for range cap(won) {
			if <-won {
				n++
			}
		}
		require.Equal(t, 1, n)
	})
	t.Run("unknown secret", func(t *testing.T) {
		require.Equal(
			t,
			http.StatusForbidden,
			f.browser().post("/login/link", url.Values{"secret": {web.NewSecret()}}).StatusCode,
		)
	})
}

func TestLoginThroughGitHub(t *testing.T) {
	t.Parallel()
	f := newRig(t, &login.GitHub{Operators: []string{"bob"}, Orgs: []string{"Acme"}}, ann, bob, eve)
	a := f.browser().byGitHub("Ann")
	require.Equal(t, http.StatusOK, a.StatusCode, a.text)
	require.Equal(t, "/settings/keys", a.Request.URL.Path, "the login did not return to the page")
	u, err := f.store.User(t.Context(), "gh7")
	require.NoError(t, err)
	require.Equal(t, "ann", u.Name)
	require.NotContains(t, a.text, "Operator")

	t.Run("renamed at GitHub", func(t *testing.T) {
		f.github.Rename(7, "Anna")
		a := f.browser().byGitHub("Anna")
		require.Equal(t, http.StatusOK, a.StatusCode)
		again, err := f.store.User(t.Context(), "gh7")
		require.NoError(t, err)
		require.Equal(t, u, again)
	})
	t.Run("operator who is not in Logins", func(t *testing.T) {
		require.Contains(t, f.browser().byGitHub("bob").text, "Operator")
	})
	t.Run("user who is not allowed", func(t *testing.T) {
		b := f.browser()
		a := b.byGitHub("eve")
		require.Equal(t, http.StatusForbidden, a.StatusCode)
		require.Contains(t, a.text, "The GitHub user eve may not use this Safedelivr")
		require.Equal(t, "/login", b.get("/").Request.URL.Path)
		_, err := f.store.User(t.Context(), "gh9")
		require.ErrorIs(t, err, models.ErrNotFound)
	})
	t.Run("cancelled at GitHub", func(t *testing.T) {
		b := f.browser()
		page := b.post("/login/github", nil)
		form := page.Request.URL.Query()
		form.Set("deny", "yes")
		a := b.post(page.Request.URL.Scheme+"://"+page.Request.URL.Host+"/login/oauth/authorize", form)
		require.Equal(t, http.StatusForbidden, a.StatusCode)
		require.Contains(t, a.text, "cancelled or denied")
	})
	t.Run("answer for another browser", func(t *testing.T) {
		other := f.browser()
		page := other.post("/login/github", nil)
		form := page.Request.URL.Query()
		form.Set("login", "bob")
		other.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		back := other.post(page.Request.URL.Scheme+"://"+page.Request.URL.Host+"/login/oauth/authorize", form)
		stolen := back.Header.Get("Location")
		require.Contains(t, stolen, "code=")
		a := f.browser().get(stolen)
		require.Equal(t, http.StatusForbidden, a.StatusCode)
		require.Contains(t, a.text, "started in another browser")
	})
}

// TestLinksWithGitHub checks that one-time links are off if users log in through GitHub.
func TestLinksWithGitHub(t *testing.T) {
	t.Parallel()
	f := newRig(t, &login.GitHub{Operators: []string{"bob"}}, bob)
	_, err := f.board.LoginLink(t.Context(), login.LocalUser())
	require.Error(t, err)
	link, err := login.NewLink(t.Context(), f.store, f.url, login.LocalUser())
	require.NoError(t, err)
	l, err := url.Parse(link)
	require.NoError(t, err)
	require.Equal(t, http.StatusForbidden, f.browser().post("/login/link", l.Query()).StatusCode)
}

func TestNameTaken(t *testing.T) {
	t.Parallel()
	f := newRig(t, &login.GitHub{Logins: []string{"ANN"}}, ann)
	require.NoError(t, f.store.CreateUser(t.Context(), models.User{ID: "x", Name: "ann", Created: time.Now()}))
	require.Equal(t, http.StatusOK, f.browser().byGitHub("Ann").StatusCode)
	u, err := f.store.User(t.Context(), "gh7")
	require.NoError(t, err)
	require.Equal(t, "ann-gh7", u.Name)
}

func TestScopesAsked(t *testing.T) {
	t.Parallel()
	for want, gh := range map[string]*login.GitHub{"": {Logins: []string{"ann"}}, "read:org": {Orgs: []string{"acme"}}} {
		f := newRig(t, gh, ann)
		q := f.browser().post("/login/github", nil).Request.URL.Query()
		require.Equal(t, want, q.Get("scope"))
		require.Equal(t, "S256", q.Get("code_challenge_method"))
		require.Equal(t, f.url+"/login/github/callback", q.Get("redirect_uri"))
	}
}

// knows returns models.ErrNotFound if there is no session for the value of a cookie.
func (f *rig) knows(cookie string) error {
	r := httptest.NewRequestWithContext(f.Context(), http.MethodGet, "/", http.NoBody)
	r.AddCookie(&http.Cookie{Name: "sd_session", Value: cookie})
	_, err := f.board.web.Visitor(r)
	return err
}

func TestSessions(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	base, err := url.Parse(f.url)
	require.NoError(t, err)
	cookie := b.client.Jar.Cookies(base)[0]
	require.Equal(t, "sd_session", cookie.Name)
	_, secret, _ := strings.Cut(cookie.Value, ".")

	t.Run("the store has no secret", func(t *testing.T) {
		all, err := f.store.Transients(t.Context(), people.SessionKind("local"))
		require.NoError(t, err)
		require.Len(t, all, 1)
		for hash, raw := range all {
			require.Equal(t, models.HashSecret(secret), hash)
			require.NotContains(t, string(raw), secret)
		}
	})
	t.Run("another user's secret under one's own name", func(t *testing.T) {
		require.ErrorIs(t, f.knows("gh1."+secret), models.ErrNotFound)
	})
	t.Run("a new login ends the old session", func(t *testing.T) {
		link, err := f.board.LoginLink(t.Context(), login.LocalUser())
		require.NoError(t, err)
		l, err := url.Parse(link)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, b.post("/login/link", l.Query()).StatusCode)
		require.NotEqual(t, cookie.Value, b.client.Jar.Cookies(base)[0].Value)
		require.ErrorIs(t, f.knows(cookie.Value), models.ErrNotFound)
	})
	t.Run("log out", func(t *testing.T) {
		value := b.client.Jar.Cookies(base)[0].Value
		require.Equal(t, "/login", b.post("/logout", nil).Request.URL.Path)
		require.Empty(t, b.client.Jar.Cookies(base))
		require.ErrorIs(t, f.knows(value), models.ErrNotFound)
	})
}

// A session ends when its user is removed from the configuration or from the organisation.
func TestSessionEndsWithAccess(t *testing.T) {
	t.Parallel()
	in := func(b *browser) bool { return b.get("/settings/keys").Request.URL.Path == "/settings/keys" }
	t.Run("login no longer listed", func(t *testing.T) {
		t.Parallel()
		f := newRig(t, &login.GitHub{Logins: []string{"eve", "id:8"}}, ann, bob, eve)
		byName, byNumber := f.browser(), f.browser()
		byName.byGitHub("eve")
		byNumber.byGitHub("bob")
		require.True(t, in(byName))
		require.True(t, in(byNumber))
		f.board.SetGitHub(login.GitHub{Logins: []string{"id:8"}})
		require.False(t, in(byName))
		require.True(t, in(byNumber))
		f.board.SetGitHub(login.GitHub{Logins: []string{"eve"}})
		require.False(t, in(byName), "the session has ended")
	})
	t.Run("no longer a member", func(t *testing.T) {
		t.Parallel()
		f := newRig(t, &login.GitHub{Orgs: []string{"acme"}}, ann, bob)
		b := f.browser()
		b.byGitHub("Ann")
		require.True(t, in(b))
		f.github.SetOrgs(7)
		require.True(t, in(b), "GitHub is not asked at each request")
		open, err := f.board.web.Sessions.List(t.Context(), "gh7")
		require.NoError(t, err)
		ttl, _ := f.store.lives.Load("member.gh7")
		require.Equal(t, time.Hour, ttl)
		require.NoError(t, f.store.PutTransient(t.Context(), "member.gh7", open[0].ID, nil, 0)) // an hour later
		require.False(t, in(b))
		require.False(t, f.board.Arrived(t.Context(), "gh7"))
	})
	t.Run("GitHub is no longer used", func(t *testing.T) {
		t.Parallel()
		f := newRig(t, &login.GitHub{Operators: []string{"bob"}}, bob)
		b := f.browser()
		b.byGitHub("bob")
		require.True(t, in(b))
		f.reopen(func(d *Deps) { d.GitHub = nil })
		require.False(t, in(b))
	})
	t.Run("GitHub is used now", func(t *testing.T) {
		t.Parallel()
		f := newRig(t, nil)
		b := f.byLink(login.LocalUser())
		require.True(t, in(b))
		f.reopen(func(d *Deps) { d.GitHub = &login.GitHub{Operators: []string{"bob"}} })
		require.False(t, in(b))
	})
}

// A listed login belongs to the account that first used it: GitHub gives the login of a
// deleted account to anyone.
func TestLoginBelongsToItsFirstAccount(t *testing.T) {
	t.Parallel()
	f := newRig(t, &login.GitHub{Operators: []string{"bob"}}, bob, eve)
	require.Equal(t, http.StatusOK, f.browser().byGitHub("bob").StatusCode)
	f.github.Rename(8, "robert")
	f.github.Rename(9, "bob")
	a := f.browser().byGitHub("bob")
	require.Equal(t, http.StatusForbidden, a.StatusCode)
	require.Contains(t, a.text, "id:9")
	f.board.SetGitHub(login.GitHub{ClientSecret: "secret", Operators: []string{"bob", "id:9"}})
	require.Equal(t, http.StatusOK, f.browser().byGitHub("bob").StatusCode)
}

// storeWithoutSessions is a store whose sessions cannot be read.
type storeWithoutSessions struct{ web.Store }

func (storeWithoutSessions) Transient(context.Context, string, string) ([]byte, error) {
	return nil, errors.New("broken")
}

// roundTripper is an http.RoundTripper.
type roundTripper func(r *http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestTroubleNamesItsTime: a page that asks to try again in a moment says when to programs, too.
func TestTroubleNamesItsTime(t *testing.T) {
	t.Parallel()
	gh := &login.GitHub{Logins: []string{"ann"}}
	f := newRig(t, gh, ann)
	b := f.browser()
	require.Equal(t, http.StatusOK, b.byGitHub("Ann").StatusCode)
	f.reopen(func(d *Deps) { d.Store = storeWithoutSessions{d.Store} })
	gh.Client.Transport = roundTripper(func(*http.Request) (*http.Response, error) { return nil, errors.New("away") })
	for status, a := range map[int]answer{503: b.get("/batches"), 502: f.browser().byGitHub("Ann")} {
		require.Equal(t, status, a.StatusCode)
		require.Contains(t, a.text, "Try again in a moment.")
		require.Equal(t, "5", a.Header.Get("Retry-After"))
	}
}
