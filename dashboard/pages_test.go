package dashboard

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// batchOf accepts a batch of a user.
func (f *rig) batchOf(user string, fields map[string]string, to ...service.Recipient) models.ID {
	f.Helper()
	if strings.HasPrefix(user, service.GitHubUser) {
		_, _, err := f.service.SetSenders(f.Context(), service.Caller{By: "test", Operator: true}, user, []string{"shop@example.com"}, "", service.Repeat{})
		require.NoError(f, err)
	}
	in := f.service.NewIntake()
	defer in.Close()
	for name, value := range map[string]string{"from": "shop@example.com", "subject": "Hello", "text": "Dear {{email}}"} {
		if given, ok := fields[name]; ok {
			value = given
		}
		in.SetText(name, value)
	}
	if html, ok := fields["html"]; ok {
		in.SetText("html", html)
	}
	for i := range to {
		require.NoError(f, in.Add(&to[i]))
	}
	a, _, err := f.service.Accept(f.Context(), service.Caller{User: user}, in, service.Repeat{})
	require.NoError(f, err)
	return a.ID
}

// path fills a pattern's wildcards.
func fillPattern(path string, batch models.ID) string {
	switch {
	case strings.Contains(path, "/logs/{id}"):
		path = strings.Replace(path, "{id}", batch.Log(1).String(), 1)
	case strings.Contains(path, "/batches/{id}"):
		path = strings.Replace(path, "{id}", batch.String(), 1)
	case strings.HasPrefix(path, "/settings/keys/"):
		path = strings.Replace(path, "{id}", "000000000000", 1)
	}
	path = strings.NewReplacer("{id}", batch.String(), "{name}", "sg", "{what}", "parked", "{$}", "").Replace(path)
	if strings.HasPrefix(path, "/providers/") {
		return strings.Replace(path, "{do}", "offline", 1)
	}
	if strings.HasPrefix(path, "/operations/") {
		return strings.Replace(path, "{do}", "requeue", 1)
	}
	return strings.Replace(path, "{do}", "stop", 1)
}

