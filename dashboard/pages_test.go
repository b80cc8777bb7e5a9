package dashboard

import (
	"cmp"
	"compress/gzip"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/people"
)

// batchOf accepts a batch of a user.
func (f *rig) batchOf(user string, fields map[string]string, to ...service.Recipient) models.ID {
	f.Helper()
	if strings.HasPrefix(user, people.GitHubUser) {
		_, _, err := f.service.People.SetSenders(
			f.Context(),
			service.Caller{By: "test", Operator: true},
			user,
			[]string{"shop@example.com"},
			"",
			service.Repeat{},
		)
		require.NoError(f, err)
	}
	in := f.service.NewIntake(f.Context(), service.Caller{User: user})
	defer in.Close()
	in.Batch = intake.Batch{From: "shop@example.com", Subject: "Hello", Text: "Dear {{email}}"}
	for name, value := range fields {
		switch field, _ := in.Batch.Field(name); into := field.(type) {
		case *string:
			*into = value
		case *[]string:
			*into = strings.Fields(value)
		default:
			in.Batch.Headers = append(in.Batch.Headers, models.Header{Name: name, Value: value})
		}
	}
	require.NoError(f, in.Read(intake.Of(to...)))
	a, _, err := f.service.Accept(f.Context(), service.Caller{User: user}, in, service.Repeat{})
	require.NoError(f, err)
	return a.ID
}

// fillPattern fills the wildcards of a route's path.
func fillPattern(path string, batch models.ID) string {
	return strings.NewReplacer("/logs/{id}", "/logs/"+batch.Log(1).String(),
		"/providers/{id}/{do}", "/providers/sg/offline", "/providers/{name}/{do}", "/providers/sg/offline",
		"/providers/{id}", "/providers/sg", "{id}", batch.String(), "{name}", "sg", "{key}", "000000000000",
		"{email}", "ann@example.com", "{do}", "stop", "{$}", "").Replace(path)
}

// otherwise are the answers to forms about what does not exist, if they are not 404.
var otherwise = map[string]int{
	"POST /endpoints/{id}/remove": http.StatusOK, // it is gone, as wanted
	"POST /endpoints/{id}/replay": http.StatusUnprocessableEntity,
	"POST /endpoints/{id}/repeat": http.StatusUnprocessableEntity, // the fields are read first
}

// TestEveryRoute requests every route without a session, as another user and from
// another site.
func TestEveryRoute(t *testing.T) {
	t.Parallel()
	f := newRig(t, &login.GitHub{Logins: []string{"ann", "eve"}}, ann, eve)
	require.Equal(t, http.StatusOK, f.browser().byGitHub("Ann").StatusCode)
	batch := f.batchOf("gh7", map[string]string{"subject": "Ann's own"}, service.Recipient{Email: "a@example.com"})
	other := f.browser()
	require.Equal(t, http.StatusOK, other.byGitHub("eve").StatusCode)

	all, operators := f.routes()
	maps.Copy(all, operators)
	for _, pattern := range slices.Sorted(maps.Keys(all)) {
		t.Run(pattern, func(t *testing.T) {
			method, path, _ := strings.Cut(pattern, " ")
			path = fillPattern(path, batch)
			live := strings.HasPrefix(path, "/live/")
			f := *f
			f.TB = t
			other := &browser{rig: &f, client: other.client}

			anonymous := f.browser()
			a := anonymous.do(method, path, nil)
			if method == http.MethodGet {
				require.Equal(t, "/login", a.Request.URL.Path, "shown without a login")
			} else {
				require.Equal(t, http.StatusUnauthorized, a.StatusCode, "done without a login")
			}
			require.Contains(t, a.Header.Get("Content-Security-Policy"), "default-src 'none'")
			if method == http.MethodPost {
				a = other.do(method, path, nil, "Sec-Fetch-Site", "cross-site")
				require.Equal(t, http.StatusForbidden, a.StatusCode, "accepted from another site")
				a = other.do(http.MethodGet, path, nil)
				require.NotContains(t, a.text, "Ann&#39;s own")
			}
			_, forOperators := operators[pattern]
			foreign := strings.Contains(path, batch.String()[:18])
			if forOperators || foreign || strings.Contains(path, "/000000000000/") {
				a = other.do(method, path, nil)
				require.Equal(t, cmp.Or(otherwise[pattern], http.StatusNotFound), a.StatusCode, a.text)
				require.NotContains(t, a.text, "Ann&#39;s own")
				return
			}
			if method == http.MethodGet && !live {
				a = other.do(method, path, nil)
				require.Equal(t, http.StatusOK, a.StatusCode, a.text)
				require.NotContains(t, a.text, "Ann&#39;s own")
				require.Equal(t, "no-store", a.Header.Get("Cache-Control"))
			}
		})
	}
	b, err := f.service.Mail.Batch(t.Context(), service.Caller{User: "gh7"}, batch.String())
	require.NoError(t, err)
	require.False(t, b.Stopped, "a request changed the batch")
}

