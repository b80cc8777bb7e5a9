package dashboard

import (
	"cmp"
	"html"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/mail"
)

// pageOf returns the page to which the path of a form leads if it is typed.
func (b *browser) pageOf(path string) string {
	b.Helper()
	client := *b.client
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	a := (&browser{rig: b.rig, client: &client}).do(http.MethodGet, path, nil, "Accept", "text/html")
	return cmp.Or(a.Header.Get("Location"), a.Request.URL.EscapedPath())
}

// TestTypedAddressOfForm: the address of a form's answer, typed or from a bookmark, leads to the
// form's page.
func TestTypedAddressOfForm(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	for path, want := range map[string]string{
		"/settings/keys":                        "/settings/keys",
		"/settings/keys/x/revoke":               "/settings/keys#x",
		"/settings/account/sessions/all/end":    "/settings/account#sessions",
		"/operations/blocks/x/remove":           "/operations/blocks#x",
		"/operations/users/local/keys/y/revoke": "/operations/users/local#keys",
		"/operations/parked/x/discard":          "/operations/parked#x",
		"/compose/preview":                      "/compose#preview",
		"/theme":                                "/",
		"/logout":                               "/",
		"/login/github":                         "/login#github",
	} {
		require.Equal(t, want, b.pageOf(path))
		a := b.do(http.MethodGet, path, nil, "Accept", "text/html")
		require.NotEqual(t, http.StatusNotFound, a.StatusCode, path)
	}
	for _, path := range []string{"/settings/keys", "/operations/blocks", "/operations/users", "/compose"} {
		require.Contains(t, b.post(path, nil).text, `data-get="`+b.pageOf(path)+`"`, path)
	}
}

// TestEveryFormHasAPage: the path of every form, typed or bookmarked, leads to a page, and an answer to the form that
// is a page names that page, to which Back leads.
func TestEveryFormHasAPage(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	batch := f.batchOf("local", nil, service.Recipient{Email: "ann@example.com"})
	all, operators := f.routes()
	maps.Copy(all, operators)
	forms, named := 0, 0
	for _, pattern := range slices.Sorted(maps.Keys(all)) {
		method, path, _ := strings.Cut(pattern, " ")
		if method != http.MethodPost {
			continue
		}
		forms++
		path = strings.Replace(fillPattern(path, batch), "{key}", "k", 1)
		to := b.pageOf(path)
		at, _, _ := strings.Cut(to, "#")
		require.NotContains(t, b.get(at).text, "no_such_route", pattern)
		require.True(t, at != "/" || path == "/everyone" || strings.HasPrefix(path, "/selected/"),
			"%s has no page of its own", pattern)
		require.NotEqual(t, http.StatusInternalServerError,
			b.do(http.MethodGet, path, nil, "Accept", "text/html").StatusCode, pattern)
		if strings.Contains(path, "/sessions/") {
			continue // it would end this one
		}
		if a := b.post(path, nil); a.Request.Method == http.MethodPost && strings.Contains(a.text, "Skip to content") {
			named++
			require.Contains(t, a.text, `data-get="`+to+`"`, pattern)
		}
	}
	require.Greater(t, forms, 30)
	require.Greater(t, named, 10)
}

// TestKeyFormTwice: the same form creates one key, however often it is sent.
func TestKeyFormTwice(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	once := regexp.MustCompile(`name="once" value="([^"]+)"`).FindStringSubmatch(b.get("/settings/keys").text)
	require.NotNil(t, once)
	form := url.Values{"name": {"shop"}, "scopes": {"send"}, "once": {once[1]}}
	first := b.post("/settings/keys", form).text
	require.Contains(t, first, `id="new-key"`)
	require.Less(
		t,
		strings.Index(first, `id="keys"`),
		strings.Index(first, `id="new-key"`),
		"the browser scrolls to #keys",
	)
	again := b.post("/settings/keys", form).text
	require.NotContains(t, again, `id="new-key"`)
	require.Contains(t, again, "This key exists already.")
	keys, err := f.service.People.Keys(t.Context(), service.Caller{User: "local"})
	require.NoError(t, err)
	require.Len(t, keys, 1)
}

// TestFormIsKeptWithoutSession: what was entered before the session ended is sent after the next
// login, unchanged.
func TestFormIsKeptWithoutSession(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	stranger := f.browser()
	entered := url.Values{
		"from": {
			"shop@example.com",
		}, "subject": {`A "quoted" <b>subject</b>`}, "text": {"Two\nlines, {{first}}"}, "do": {"curl"},
	}
	a := stranger.post("/compose", entered)
	require.Equal(t, http.StatusUnauthorized, a.StatusCode)
	require.Contains(t, a.text, "Your session has ended")
	require.Contains(t, a.text, `action="/compose"`)
	kept := url.Values{}
	hidden := regexp.MustCompile(`(?s)<input type="hidden" name="([^"]+)" value="([^"]*)">`)
	for _, m := range hidden.FindAllStringSubmatch(a.text, -1) {
		kept.Add(m[1], html.UnescapeString(m[2]))
	}
	require.Equal(t, entered, kept)
	batches, err := f.service.Mail.FindBatches(t.Context(), service.Caller{User: "local"}, mail.BatchFilter{},
		service.Page{})
	require.NoError(t, err)
	require.Empty(t, batches.Batches)

	a = stranger.post("/compose", url.Values{"text": {strings.Repeat("x", 4<<20)}})
	require.Equal(t, http.StatusUnauthorized, a.StatusCode)
	require.Contains(t, a.text, "too large to be kept")
}
