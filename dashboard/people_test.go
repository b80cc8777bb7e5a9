package dashboard

import (
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/accesslog"
	"github.com/safedelivr/safedelivr/service/audit"
	"github.com/safedelivr/safedelivr/service/people"
)

var console = service.Caller{By: "cli:zoe", Operator: true}

// in reports whether a browser is logged in.
func (b *browser) in() bool { return b.get("/settings/keys").Request.URL.Path == "/settings/keys" }

// recorded returns the access log as "kind reason user login".
func (f *rig) recorded() (out []string) {
	page, err := f.service.People.AccessLog(f.Context(), console, "", service.Page{})
	require.NoError(f, err)
	for i := range page.Entries {
		e := &page.Entries[i]
		require.NotEmpty(f, e.Address)
		out = append(out, strings.Join([]string{e.Kind, e.Reason, e.User, e.GitHubLogin}, " "))
	}
	return out
}

// linkOf returns the form of a link that works from anywhere.
func (f *rig) linkOf(u models.User) url.Values {
	raw, err := login.NewLink(f.Context(), f.store, "https://mail.example.com/", u)
	require.NoError(f, err)
	require.True(f, strings.HasPrefix(raw, "https://mail.example.com/login/link?secret="))
	link, err := url.Parse(raw)
	require.NoError(f, err)
	return link.Query()
}

// TestLinkWorksBehindPortMapping: a link of the command line works from another machine, once
// and for a quarter of an hour. The store does not hold its secret.
func TestLinkWorksBehindPortMapping(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	elsewhere := []string{"X-Forwarded-For", "203.0.113.9"} // not from this machine
	form := f.linkOf(login.LocalUser())
	stored, err := f.store.Transients(t.Context(), "login-links")
	require.NoError(t, err)
	require.Len(t, stored, 1)
	for hash, raw := range stored {
		require.NotContains(t, hash+string(raw), form.Get("secret"))
	}
	won := make(chan *browser, 8)
	for range cap(won) {
		b := f.browser()
		go func() {
			if b.do(http.MethodPost, "/login/link", form, elsewhere...).StatusCode != http.StatusOK {
				b = nil
			}
			won <- b
		}()
	}
	n := 0
	for range cap(won) {
		if b := <-won; b != nil {
			n++
			require.True(t, b.in())
		}
	}
	require.Equal(t, 1, n, "it works once")

	form = f.linkOf(login.LocalUser())
	life, _ := f.store.lives.Load("login-links")
	require.Equal(t, 15*time.Minute, life)
	hash := models.HashSecret(form.Get("secret"))
	require.NoError(t, f.store.PutTransient(t.Context(), "login-links", hash, nil, 0)) // its time is over
	require.Equal(t, http.StatusForbidden, f.browser().do(http.MethodPost, "/login/link", form, elsewhere...).StatusCode)
	require.ElementsMatch(t, []string{"login.failed link_invalid  ", "login link local "}, f.recorded())
}

// TestLinkIsUsedOnceAcrossProcesses: a link whose use another process has claimed is used up,
// even if the link is still stored.
func TestLinkIsUsedOnceAcrossProcesses(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	form := f.linkOf(login.LocalUser())
	hash := models.HashSecret(form.Get("secret"))
	stored, err := f.store.Transient(t.Context(), "login-links", hash)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, f.browser().post("/login/link", form).StatusCode)
	require.NoError(t, f.store.PutTransient(t.Context(), "login-links", hash, stored, time.Minute))
	require.Equal(t, http.StatusForbidden, f.browser().post("/login/link", form).StatusCode)
}