// TestEveryRoute goes to every page and order as nobody, as another user and
// from another site.
func TestEveryRoute(t *testing.T) {
	t.Parallel()
	f := newRig(t, &GitHub{Logins: []string{"ann", "eve"}}, ann, eve)
	require.Equal(t, http.StatusOK, f.browser().byGitHub("Ann").StatusCode)
	batch := f.batchOf("gh7", map[string]string{"subject": "Ann's own"}, service.Recipient{Email: "a@example.com"})
	other := f.browser()
	require.Equal(t, http.StatusOK, other.byGitHub("eve").StatusCode)

	operators := f.board.operatorRoutes()
	all := maps.Clone(f.board.userRoutes())
	maps.Copy(all, operators)
	for _, pattern := range slices.Sorted(maps.Keys(all)) {
		t.Run(pattern, func(t *testing.T) {
			method, path, _ := strings.Cut(pattern, " ")
			path = fillPattern(path, batch)
			live := strings.HasPrefix(path, "/live/")
			f := *f
			f.TB = t
			other := &browser{rig: &f, client: other.client}

			nobody := f.browser()
			a := nobody.do(method, path, nil)
			if method == http.MethodGet {
				require.Equal(t, "/login", a.Request.URL.Path, "nobody sees it")
			} else {
				require.Equal(t, http.StatusUnauthorized, a.StatusCode, "nobody does it")
			}
			require.Contains(t, a.Header.Get("Content-Security-Policy"), "default-src 'none'")
			if method == http.MethodPost {
				a = other.do(method, path, nil, "Sec-Fetch-Site", "cross-site")
				require.Equal(t, http.StatusForbidden, a.StatusCode, "not from another site")
				a = other.do(http.MethodGet, path, nil)
				require.NotContains(t, a.text, "Ann&#39;s own")
			}
			_, forOperators := operators[pattern]
			foreign := strings.Contains(path, batch.String()[:18])
			if forOperators || foreign || strings.Contains(path, "/000000000000/") {
				a = other.do(method, path, nil)
				require.Equal(t, http.StatusNotFound, a.StatusCode, a.text)
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
	b, err := f.service.Batch(t.Context(), service.Caller{User: "gh7"}, batch.String())
	require.NoError(t, err)
	require.False(t, b.Stopped, "nothing of it changed the batch")
}

// TestNothingChangesByGet looks at everything as an operator and finds the
// journal of orders, the keys and the sessions as they were.
func TestNothingChangesByGet(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(LocalUser())
	batch := f.batchOf("local", nil, service.Recipient{Email: "a@example.com"})
	state := func() []any {
		orders, err := f.store.Controls(t.Context(), 0, 100)
		require.NoError(t, err)
		keys, err := f.store.Keys(t.Context(), "local")
		require.NoError(t, err)
		open, err := f.store.Reports(t.Context(), sessionKind("local"))
		require.NoError(t, err)
		return []any{orders, keys, open}
	}
	before := state()
	all := maps.Clone(f.board.userRoutes())
	maps.Copy(all, f.board.operatorRoutes())
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

// TestStrangersText: what strangers write shows as text, wherever it comes from.
func TestStrangersText(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(LocalUser())
	batch := f.batchOf("local", map[string]string{"from": `"` + strings.ReplaceAll(evil, `"`, `\"`) + `" <shop@example.com>`, "subject": evil + " {{first}}", "html": "<p>" + evil + "</p>"},
		service.Recipient{Email: "a@example.com", Name: evil, Vars: map[string]string{"first": evil}})
	now := time.Now()
	require.NoError(t, f.store.Append(t.Context(), batch, models.Entry{Number: 1, Token: models.NewToken(), Kind: models.Attempt, At: now, Recipients: models.SetOf(1), Account: "sg", Worker: evil}))
	require.NoError(t, f.store.PutFacts(t.Context(), models.ChunkFact{Chunk: batch, Fact: models.Fact{Key: models.OutcomeKey(1),
		Outcome: &models.Outcome{Attempt: 1, At: now, Parts: []models.Part{{Class: models.Unavailable, Recipients: models.SetOf(1), Status: 503, Text: evil}}}}}))
	require.NoError(t, f.store.Append(t.Context(), batch, models.Entry{Number: 2, Token: models.NewToken(), Kind: models.Attempt, At: now.Add(time.Second), Recipients: models.SetOf(1), Account: "mg", Because: evil}))
	_, _, err := f.service.CreateKey(t.Context(), service.Caller{User: "local"}, evil, models.KeyOptions{})
	require.NoError(t, err)
	_, _, err = f.service.Steer(t.Context(), service.Caller{User: "local"}, models.StopBatch, batch.String(), evil, service.Repeat{})
	require.NoError(t, err)
	_, err = f.board.sessions.begin(t.Context(), session{User: "local", Name: "local", Began: now, Browser: evil, Address: evil})
	require.NoError(t, err)
	for _, path := range []string{"/", "/batches", "/batches?q=" + url.QueryEscape(evil), "/batches?q=" + url.QueryEscape(evil+"@x.de"), "/batches?day=" + url.QueryEscape(evil), "/batches/" + batch.String(),
		"/batches/" + batch.String() + "/resume", "/logs/" + batch.Log(1).String(), "/providers", "/settings", "/operations", "/login?to=" + url.QueryEscape("/"+evil),
		"/login/link?secret=" + url.QueryEscape(evil), "/" + url.PathEscape(evil)} {
		a := b.get(path)
		require.NotContains(t, a.text, "<script>alert", path)
		require.NotContains(t, a.text, "<img src=x", path)
	}
	require.Contains(t, b.get("/logs/"+batch.Log(1).String()).text, "&lt;script&gt;alert")

	a := b.get("/batches/" + batch.String() + "/preview")
	require.Contains(t, a.text, "<script>", "the content is shown as it is")
	require.True(t, strings.HasPrefix(a.Header.Get("Content-Security-Policy"), "sandbox; default-src 'none'"), "in a frame that runs and loads nothing")
	a = b.get("/batches/" + batch.String() + "/preview?part=text")
	require.NotContains(t, a.text, "<script>")
}

func TestFind(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(LocalUser())
	id := f.batchOf("local", nil, service.Recipient{Email: "ann@example.com"})
	require.Equal(t, "/batches/"+id.String(), b.get("/batches?q=batch."+id.String()).Request.URL.Path)
	require.Equal(t, "/logs/"+id.Log(1).String(), b.get("/batches?q="+id.Log(1).String()).Request.URL.Path)
	require.Equal(t, http.StatusNotFound, b.get("/batches?q=01").StatusCode)
	require.Contains(t, b.get("/batches?q=ann@example.com").text, "No mail of yours to this address")
	marks := models.NewPrint(id, []models.Recipient{{Email: "ann@example.com"}})
	require.NoError(t, f.store.PutPrint(t.Context(), "local", marks))
	require.Contains(t, b.get("/batches?q=Ann@example.com").text, id.Log(1).String())
	require.Equal(t, http.StatusBadRequest, b.get("/batches?day=today").StatusCode)
	day := time.Now().UTC().Format(time.DateOnly)
	require.Contains(t, b.get("/batches?state=queued&day="+day).text, id.String())
	require.NotContains(t, b.get("/batches?state=done&day="+day).text, id.String())
	require.NotContains(t, b.get("/batches?day=2020-01-31").text, id.String())
}

func TestHealthText(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(LocalUser())
	for _, path := range []string{"/", "/providers"} {
		require.Contains(t, b.get(path).text, "t answered &lt;b&gt;503&lt;/b&gt;")
	}
}

var onceField = regexp.MustCompile(`name="once" value="([^"]+)"`)

func TestCompose(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(LocalUser())
	form := url.Values{"from": {"Shop <shop@example.com>"}, "subject": {"Hi {{first}}"}, "text": {"Dear {{first}}"}, "do": {"send"},
		"to": {"E-Mail;Name;first\r\nann@example.com;Ann Lee;Ann\r\n\"bob@example.com\";;Bob\r\n"}, "once": {onceField.FindStringSubmatch(b.get("/compose").text)[1]}}
	t.Run("send", func(t *testing.T) {
		a := b.post("/compose", form)
		require.Equal(t, http.StatusOK, a.StatusCode)
		require.True(t, strings.HasPrefix(a.Request.URL.Path, "/batches/"), a.text)
		id := strings.TrimPrefix(a.Request.URL.Path, "/batches/")
		logs, err := f.service.Logs(t.Context(), service.Caller{User: "local"}, id, "", service.Page{})
		require.NoError(t, err)
		require.Len(t, logs.Logs, 2)
		require.Equal(t, "Ann Lee", logs.Logs[0].Name)
		again := b.post("/compose", form)
		require.Equal(t, a.Request.URL.Path, again.Request.URL.Path, "a second press sends nothing more")
	})
	t.Run("test mail", func(t *testing.T) {
		form := maps.Clone(form)
		form["do"], form["test"], form["row"] = []string{"test"}, []string{"me@example.com"}, []string{"2"}
		a := b.post("/compose", form)
		id := strings.TrimPrefix(a.Request.URL.Path, "/batches/")
		logs, err := f.service.Logs(t.Context(), service.Caller{User: "local"}, id, "", service.Page{})
		require.NoError(t, err, a.text)
		require.Len(t, logs.Logs, 1)
		require.Equal(t, "me@example.com", logs.Logs[0].Email)
	})
	t.Run("bad input", func(t *testing.T) {
		bad := url.Values{"from": {"nobody"}, "subject": {""}, "text": {"typed {{first}}"}, "do": {"send"}, "to": {"ann@example.com\nb@d\n<x>"}}
		a := b.post("/compose", bad)
		require.Equal(t, http.StatusUnprocessableEntity, a.StatusCode)
		for _, want := range []string{`id="from-wrong"`, `id="subject-wrong"`, `id="to-wrong"`, `value="nobody"`, "typed {{first}}", "Line 2:", "Line 3:", `aria-invalid="true"`} {
			require.Contains(t, a.text, want)
		}
	})
	t.Run("preview", func(t *testing.T) {
		form := maps.Clone(form)
		form["row"], form["html"] = []string{"2"}, []string{"<p>{{first}} {{missing}}</p>"}
		a := b.post("/compose/preview", form)
		require.Contains(t, a.text, "Hi Bob")
		require.Contains(t, a.text, "<p>Bob {{missing}}</p>")
		require.Contains(t, a.text, "{{missing}} has no value here")
		require.True(t, strings.HasPrefix(a.Header.Get("Content-Security-Policy"), "sandbox;"))
	})
	t.Run("curl", func(t *testing.T) {
		form := maps.Clone(form)
		form["do"] = []string{"curl"}
		require.Contains(t, b.post("/compose", form).text, "&#34;email&#34;: &#34;ann@example.com&#34;")
	})
}

func TestParseList(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		in   string
		want []listed
	}{
		"nothing":       {"", nil},
		"lines":         {"a@x.de\n\n b@x.de \n", []listed{{Line: 1, Email: "a@x.de"}, {Line: 3, Email: "b@x.de"}}},
		"commas":        {"a@x.de, \"Lee, Bob\" <b@x.de>; c@x.de", []listed{{Line: 1, Email: "a@x.de"}, {Line: 1, Email: `"Lee, Bob" <b@x.de>`}, {Line: 1, Email: "c@x.de"}}},
		"table":         {"email,First Name\na@x.de,Ann\n", []listed{{Line: 2, Email: "a@x.de", Vars: map[string]string{"First_Name": "Ann"}}}},
		"table, tabs":   {"Name\tAddress\nAnn\ta@x.de", []listed{{Line: 2, Email: "a@x.de", Name: "Ann"}}},
		"short row":     {"email;n;2nd\na@x.de", []listed{{Line: 2, Email: "a@x.de"}}},
		"odd variables": {"email;2nd\na@x.de;x", []listed{{Line: 2, Email: "a@x.de", Vars: map[string]string{"_2nd": "x"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, parseList(c.in).Rows)
		})
	}
}

func FuzzParseList(f *testing.F) {
	for _, s := range []string{"a@x.de", "email,a\nb,c", "\"a\nb", "email;x\n\"", "<,>\";", "\temail\n1\t2\t3"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, row := range parseList(s).Rows {
			if row.Line < 1 {
				t.Fatalf("%q: a row on line %d", s, row.Line)
			}
			for name := range row.Vars {
				if !models.ValidVar(name) {
					t.Fatalf("%q: variable %q", s, name)
				}
			}
		}
	})
}

func TestOrders(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(LocalUser())
	batch := f.batchOf("local", nil, service.Recipient{Email: "a@example.com"}, service.Recipient{Email: "b@example.com"})
	path := "/batches/" + batch.String()
	require.Contains(t, b.get(path).text, path+"/stop")
	question := b.get(path + "/stop")
	require.Contains(t, question.text, "2 mails are not finished yet")
	require.NotContains(t, b.do(http.MethodGet, path+"/stop", nil, "HX-Request", "true").text, "<html", "the dialog gets the question alone")
	once := onceField.FindStringSubmatch(question.text)[1]
	a := b.post(path+"/stop", url.Values{"once": {once}, "why": {"wrong price"}})
	require.Equal(t, path, a.Request.URL.Path)
	require.Contains(t, a.text, "Stopped: no new call")
	require.Contains(t, a.text, path+"/resume")
	require.Contains(t, b.get("/operations").text, "“wrong price”")
	a = b.post(path+"/resume", nil)
	require.Contains(t, a.text, "Resumed")
	a = b.post(path+"/cancel", nil)
	require.Contains(t, a.text, "Cancelled: nothing more")
	require.NotContains(t, a.text, path+"/resume")
	require.Equal(t, http.StatusNotFound, b.post(path+"/explode", nil).StatusCode)

	require.Contains(t, b.get("/providers").text, "/providers/sg/offline")
	a = b.post("/providers/sg/offline", url.Values{"why": {"maintenance"}})
	require.Contains(t, a.text, "Taken offline")
	require.Contains(t, a.text, "maintenance")
	a = b.post("/operations/blocks", url.Values{"domain": {"no domain"}, "why": {"typed"}})
	require.Equal(t, http.StatusUnprocessableEntity, a.StatusCode)
	require.Contains(t, a.text, `id="domain-wrong"`)
	require.Contains(t, a.text, `value="typed"`)
	a = b.post("/operations/users", url.Values{"do": {"senders"}, "name": {"local"}, "senders": {"nothing"}})
	require.Contains(t, a.text, `id="senders-wrong"`)
	a = b.post("/operations/users", url.Values{"do": {"pause"}, "name": {"nobody-here"}})
	require.Contains(t, a.text, `id="name-wrong"`)
	a = b.post("/operations/users", url.Values{"do": {"senders"}, "name": {"local"}, "senders": {"@example.org shop@example.com"}})
	require.Contains(t, a.text, "set who a user may send as")
	require.Contains(t, b.get("/compose").text, "You may send as @example.org, shop@example.com")
	a = b.post("/operations/blocks", url.Values{"domain": {"example.org"}})
	require.Contains(t, a.text, "mail to example.org")
}

func TestKeys(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(LocalUser())
	a := b.post("/settings/keys", url.Values{"name": {""}, "networks": {"nowhere"}})
	require.Equal(t, http.StatusUnprocessableEntity, a.StatusCode)
	require.Contains(t, a.text, `id="name-wrong"`)
	require.Contains(t, a.text, `value="nowhere"`)
	a = b.post("/settings/keys", url.Values{"name": {"shop"}, "scope": {"send"}, "networks": {"nowhere"}})
	require.Contains(t, a.text, `id="networks-wrong"`)
	a = b.post("/settings/keys", url.Values{"name": {"shop"}, "scope": {"send"}, "networks": {"203.0.113.0/24"}, "life": {"30"}})
	secret := regexp.MustCompile(`sd_[A-Za-z0-9_-]{43}`).FindString(a.text)
	require.NotEmpty(t, secret)
	require.NotContains(t, b.get("/settings").text, secret, "it is shown once")
	keys, err := f.store.Keys(t.Context(), "local")
	require.NoError(t, err)
	require.Equal(t, []string{"203.0.113.0/24"}, keys[0].Networks)
	require.WithinDuration(t, time.Now().Add(30*24*time.Hour), keys[0].Expires, time.Minute)
	a = b.post("/settings/keys/"+keys[0].ID+"/revoke", nil)
	require.Contains(t, a.text, "1 revoked key is not listed")
}

func TestLogOutEverywhere(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	one, two := f.byLink(LocalUser()), f.byLink(LocalUser())
	require.Contains(t, one.get("/settings").text, "this one")
	require.Equal(t, "/login", one.post("/settings/sessions/all/end", nil).Request.URL.Path)
	require.Equal(t, "/login", two.get("/").Request.URL.Path)
}

func TestExport(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(LocalUser())
	var to []service.Recipient
	for i := range 1203 {
		to = append(to, service.Recipient{Email: fmt.Sprintf("r%d@example.com", i), Name: "=1+1"})
	}
	id := f.batchOf("local", nil, to...)
	a := b.get("/batches/" + id.String() + "/export.csv")
	require.Contains(t, a.Header.Get("Content-Disposition"), "attachment")
	rows, err := csv.NewReader(strings.NewReader(a.text)).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, 1204)
	require.Equal(t, "r1202@example.com", rows[1203][1])
	require.Equal(t, "'=1+1", rows[1][2], "a formula is no formula")
}

// TestLive watches a batch while it is stopped: the page's stream tells it.
func TestLive(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(LocalUser())
	id := f.batchOf("local", nil, service.Recipient{Email: "a@example.com"})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, f.url+"/live/batches/"+id.String(), http.NoBody)
	require.NoError(t, err)
	resp, err := b.client.Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, "text/event-stream", resp.Header.Get("Content-Type"))
	lines := bufio.NewScanner(resp.Body)
	until := func(want string) {
		t.Helper()
		for lines.Scan() {
			if strings.Contains(lines.Text(), want) {
				return
			}
		}
		require.NoError(t, lines.Err())
		t.Fatalf("the stream ended before %q", want)
	}
	until("is-queued")
	_, _, err = f.service.Steer(t.Context(), service.Caller{User: "local"}, models.StopBatch, id.String(), "", service.Repeat{})
	require.NoError(t, err)
	until("Stopped")
	cancel()
	require.Eventually(t, func() bool {
		f.board.live.mu.Lock()
		defer f.board.live.mu.Unlock()
		return len(f.board.live.feeds) == 0
	}, 10*time.Second, 10*time.Millisecond, "nobody watches, nothing is read")
}

// TestSharedFeeds: many pages that show the same are one reader.
func TestSharedFeeds(t *testing.T) {
	t.Parallel()
	h := newHub(nil)
	defer h.close()
	reads := 0
	open := func() source {
		reads++
		return source{read: func(context.Context) (any, error) { return 1, nil }, render: func(any) (parts, error) { return parts{"n": []byte("1")}, nil }}
	}
	var leaves []func()
	for range 200 {
		_, leave := h.join("key", open)
		leaves = append(leaves, leave)
	}
	require.Equal(t, 1, reads)
	for _, leave := range leaves {
		leave()
	}
	require.Empty(t, h.feeds)
}

// TestFirstPage is under 100 kB over the wire, with everything it loads.
func TestFirstPage(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(LocalUser())
	page := b.get("/")
	sum := len(page.text)
	for _, m := range regexp.MustCompile(`/assets/[a-z0-9./-]+`).FindAllString(page.text, -1) {
		a := b.do(http.MethodGet, m, nil, "Accept-Encoding", "gzip")
		require.Equal(t, "gzip", a.Header.Get("Content-Encoding"))
		require.Equal(t, "public, max-age=31536000, immutable", a.Header.Get("Cache-Control"))
		sum += len(a.text)
		z, err := gzip.NewReader(strings.NewReader(a.text))
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, z) //nolint:gosec // our own file
		require.NoError(t, err)
		require.Equal(t, http.StatusNotModified, b.do(http.MethodGet, m, nil, "If-None-Match", a.Header.Get("ETag")).StatusCode)
	}
	require.Less(t, sum, 100_000)
	t.Logf("%d bytes", sum)
	require.NotContains(t, page.text, "<style")
	require.NotContains(t, page.text, " style=")
	require.NotRegexp(t, `<script(?: [^>]*)?>[^<]`, page.text, "no script stands in a page")
}

