package dashboard

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/requestlog"
)

// summed stores the summary of a batch of one chunk and the sums above it, as a worker does.
func (f *rig) summed(id models.ID) {
	f.Helper()
	ctx := f.Context()
	b, err := f.store.Batch(ctx, id)
	require.NoError(f, err)
	entries, facts, err := f.store.Record(ctx, id)
	require.NoError(f, err)
	sum := models.Resolve(b.Recipients, entries, facts).SummaryOf(id, b.Groups)
	require.NoError(f, f.store.PutSummaries(ctx, models.ChunkSummary{User: b.User, Chunk: id, Summary: sum}))
	for _, l := range models.Levels {
		err := f.store.RollUp(ctx, models.SpanOf(b.User, l, id.Time()))
		require.NoError(f, err)
	}
}

// mixed accepts a batch of n recipients: of each six, one is delivered, one bounced, one has
// no provider left after two, one is held, one is cancelled, and one was not tried.
func (f *rig) mixed(user string, n int) models.ID {
	f.Helper()
	var to []service.Recipient
	by := make([]models.Set, 6)
	for i := range n {
		to = append(to, service.Recipient{Email: fmt.Sprintf("r%d@example.com", i)})
		by[i%6].Add(i + 1)
	}
	id := f.batchOf(user, map[string]string{"tags": "news"}, to...)
	at := time.Now()
	add := func(e models.Entry) {
		e.Token, e.At = models.NewToken(), at
		require.NoError(f, f.store.Append(f.Context(), id, e))
	}
	answer := func(n int, parts ...models.Part) {
		o := models.Outcome{Attempt: n, At: at, Parts: parts}
		fact := models.Fact{Key: models.OutcomeKey(n), Outcome: &o}
		require.NoError(f, f.store.PutFacts(f.Context(), models.ChunkFact{Chunk: id, Fact: fact}))
	}
	event := func(kind models.EventKind, reason models.Reason, who models.Set) {
		for r := range who.All() {
			e := models.Event{
				ID:        fmt.Sprint(kind, r),
				Attempt:   1,
				Provider:  "sg",
				Recipient: r,
				Kind:      kind,
				At:        at,
				Reason:    reason,
			}
			fact := models.Fact{Key: e.ID, Events: []models.Event{e}}
			require.NoError(f, f.store.PutFacts(f.Context(), models.ChunkFact{Chunk: id, Fact: fact}))
		}
	}
	add(models.Entry{Number: 1, Kind: models.Attempt, Provider: "sg", Recipients: by[0].Or(by[1]).Or(by[2]).Or(by[3])})
	answer(1, models.Part{Class: models.Accepted, Recipients: by[0].Or(by[1])},
		models.Part{Class: models.Unavailable, Recipients: by[2]},
		models.Part{Class: models.Unknown, Recipients: by[3]})
	event(models.Delivered, "", by[0])
	event(models.Bounced, models.MailboxInvalid, by[1])
	add(models.Entry{Number: 2, Kind: models.Attempt, Provider: "mg", Recipients: by[2]})
	answer(2, models.Part{Class: models.Unavailable, Recipients: by[2]})
	add(models.Entry{Number: 3, Kind: models.Ending, Recipients: by[2], Reason: models.NoProviderLeft})
	add(models.Entry{Number: 4, Kind: models.Ending, Recipients: by[3], Reason: models.OutcomeUnknown})
	add(models.Entry{Number: 5, Kind: models.Cancel, Recipients: by[4]})
	f.summed(id)
	return id
}

// countLink matches a link to a list, and the number in it.
var countLink = regexp.MustCompile(`(?s)href="(/(?:batches|logs)[^"]*[?#][^"]*)"[^>]*>(.*?)</a>`)

var (
	tags    = regexp.MustCompile(`<[^>]*>`)
	numbers = regexp.MustCompile(`[0-9][0-9\x{202f}]*`)
	aShare  = regexp.MustCompile(`^[^0-9]*[0-9.]+ %`)
	rowsOf  = regexp.MustCompile(`class="row (?:log|batch)-row"`)
)