// TestNothingChangesByGet requests every GET route as an operator and compares the
// command log, the keys and the sessions before and after.
func TestNothingChangesByGet(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	batch := f.batchOf("local", nil, service.Recipient{Email: "a@example.com"})
	state := func() []any {
		commands, err := f.store.Commands(t.Context(), 0, 100)
		require.NoError(t, err)
		keys, err := f.store.Keys(t.Context(), "local")
		require.NoError(t, err)
		open, err := f.store.Transients(t.Context(), people.SessionKind("local"))
		require.NoError(t, err)
		return []any{commands, keys, open}
	}
	before := state()
	all, operators := f.routes()
	maps.Copy(all, operators)
	for _, pattern := range slices.Sorted(maps.Keys(all)) {
		_, path, _ := strings.Cut(pattern, " ")
		path = fillPattern(path, batch)
		if strings.HasPrefix(path, "/live/") {
			continue
		}
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			a := b.do(method, path, nil)
			require.Less(t, a.StatusCode, 500, "%s: %s", path, a.text)
		}
	}
	require.Equal(t, before, state())
}

const evil = `<script>alert("x")</script>'"><img src=x onerror=alert(1)>`

// evilBatch accepts a batch and stores attempts, a key and a session with text of users,
// providers and browsers that is HTML.
func (f *rig) evilBatch() models.ID {
	f.Helper()
	batch := f.batchOf(
		"local",
		map[string]string{
			"from":    `"` + strings.ReplaceAll(evil, `"`, `\"`) + `" <shop@example.com>`,
			"subject": evil + " {{first}}",
			"html":    "<p>" + evil + "</p>",
		},
		service.Recipient{Email: "a@example.com", Name: evil, Vars: map[string]string{"first": evil}},
	)
	now := time.Now()
	attempt := models.Entry{
		Number:     1,
		Token:      models.NewToken(),
		Kind:       models.Attempt,
		At:         now,
		Recipients: models.SetOf(1),
		Provider:   "sg",
		Worker:     evil,
	}
	require.NoError(f, f.store.Append(f.Context(), batch, attempt))
	refused := models.Outcome{
		Attempt: 1,
		At:      now,
		Parts:   []models.Part{{Class: models.Unavailable, Recipients: models.SetOf(1), Status: 503, Text: evil}},
	}
	fact := models.Fact{Key: models.OutcomeKey(1), Outcome: &refused}
	require.NoError(f, f.store.PutFacts(f.Context(), models.ChunkFact{Chunk: batch, Fact: fact}))
	attempt.Number, attempt.Token, attempt.At = 2, models.NewToken(), now.Add(time.Second)
	attempt.Provider, attempt.Because = "mg", evil
	require.NoError(f, f.store.Append(f.Context(), batch, attempt))

	local := service.Caller{User: "local"}
	_, _, err := f.service.People.CreateKey(f.Context(), local, evil, models.KeyOptions{})
	require.NoError(f, err)
	_, _, err = f.service.Commands.Batch(f.Context(), local, models.StopBatch, batch.String(), evil, service.Repeat{})
	require.NoError(f, err)
	s := web.Session{User: "local", Name: "local", Began: now, Browser: evil, Address: evil}
	r := httptest.NewRequestWithContext(f.Context(), http.MethodPost, "/login/link", http.NoBody)
	require.NoError(f, f.board.web.BeginSession(httptest.NewRecorder(), r, s))
	return batch
}