// TestDisabledUserIsLoggedOut: the sessions of a disabled user end at the next request, and a
// login is refused with the reason.
func TestDisabledUserIsLoggedOut(t *testing.T) {
	t.Parallel()
	f := newRig(t, &login.GitHub{Operators: []string{"bob"}, Logins: []string{"eve"}}, bob, eve)
	boss, b := f.browser(), f.browser()
	boss.byGitHub("bob")
	b.byGitHub("eve")
	require.True(t, b.in())
	form := url.Values{"do": {"disable"}, "why": {"left the firm"}}
	a := boss.post("/operations/users/gh9", form)
	require.Equal(t, "/operations/users/gh9", a.Request.URL.Path)
	require.Contains(t, a.text, "left the firm")
	require.Contains(t, a.text, "Accepted mail still goes out")
	require.Contains(t, a.text, "No open sessions")
	require.False(t, b.in())
	a = b.byGitHub("eve")
	require.Equal(t, http.StatusForbidden, a.StatusCode)
	require.Contains(t, a.text, "An operator has disabled this user")
	require.ElementsMatch(
		t,
		[]string{"login.failed user_disabled gh9 eve", "login github gh9 eve", "login github gh8 bob"},
		f.recorded(),
	)
	form.Set("why", strings.Repeat("x", 501))
	form.Set("do", "enable")
	a = boss.post("/operations/users/gh9", form)
	require.Equal(t, http.StatusUnprocessableEntity, a.StatusCode)
	require.Contains(t, a.text, "at most 500 characters")
	form.Set("why", "")
	boss.post("/operations/users/gh9", form)
	require.False(t, b.in(), "the session has ended")
	require.Equal(t, http.StatusOK, b.byGitHub("eve").StatusCode)
	require.True(t, b.in())
	form.Set("do", "disable")
	require.Equal(t, http.StatusConflict, boss.post("/operations/users/gh8", form).StatusCode)
	require.NotContains(t, boss.get("/operations/users/gh8").text, "Disable bob")
	require.Equal(t, http.StatusNotFound, b.get("/operations/users/gh8").StatusCode, "users do not see it")
	require.Equal(t, http.StatusNotFound, b.post("/operations/users/gh8", form).StatusCode)
}

// TestAllSessionsEnd: an operator ends the sessions of a user, and a user those of its own, in
// browsers that are connected to any process.
func TestAllSessionsEnd(t *testing.T) {
	t.Parallel()
	f := newRig(t, &login.GitHub{Operators: []string{"bob"}, Logins: []string{"eve"}}, bob, eve)
	boss, first, second := f.browser(), f.browser(), f.browser()
	boss.byGitHub("bob")
	first.byGitHub("eve")
	second.byGitHub("eve")
	a := boss.get("/operations/users/gh9")
	require.Equal(t, 2, strings.Count(a.text, "GitHub login eve"))
	boss.post("/operations/users/gh9", url.Values{"do": {"end-sessions"}})
	require.False(t, first.in())
	require.False(t, second.in())
	require.True(t, boss.in())

	first.byGitHub("eve")
	second.byGitHub("eve")
	require.Equal(t, "/login", first.post("/settings/account/sessions/all/end", nil).Request.URL.Path)
	require.False(t, second.in())
	page, err := f.service.Audit.Find(t.Context(), console, audit.Filter{}, service.Page{})
	require.NoError(t, err)
	require.Len(t, page.Commands, 2)
	require.Equal(t, []string{"gh9", "gh8"}, []string{page.Commands[0].By, page.Commands[1].By})
	require.Contains(t, boss.get("/operations/audit").text, "ended the sessions of a user")
}

// TestEndedSessionDoesNotComeBack: a session that is stored again after a command has ended it
// stays ended.
func TestEndedSessionDoesNotComeBack(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	kept := map[string]map[string][]byte{}
	for _, kind := range []string{people.SessionKind("local"), people.SessionUseKind("local")} {
		all, err := f.store.Transients(t.Context(), kind)
		require.NoError(t, err)
		kept[kind] = all
	}
	_, _, err := f.service.People.EndSessions(t.Context(), console, "local", "", service.Repeat{})
	require.NoError(t, err)
	for kind, all := range kept {
		for hash, raw := range all {
			require.NoError(t, f.store.PutTransient(t.Context(), kind, hash, raw, time.Hour))
		}
	}
	require.False(t, b.in())
}

// TestUserPageRevokesKeys: an operator sees the keys of a user and revokes one.
func TestUserPageRevokesKeys(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	require.NoError(t, f.store.CreateUser(t.Context(), models.User{ID: "ann", Name: "ann", Created: time.Now()}))
	b := f.byLink(login.LocalUser())
	key, _, err := f.service.People.CreateKey(t.Context(), service.Caller{User: "ann"}, "shop key", models.KeyOptions{})
	require.NoError(t, err)
	require.Contains(t, b.get("/operations/users").text, `href="/operations/users/ann"`)
	require.Contains(t, b.get("/operations/users/ann").text, "shop key")
	a := b.post("/operations/users/ann/keys/"+key.ID+"/revoke", nil)
	require.Equal(t, "/operations/users/ann", a.Request.URL.Path)
	require.Contains(t, a.text, "1 revoked key is not listed")
	require.Equal(t, http.StatusNotFound, b.post("/operations/users/ann/keys/x/revoke", nil).StatusCode)
	require.Equal(t, http.StatusNotFound, b.get("/operations/users/eve").StatusCode)
	a = b.post("/operations/users", url.Values{"id": {"ann"}, "do": {"open"}})
	require.Equal(t, "/operations/users/ann", a.Request.URL.Path)
	a = b.post("/operations/users", url.Values{"id": {"eve"}, "do": {"open"}})
	require.Contains(t, a.text, "There is no such user.")
}