// TestEveryCountIsALink: on the page of a batch and in the list of batches, the list behind each
// count above 0 has as many entries as the count says.
func TestEveryCountIsALink(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	id := f.mixed("local", 26)
	pages := map[string]int{
		"/batches/" + id.String(): 17, "/batches": 8, "/": 12, "/providers": 7, "/statistics": 8,
		"/statistics?by=tag&name=news": 9,
	}
	for path, least := range pages {
		checked := map[string]bool{}
		for _, m := range countLink.FindAllStringSubmatch(b.get(path).text, -1) {
			to, text := strings.ReplaceAll(m[1], "&amp;", "&"), tags.ReplaceAllString(m[2], " ")
			if !strings.Contains(to, "#logs") && !strings.Contains(to, "/logs?") || strings.Contains(to, "size=") ||
				text == "Clear" {
				continue
			}
			found := numbers.FindString(text)
			if found == "" || aShare.MatchString(text) {
				continue // a part of a bar
			}
			want, err := strconv.Atoi(strings.ReplaceAll(found, "\u202f", ""))
			require.NoError(t, err)
			page, _, _ := strings.Cut(to, "#")
			require.Len(t, rowsOf.FindAllString(b.get(page).text, -1), want, "%s: %s", path, to)
			checked[to] = true
		}
		require.GreaterOrEqual(t, len(checked), least, path)
	}
	page := b.get("/batches/" + id.String()).text
	for _, want := range []string{
		"?state=delivered#logs", "?state=failed#logs", "?state=queued#logs", "?state=cancelled#logs", "?rerouted=true#logs",
		"?reason=mailbox_invalid#logs", "?reason=provider_unavailable#logs", "?reason=outcome_unknown#logs",
		"?provider=sg#logs", "?provider=sg&amp;result=refused#logs", "?provider=sg&amp;result=unknown#logs",
	} {
		require.Contains(t, page, want)
	}
}

// TestPagesOfLists: lists have pages of a chosen size, say where they are, and lead both ways.
func TestPagesOfLists(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	id := f.mixed("local", 130)
	next := regexp.MustCompile(`<a href="([^"]+)" rel="(prev|next)">`)
	turn := func(page, rel string) string {
		for _, m := range next.FindAllStringSubmatch(page, -1) {
			if m[2] == rel {
				return strings.ReplaceAll(m[1], "&amp;", "&")
			}
		}
		return ""
	}
	first := b.get("/batches/" + id.String()).text
	require.Contains(t, first, "1–50 of 130")
	require.Empty(t, turn(first, "prev"))
	second := b.get(turn(first, "next")).text
	require.Contains(t, second, "51–100 of 130")
	third := b.get(turn(second, "next")).text
	require.Contains(t, third, "101–130 of 130")
	require.Empty(t, turn(third, "next"))
	require.Contains(t, b.get(turn(third, "prev")).text, "51–100 of 130")
	require.Contains(t, b.get("/batches/"+id.String()+"?size=25&state=delivered").text, "1–22 of 22")
	require.Contains(t, b.get("/logs?size=100").text, "1–100 of 130")
	require.Contains(t, b.get("/logs?size=500&state=failed").text, "1–66 of 66")
	// Sums do not tell of a combination: it is counted.
	require.Contains(t, b.get("/logs?size=25&state=failed&provider=sg").text, "1–25 of 66")

	for range 29 {
		f.mixed("local", 1)
	}
	first = b.get("/batches?size=25").text
	require.Contains(t, first, "1–25 of 30")
	require.Contains(t, b.get(turn(first, "next")).text, "26–30 of 30")
	require.Contains(t, b.get("/batches?size=25&from="+id.Time().UTC().Format(time.DateOnly)).text, "1–25 of ")
	require.Contains(t, b.get("/batches?size=25&subject=Hello").text, "1–25 of 30", "these are counted")
	require.Contains(t, b.get("/logs?size=25&q=r0").text, "1–25 of 30")
}