// TestEscaping checks that text from users, providers and browsers is escaped.
func TestEscaping(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	batch := f.evilBatch()
	for _, path := range []string{
		"/",
		"/batches",
		"/search?q=" + url.QueryEscape(evil),
		"/search?q=" + url.QueryEscape(evil+"@x.de"),
		"/batches?day=" + url.QueryEscape(evil),
		"/batches/" + batch.String(),
		"/batches/" + batch.String() + "/resume",
		"/logs/" + batch.Log(1).String(),
		"/providers",
		"/settings/keys",
		"/settings/account",
		"/operations",
		"/operations/parked",
		"/operations/blocks",
		"/operations/users",
		"/operations/audit?who=" + url.QueryEscape(evil),
		"/login?to=" + url.QueryEscape("/"+evil),
		"/login/link?secret=" + url.QueryEscape(evil),
		"/" + url.PathEscape(evil),
	} {
		a := b.get(path)
		require.NotContains(t, a.text, "<script>alert", path)
		require.NotContains(t, a.text, "<img src=x", path)
	}
	require.Contains(t, b.get("/logs/"+batch.Log(1).String()).text, "&lt;script&gt;alert")

	a := b.get("/logs/" + batch.Log(1).String() + "/mail")
	require.Contains(t, a.text, "<script>", "the preview is not escaped")
	require.True(
		t,
		strings.HasPrefix(a.Header.Get("Content-Security-Policy"), "sandbox; default-src 'none'"),
		"the preview is not sandboxed",
	)
	a = b.get("/logs/" + batch.Log(1).String() + "/mail?part=text")
	require.NotContains(t, a.text, "<script>")
}

// TestNoRoute: a path without a page is a 404, and a method that its page does not have is a 405, with and without a
// session. Neither is the login page. A browser gets a page, and any other client gets a problem. The path of a page
// leads a stranger to the login page.
func TestNoRoute(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	const page, feed = "text/html,application/xhtml+xml", "text/event-stream"
	for visitor, b := range map[string]*browser{"Back to overview": f.byLink(login.LocalUser()), "Log in": f.browser()} {
		problem := func(method, path, accept string) answer {
			t.Helper()
			a := b.do(method, path, nil, "Accept", accept)
			require.Equal(t, "application/problem+json", a.Header.Get("Content-Type"))
			require.Equal(t, "no-store", a.Header.Get("Cache-Control"))
			var p struct {
				Status int
				Code   string
			}
			require.NoError(t, json.Unmarshal([]byte(a.text), &p))
			require.Equal(t, a.StatusCode, p.Status, path)
			require.Equal(t, map[int]string{404: "no_such_route", 405: "method_not_allowed"}[a.StatusCode], p.Code, path)
			require.Equal(t, a.StatusCode == http.StatusMethodNotAllowed, a.Header.Get("Allow") != "", path)
			return a
		}
		for path, status := range map[string]int{"/v2/batches": 404, "/x": 404, "/batches": 405, "/docs": 405, "/": 405} {
			require.Equal(t, status, problem(http.MethodPost, path, page).StatusCode, path)
		}
		for _, path := range []string{"/v2/batches", "/batches/a/b/c", "/x", "/live/x"} {
			require.Equal(t, http.StatusNotFound, problem(http.MethodGet, path, "*/*").StatusCode, path)
			require.Equal(t, http.StatusNotFound, problem(http.MethodGet, path, feed).StatusCode, path)
			a := b.do(http.MethodGet, path, nil, "Accept", page)
			require.Equal(t, http.StatusNotFound, a.StatusCode, path)
			require.Equal(t, path, a.Request.URL.Path, "not redirected")
			require.Equal(t, "no-store", a.Header.Get("Cache-Control"))
			require.Contains(t, a.text, "This page does not exist")
			require.Contains(t, a.text, visitor)
		}
	}
	for _, path := range []string{"/", "/batches", "/batches/x", "/operations", "/settings"} {
		require.Equal(t, "/login", f.browser().do(http.MethodGet, path, nil, "Accept", page).Request.URL.Path, path)
	}
}