// TestOperations: an operator sees what waits for somebody, opens and steers the
// batches of others, pauses users and lifts the holds of a restore.
func TestOperations(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	require.NoError(t, f.store.CreateUser(t.Context(), models.User{ID: "0123456789abcdef", Name: "ann", Created: time.Now()}))
	id := f.batchOf("0123456789abcdef", map[string]string{"subject": "Ann's own"}, service.Recipient{Email: "a@example.com"})
	b := f.byLink(LocalUser())

	a := b.get("/operations")
	for _, want := range []string{"1 sum is wrong", "safedelivr check --repair", "may send as anybody", `href="/batches?user=0123456789abcdef"`} {
		require.Contains(t, a.text, want)
	}
	require.NotContains(t, b.get("/batches").text, "Ann&#39;s own")
	a = b.get("/batches?user=0123456789abcdef")
	require.Contains(t, a.text, "Batches of ann")
	require.Contains(t, a.text, "Ann&#39;s own")
	require.Contains(t, b.get("/batches/"+id.String()).text, "Batches of ann")
	require.Contains(t, b.get("/logs/"+id.Log(1).String()).text, "a@example.com")

	b.post("/operations/users", url.Values{"name": {"0123456789abcdef"}, "do": {"pause"}})
	require.Contains(t, b.get("/operations").text, "Paused")
	require.Contains(t, b.get("/batches/"+id.String()).text, "the user is paused")

	require.Equal(t, http.StatusConflict, b.get("/operations/holds/lift").StatusCode)
	order := models.Control{Action: models.HoldOld, By: "cli:root", Before: time.Now().Add(time.Minute), Why: "restored"}
	_, err := models.NewJournal(f.store).Append(t.Context(), &order, nil)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return strings.Contains(b.get("/operations").text, "Held since a restore") }, time.Minute, 20*time.Millisecond)
	a = b.get("/operations/holds/lift")
	require.Contains(t, a.text, "such mail may arrive twice")
	b.post("/operations/holds/lift", url.Values{"once": {onceField.FindStringSubmatch(a.text)[1]}, "why": {"looked at"}})
	require.NotContains(t, b.get("/operations").text, "Held since a restore")

	local := service.Caller{User: "local"}
	_, err = f.service.Batch(t.Context(), local, id.String())
	require.Error(t, err, "who is no operator reads one's own alone")
	_, err = f.service.FindBatches(t.Context(), local, service.BatchFilter{User: "0123456789abcdef"}, service.Page{})
	require.Error(t, err)
	_, err = f.service.Batch(t.Context(), service.Caller{User: "local", Operator: true, Scopes: []models.Scope{models.ScopeRead}}, id.String())
	require.Error(t, err, "a key without the scope operate is no operator's")
}