// TestEveryoneSwitch: an operator switches all pages and searches to everybody's mail. Another
// user cannot.
func TestEveryoneSwitch(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	f.mixed("local", 6)
	other := models.User{ID: "0123456789abcdef", Name: "ann", Created: time.Now().UTC()}
	require.NoError(t, f.store.CreateUser(t.Context(), other))
	_, _, err := f.service.People.SetSenders(t.Context(), service.Caller{By: "test", Operator: true}, other.ID,
		[]string{"shop@example.com"}, "", service.Repeat{})
	require.NoError(t, err)
	theirs := f.mixed(other.ID, 6)
	b := f.byLink(login.LocalUser())
	paths := []string{"/batches", "/logs", "/logs?state=failed", "/search?q=r1@", "/search?q=hello", "/"}
	require.Contains(t, b.get("/batches").text, theirs.String()[:20], "operators begin with everyone's mail")
	b.post("/everyone", url.Values{"everyone": {""}})
	for _, path := range paths {
		require.NotContains(t, b.get(path).text, theirs.String()[:20], path)
	}
	a := b.post("/everyone", url.Values{"everyone": {"yes"}, "to": {"/logs?state=failed"}})
	require.Equal(t, "/logs?state=failed", a.Request.URL.RequestURI())
	for _, path := range paths {
		require.Contains(t, b.get(path).text, theirs.String()[:20], path)
	}
	require.Contains(t, b.get("/batches").text, " · ann<")
	sums := []struct{ path, mine, all string }{
		{"/statistics", "Statistics Results of", "Statistics of everyone"},
		{"/statistics", "Accepted 6 recipients", "Accepted 12 recipients"},
		{"/statistics?by=sender&name=example.com", "Accepted 6 recipients", "Accepted 12 recipients"},
		{"/providers", "your mail, accepted in the last 30 days", "mail of all users, accepted in the last 30 days"},
		{"/providers", "SendGrid sg – – 4 1 25 %", "SendGrid sg – – 8 2 25 %"}, // tried, delivered
		{"/", "Accepted today 6", "Accepted today 12"},
	}
	for _, s := range sums {
		require.Contains(t, textOf(b.get(s.path).text), s.all, s.path)
	}
	events := b.live("/live/providers") // which goes on after the switch
	events.until(`">8</a></td>`)
	b.post("/everyone", url.Values{"everyone": {""}})
	require.NotContains(t, b.get("/batches").text, theirs.String())
	for _, s := range sums {
		require.Contains(t, textOf(b.get(s.path).text), s.mine, s.path)
	}
	b.live("/live/providers").until(`">4</a></td>`)

	g := newRig(t, &login.GitHub{Logins: []string{"ann", "eve"}}, ann, eve)
	user := g.browser()
	require.Equal(t, http.StatusOK, user.byGitHub("Ann").StatusCode)
	require.NotContains(t, user.get("/batches").text, "/everyone")
	user.post("/everyone", url.Values{"everyone": {"yes"}})
	require.Equal(t, http.StatusOK, user.get("/batches").StatusCode)
}

// TestSendSelected: the selected messages that can be sent again are, after a confirmation that
// says how many they are, and no others.
func TestSendSelected(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	id := f.mixed("local", 12) // 3 and 9 have no provider left, 4 and 10 are held
	released := func() (out models.Set) {
		commands, err := f.store.Commands(t.Context(), 0, 100)
		require.NoError(t, err)
		for i := range commands {
			for r := 1; r <= 12 && commands[i].Batch == id; r++ {
				if commands[i].Names(r) {
					out.Add(r)
				}
			}
		}
		return out
	}
	form := url.Values{}
	for _, r := range []int{1, 2, 3, 4, 5, 6} {
		form.Add("id", id.Log(r).String())
	}
	ask := b.post("/selected/retry", form)
	require.Contains(t, ask.text, "Retry 1 message?")
	require.True(t, released().Empty(), "it was done without a confirmation")
	form.Set("once", onceField.FindStringSubmatch(ask.text)[1])
	form.Set("back", "/batches/"+id.String())
	a := b.post("/selected/retry", form)
	require.Equal(t, "/batches/"+id.String(), a.Request.URL.Path)
	require.Equal(t, models.SetTo(6), released())

	form = url.Values{"id": {id.Log(4).String(), id.Log(10).String()}}
	ask = b.post("/selected/release", form)
	require.Contains(t, ask.text, "Release 2 messages with unknown outcome?")
	require.Contains(t, ask.text, "may arrive twice")
	form.Set("once", onceField.FindStringSubmatch(ask.text)[1])
	require.Equal(t, http.StatusOK, b.post("/selected/release", form).StatusCode)
	require.True(t, released().Has(10))

	require.Equal(t, http.StatusConflict, b.post("/selected/retry", url.Values{"id": {id.Log(1).String()}}).StatusCode)
	require.Contains(
		t,
		b.post("/selected/retry", url.Values{"id": {id.String()}}).text,
		"Retry 1 message?",
		"a whole batch",
	)
	require.Equal(t, http.StatusNotFound, b.post("/selected/stop", form).StatusCode)
}