// TestAllowOfPages: the answer to a method that a page does not have names those that it has.
func TestAllowOfPages(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	batch := f.batchOf("local", nil, service.Recipient{Email: "ann@example.com"})
	patterns := []string{"GET /assets/{name}"}
	for _, room := range f.board.rooms {
		for _, routes := range []map[string]web.Handler{room.Open, room.Users, room.Operators} {
			patterns = slices.AppendSeq(patterns, maps.Keys(routes))
		}
	}
	require.Greater(t, len(patterns), 90)
	same := func(want, have string) bool {
		return want == have || strings.HasPrefix(want, "{") && (want == "{$}") == (have == "")
	}
	for _, pattern := range patterns {
		_, path, _ := strings.Cut(pattern, " ")
		path = fillPattern(path, batch)
		var have []string // the methods of all patterns that the path fits
		for _, other := range patterns {
			method, pattern, _ := strings.Cut(other, " ")
			if !slices.EqualFunc(strings.Split(pattern, "/"), strings.Split(path, "/"), same) {
				continue
			}
			if !slices.Contains(have, method) {
				have = append(have, method)
			}
			if method == http.MethodGet && !slices.Contains(have, http.MethodHead) {
				have = append(have, http.MethodHead)
			}
		}
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} {
			if slices.Contains(have, method) {
				continue
			}
			a := b.do(method, path, nil, "Accept", "*/*")
			require.Equal(t, http.StatusMethodNotAllowed, a.StatusCode, "%s %s", method, path)
			require.ElementsMatch(t, have, strings.Split(a.Header.Get("Allow"), ", "), "%s %s", method, path)
		}
	}
}

func TestHealthText(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	for _, path := range []string{"/", "/providers"} {
		require.Contains(t, b.get(path).text, "t answered &lt;b&gt;503&lt;/b&gt;")
	}
}

var onceField = regexp.MustCompile(`name="once" value="([^"]+)"`)

// TestFirstPageSize checks that the first page and its assets are below 100 kB.
func TestFirstPageSize(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	page := b.get("/")
	sum := len(page.text)
	for _, m := range regexp.MustCompile(`/assets/[a-z0-9./-]+`).FindAllString(page.text, -1) {
		a := b.do(http.MethodGet, m, nil, "Accept-Encoding", "gzip")
		require.Equal(t, "gzip", a.Header.Get("Content-Encoding"))
		require.Equal(t, "public, max-age=31536000, immutable", a.Header.Get("Cache-Control"))
		sum += len(a.text)
		z, err := gzip.NewReader(strings.NewReader(a.text))
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, z) //nolint:gosec // an embedded file
		require.NoError(t, err)
		require.Equal(
			t,
			http.StatusNotModified,
			b.do(http.MethodGet, m, nil, "If-None-Match", a.Header.Get("ETag")).StatusCode,
		)
	}
	require.Less(t, sum, 100_000)
	t.Logf("%d bytes", sum)
	require.NotContains(t, page.text, "<style")
	require.NotContains(t, page.text, " style=")
	require.NotRegexp(t, `<script(?: [^>]*)?>[^<]`, page.text, "a page has an inline script")
}