// TestKeysPageListsAll: an operator lists the keys of all users and revokes one.
func TestKeysPageListsAll(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	require.Contains(t, b.get("/operations/keys").text, "No API keys")
	var last models.Key
	for _, name := range []string{"ann", "bea"} {
		require.NoError(t, f.store.CreateUser(t.Context(), models.User{ID: name, Name: name, Created: time.Now()}))
		var err error
		last, _, err = f.service.People.CreateKey(t.Context(), service.Caller{User: name}, "shop of "+name,
			models.KeyOptions{})
		require.NoError(t, err)
	}
	require.Contains(t, b.get("/operations/users").text, `href="/operations/keys"`)
	text := b.get("/operations/keys").text
	require.Contains(t, text, "shop of ann")
	require.Contains(t, text, "shop of bea")
	require.NotContains(t, text, "Revoked<")
	a := b.post("/operations/keys/bea/"+last.ID+"/revoke", nil)
	require.Equal(t, "/operations/keys", a.Request.URL.Path)
	require.Contains(t, a.text, "Revoked<")
	require.Equal(t, http.StatusBadRequest, b.get("/operations/keys?cursor=x").StatusCode)
}

// TestLoginsAreRecorded: logins and refused logins are on the audit page, which filters them.
func TestLoginsAreRecorded(t *testing.T) {
	t.Parallel()
	f := newRig(t, &login.GitHub{Operators: []string{"bob"}}, bob, eve)
	boss := f.browser()
	require.Equal(t, http.StatusForbidden, boss.get("/login/github/callback?code=x&state=y").StatusCode)
	require.Equal(t, http.StatusForbidden, boss.post("/login/link", url.Values{"secret": {web.NewSecret()}}).StatusCode)
	page := boss.post("/login/github", nil)
	form := page.Request.URL.Query()
	form.Set("deny", "yes")
	boss.post(page.Request.URL.Scheme+"://"+page.Request.URL.Host+"/login/oauth/authorize", form)
	boss.byGitHub("eve")
	boss.byGitHub("bob")
	require.ElementsMatch(t, []string{
		"login github gh8 bob",
		"login.failed not_allowed  eve",
		"login.failed github_refused  ",
		"login.failed links_off  ",
		"login.failed wrong_state  ",
	}, f.recorded())
	const refused, loggedIn = "login refused: the GitHub user is not listed", "logged in through GitHub"
	for _, words := range []string{loggedIn, refused} {
		require.Contains(t, boss.get("/operations/audit").text, words)
	}
	failed := boss.get("/operations/audit?access=" + string(accesslog.FailedLogin)).text
	require.Contains(t, failed, refused)
	require.NotContains(t, failed, loggedIn)
	require.Equal(t, http.StatusBadRequest, boss.get("/operations/audit?access=x").StatusCode)
}

// TestLivePageOfEndedSession: a live page that is open shows nothing more after a command has
// ended its session.
func TestLivePageOfEndedSession(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	id := f.batchOf("local", nil, service.Recipient{Email: "a@example.com"})
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.url+"/live/batches/"+id.String(), http.NoBody)
	require.NoError(t, err)
	resp, err := b.client.Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	first := make([]byte, 1)
	_, err = io.ReadFull(resp.Body, first)
	require.NoError(t, err)
	_, _, err = f.service.People.EndSessions(t.Context(), console, "local", "", service.Repeat{})
	require.NoError(t, err)
	_, _, err = f.service.Commands.Batch(t.Context(), console, models.StopBatch, id.String(), "", service.Repeat{})
	require.NoError(t, err)
	rest, err := io.ReadAll(resp.Body) // the server ends it
	require.NoError(t, err)
	require.NotContains(t, string(rest), "Stopped")
}