// TestPageOfOneRecipient: the page of a batch with one recipient has the message as the recipient
// gets it, the requests to the providers, what happened, and the commands.
func TestPageOfOneRecipient(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	id := f.batchOf(
		"local",
		map[string]string{
			"subject": "Hi {{first}}", "text": "Dear {{first}}", "html": "<b>{{first}}</b>", "X-Order": "for {{first}}",
		},
		service.Recipient{Email: "ann@example.com", Name: "Ann Lee", Vars: map[string]string{"first": "A&B"}},
	)
	path := "/batches/" + id.String()
	require.Contains(t, b.get("/batches").text, "Hi A&amp;B", "the list has the subject as the recipient gets it")
	page := b.get("/logs/" + id.Log(1).String())
	require.Equal(t, path, page.Request.URL.Path)
	for _, want := range []string{
		"<h1>Hi A&amp;B</h1>", "Ann Lee &lt;ann@example.com&gt;", "Dear A&amp;B",
		`<dt>X-Order</dt><dd class="break">for A&amp;B</dd>`,
		`<iframe class="frame" sandbox title="HTML of the message" src="/logs/` + id.Log(1).String() + `/mail"`,
		"What happened", "Accepted", path + "/stop", "Request to sg", `&#34;subject&#34;:&#34;Hi &#34;`, "Request to mg",
	} {
		require.Contains(t, page.text, want)
	}
	mail := b.get("/logs/" + id.Log(1).String() + "/mail")
	require.Equal(t, "<b>A&amp;B</b>", mail.text)
	require.Contains(t, mail.Header.Get("Content-Security-Policy"), "default-src 'none'")
	require.Contains(t, b.get("/logs/"+id.Log(1).String()+"/mail?part=text").text, "Dear A&amp;B")
	request := b.get("/logs/" + id.Log(1).String() + "/requests/sg")
	require.Equal(t, "text/plain; charset=utf-8", request.Header.Get("Content-Type"))
	require.JSONEq(t, `{"subject":"Hi "}`, request.text)
	require.Equal(t, http.StatusNotFound, b.get("/logs/"+id.Log(1).String()+"/requests/ses").StatusCode)
	page = b.post(path+"/stop", nil)
	require.Contains(t, page.text, "Stopped: no new provider call starts.")
	require.Contains(t, page.text, path+"/resume")

	entry := models.Entry{Number: 1, Token: models.NewToken(), Kind: models.Attempt, At: time.Now(), Provider: "sg",
		Recipients: models.SetOf(1)}
	require.NoError(t, f.store.Append(t.Context(), id, entry))
	o := models.Outcome{
		Attempt: 1,
		At:      time.Now(),
		Parts:   []models.Part{{Class: models.Unavailable, Recipients: models.SetOf(1)}},
	}
	require.NoError(t, f.store.PutFacts(t.Context(),
		models.ChunkFact{Chunk: id, Fact: models.Fact{Key: models.OutcomeKey(1), Outcome: &o}}))
	b.post(path+"/resume", nil)
	require.Contains(t, b.get(path).text, "retry 1 of 10")

	// Every provider has failed: the next attempt is at a time.
	entry.Number, entry.Token, entry.Provider, entry.At = 2, models.NewToken(), "mg", time.Now()
	require.NoError(t, f.store.Append(t.Context(), id, entry))
	o.Attempt, o.At = 2, time.Now()
	require.NoError(t, f.store.PutFacts(t.Context(),
		models.ChunkFact{Chunk: id, Fact: models.Fact{Key: models.OutcomeKey(2), Outcome: &o}}))
	shown := b.get(path).text
	require.Regexp(t, `next attempt <span class="nowrap"><time datetime="[^"]+" title="[^"]+" data-time="in">`+
		`at \d\d:\d\d:\d\d UTC</time></span> \(retry 2 of 10\)`, shown)
	require.Contains(t, shown, path+`/try"`)
}