// TestAttention: the overview begins with what needs attention, the gravest first, and says if
// nothing does. Only operators see what only they can change.
func TestAttention(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newBubbleRig(t, &login.GitHub{Logins: []string{"Ann"}, Operators: []string{"bob"}}, ann, bob)
		user, boss := f.browser(), f.browser()
		user.byGitHub("Ann")
		boss.byGitHub("bob")
		f.providers(func(p *telemetry.ProviderState) { p.Health = telemetry.Health{State: telemetry.Healthy} })
		f.board.providers.Sample(t.Context(), time.Now())
		require.Contains(t, user.get("/").text, "Nothing needs your attention")
		text := boss.get("/").text
		require.Contains(t, text, "1 sum is wrong")
		require.NotContains(t, text, "Nothing needs your attention")

		command := models.Command{Kind: models.HoldOld, By: "cli:root", Before: time.Now().Add(time.Minute)}
		_, err := control.NewFollower(f.store).Append(t.Context(), &command, nil)
		require.NoError(t, err)
		f.seen[0].Health.State = telemetry.Failing
		f.providers(func(*telemetry.ProviderState) {})
		time.Sleep(time.Second)
		f.board.providers.Sample(t.Context(), time.Now())
		text = boss.get("/").text
		failing, hold, start := strings.Index(
			text,
			"is failing",
		), strings.Index(
			text,
			"Mail is on hold",
		), strings.Index(
			text,
			"three steps",
		)
		require.Positive(t, failing)
		require.Less(t, failing, hold)
		require.Less(t, hold, start)
		require.NotContains(t, user.get("/").text, "Mail is on hold")
	})
}

var (
	navigation = regexp.MustCompile(`(?s)<nav class="nav".*?</nav>`)
	navLink    = regexp.MustCompile(`<a href="([^"]+)"( aria-current="page")?>`)
)

// TestNavigation: only operators see the entries of their pages, and each page marks the entry that it belongs to.
func TestNavigation(t *testing.T) {
	t.Parallel()
	f := newRig(t, &login.GitHub{Logins: []string{"Ann"}, Operators: []string{"bob"}}, ann, bob)
	user, boss := f.browser(), f.browser()
	user.byGitHub("Ann")
	boss.byGitHub("bob")
	entries := func(page string) (all, marked []string) {
		for _, m := range navLink.FindAllStringSubmatch(navigation.FindString(page), -1) {
			if all = append(all, m[1]); m[2] != "" {
				marked = append(marked, m[1])
			}
		}
		return all, marked
	}
	var declared []web.Entry
	for _, room := range f.board.rooms {
		declared = append(declared, room.Entries...)
	}
	slices.SortStableFunc(declared, func(a, b web.Entry) int { return cmp.Compare(a.Group, b.Group) })
	all, _ := entries(boss.get("/").text)
	require.True(t, slices.EqualFunc(declared, all, func(e web.Entry, to string) bool { return e.To == to }), all)
	for _, to := range all {
		_, marked := entries(boss.get(to).text)
		require.Equal(t, []string{to}, marked)
	}
	fewer, _ := entries(user.get("/").text)
	_, operators := f.routes()
	require.Equal(t, slices.DeleteFunc(all, func(to string) bool { return operators["GET "+to] != nil }), fewer)
	require.NotContains(t, fewer, "/operations")

	id := f.batchOf("gh7", nil, service.Recipient{Email: "a@example.com"})
	batch, log := "/batches/"+id.String(), "/logs/"+id.Log(1).String()
	suppress := user.post("/selected/suppress", url.Values{"id": {id.Log(1).String()}})
	require.Equal(t, http.StatusOK, suppress.StatusCode)
	for _, page := range []struct {
		answer
		entry string
	}{
		{user.get("/drafts"), "/compose"},
		{user.get("/settings/account"), "/settings/keys"},
		{user.get(batch), "/batches"},
		{user.get(batch + "/cancel"), "/batches"},
		{user.get(log), "/batches"},
		{suppress, "/logs"},
		{user.get("/search?q=" + models.NewBatchID(time.Now()).String()), "/logs"},
		{user.get("/search?q=Hello"), ""},
		{user.get("/batches/x"), ""},
	} {
		_, marked := entries(page.text)
		require.Equal(t, page.entry, strings.Join(marked, " "), page.Request.URL)
	}
}