// TestFewRecipientsComeFirst: the page of a batch of up to ten recipients begins with them.
func TestFewRecipientsComeFirst(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	for n, first := range map[int]bool{2: true, 10: true, 11: false} {
		page := b.get("/batches/" + f.mixed("local", n).String()).text
		require.Equal(t, first, strings.Index(page, `id="logs"`) < strings.Index(page, "flow-title"), "%d recipients", n)
	}
}

// TestRequestsPage: the page of a key has its requests. Other users do not see it.
func TestRequestsPage(t *testing.T) {
	t.Parallel()
	f := newRig(t, &login.GitHub{Logins: []string{"ann", "eve"}}, ann, eve)
	user, other := f.browser(), f.browser()
	require.Equal(t, http.StatusOK, user.byGitHub("Ann").StatusCode)
	require.Equal(t, http.StatusOK, other.byGitHub("eve").StatusCode)
	key, _, err := f.service.People.CreateKey(t.Context(), service.Caller{User: "gh7"}, "shop", models.KeyOptions{})
	require.NoError(t, err)
	path := "/keys/" + key.ID + "/requests"
	require.Contains(t, user.get("/settings/keys").text, path)
	require.Contains(t, user.get(path).text, "No request was made with this key")
	batch := models.NewBatchID(time.Now())
	f.service.People.LogRequest(
		service.Caller{User: "gh7", Key: key.ID},
		requestlog.Line{
			Method:  "POST",
			Path:    "/v1/batches",
			Status:  422,
			Code:    "invalid_request",
			Request: "r-1",
			Batch:   batch,
		},
	)
	page := user.get(path).text
	for _, want := range []string{
		"POST /v1/batches", "422", "errors.md#invalid_request", "r-1", "/batches/" + batch.String(),
	} {
		require.Contains(t, page, want)
	}
	require.Equal(t, http.StatusNotFound, other.get(path).StatusCode)
}

func TestFind(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	id := f.batchOf("local", nil, service.Recipient{Email: "ann@example.com"})
	require.Equal(t, "/batches/"+id.String(), b.get("/search?q=batch."+id.String()).Request.URL.Path)
	require.Equal(t, "/batches/"+id.String(), b.get("/search?q="+id.Log(1).String()).Request.URL.Path, "its only message")
	require.Equal(t, http.StatusNotFound, b.get("/search?q="+models.NewBatchID(time.Now()).String()).StatusCode)
	require.Contains(t, b.get("/search?q=ann@example.com").text, "No message was sent to this address")
	marks := models.NewAddressIndex(id, []models.Recipient{{Email: "ann@example.com"}})
	require.NoError(t, f.store.PutAddressIndex(t.Context(), "local", marks))
	require.Contains(t, b.get("/search?q=Ann@example.com").text, id.Log(1).String())
	require.Contains(t, b.get("/search?q="+url.QueryEscape("Ann <ann@EXAMPLE.com>")).text, id.Log(1).String())
	require.Contains(t, b.get("/logs?email=ann@b").text, "&#34;ann@b&#34; does not have a valid domain.")
	for _, domain := range []string{"@Example.com", "example.com"} {
		a := b.get("/search?q=" + domain)
		require.Equal(t, "/logs", a.Request.URL.Path, domain)
		require.Contains(t, a.text, id.Log(1).String(), domain)
	}
	f.summed(id)
	for text, found := range map[string][]string{
		"NN@ex": {id.Log(1).String()},
		"eLL":   {`href="/batches/` + id.String() + `"`},
		"zzz":   nil,
	} {
		page := b.get("/search?q=" + url.QueryEscape(text)).text
		for _, want := range found {
			require.Contains(t, page, want, text)
		}
		require.Equal(t, found == nil, !strings.Contains(page, id.String()), text)
	}
	require.Equal(t, http.StatusBadRequest, b.get("/batches?from=2026-01-02&to=2026-01-01").StatusCode)
	day := id.Time().UTC().Format(time.DateOnly)
	require.Contains(t, b.get("/batches?state=queued&day="+day).text, id.String())
	require.NotContains(t, b.get("/batches?state=done&day="+day).text, id.String())
	require.NotContains(t, b.get("/batches?day=2020-01-31").text, id.String())
}
