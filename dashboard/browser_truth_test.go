//go:build browser

package dashboard

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/lab/tcpproxy"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service"
)

// logIn opens a browser and logs in as the local operator.
func (f *rig) logIn(base string) *browserTab {
	f.Helper()
	link, err := f.board.LoginLink(f.Context(), login.LocalUser())
	require.NoError(f, err)
	b := openTab(f, base)
	b.open(base + strings.TrimPrefix(link, f.url))
	b.sees("Overview")
	return b
}

// TestBrowserLostConnection: a page says within three seconds that its connection is lost,
// whether it breaks or only hangs, and goes on by itself.
func TestBrowserLostConnection(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	proxy, err := tcpproxy.New(t.Context(), strings.TrimPrefix(f.url, "http://"))
	require.NoError(t, err)
	t.Cleanup(proxy.Close)
	b := f.logIn("http://" + proxy.Addr())
	for name, c := range map[string]struct{ lose, find func() }{
		"refused": {proxy.Refuse, proxy.Accept},
		"hangs":   {proxy.Freeze, proxy.Thaw},
	} {
		b.open("/providers")
		eval[bool](b, `(window.untouched = true)`)
		b.until(liveSource + `?.heard > Date.now() - 900`)
		b.countSilence()
		c.lose()
		b.losesConnection()
		b.sees("Connection lost")
		c.find()
		b.until(`document.getElementById("lost").hidden`)
		f.providers(func(p *telemetry.ProviderState) {
			p.Health.State, p.Health.LastError = telemetry.Failing, "found after "+name
		})
		f.providers(func(p *telemetry.ProviderState) { p.Health.Failures++ })
		b.sees("found after " + name)
		require.True(t, eval[bool](b, "window.untouched"), "the page was reloaded")
	}
}

// TestBrowserKeyIsOnScreen: the secret of a new key is on the screen at every width, and a
// reload creates no second key.
func TestBrowserKeyIsOnScreen(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.logIn(f.url)
	for i, width := range []int64{1920, 1440, 1366, 768, 390, 360} {
		b.do(chromedp.EmulateViewport(width, 800))
		b.open("/settings/keys")
		name := fmt.Sprint("key ", i)
		b.fill("name", name)
		b.press("Create key")
		b.until(`document.readyState === "complete" && document.getElementById("new-key")`)
		b.until(`(() => {
			const r = document.getElementById("new-key").getBoundingClientRect();
			return r.top >= 0 && r.bottom <= innerHeight && r.left >= 0 && r.right <= innerWidth;
		})()`)
		b.do(chromedp.Reload())
		b.until(`document.readyState === "complete" && !document.getElementById("new-key")`)
		require.Equal(
			b,
			1,
			eval[int](
				b,
				`[...document.querySelectorAll("#keys .title")].filter((e) => e.innerText === `+quoteJS(name)+`).length`,
			),
		)
	}
	keys := eval[int](b, `document.querySelectorAll("#keys .key-row").length`)
	require.Equal(t, 6, keys)
	b.fill("name", "picture")
	b.press("Create key")
	b.until(`document.getElementById("new-key")`)
	b.lookAround("key-made", "")
}

// TestBrowserBack: Back leads to a page, also to one that answered a form, and what was typed into
// Compose is still there.
func TestBrowserBack(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.logIn(f.url)
	for _, c := range []struct{ path, button, sees string }{
		{"/settings/keys", "Create key", "is neither a network"},
		{"/operations/users", "Set senders", "There is no such user"},
		{"/compose", "Send to all", "Not sent."},
	} {
		b.open(c.path)
		switch c.path {
		case "/compose":
			b.typeInto("subject", "Half a subject")
		case "/settings/keys":
			b.fill("name", "shop")
			b.fill("networks", "nowhere")
		}
		b.press(c.button)
		b.sees(c.sees)
		b.at(c.path) // its script has put that into the history
		b.open("/docs")
		b.do(chromedp.NavigateBack())
		b.at(c.path)
		require.False(b, eval[bool](b, `document.body.innerText.includes("ERR_CACHE_MISS")`))
		b.until(`document.querySelector("main h1")`)
	}
	b.until(`document.getElementById("subject").value === "Half a subject"`)
}

// TestBrowserSessionEnds: a session that ends does not lose what was typed.
func TestBrowserSessionEnds(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.logIn(f.url)
	b.open("/compose")
	b.typeInto("from", "shop@example.com")
	b.typeInto("subject", "Written for an hour")
	b.typeInto("text", "Dear Ann,\nhello")
	b.typeInto("to", "ann@example.com")
	end := func() {
		open, err := f.board.web.Sessions.List(t.Context(), "local")
		require.NoError(t, err)
		for _, s := range open {
			require.NoError(t, f.board.web.Sessions.End(t.Context(), "local", s.ID))
		}
	}
	end()
	b.press("Send to all")
	b.sees("Your session has ended")
	b.lookAround("session-ended", "")
	logInAgain := func() { // as another tab does
		link, err := f.board.LoginLink(t.Context(), login.LocalUser())
		require.NoError(t, err)
		_, query, _ := strings.Cut(link, "?")
		require.True(
			t,
			eval[bool](
				b,
				`fetch("/login/link", { method: "POST", body: new URLSearchParams(`+quoteJS(query)+`) }).then((r) => r.ok)`,
			),
		)
	}
	logInAgain()
	b.press("Continue")
	b.at("/batches/")
	b.sees("Written for an hour")

	b.open("/operations/blocks")
	b.until(liveSource + `?.readyState === 1`)
	b.typeInto("domain", "example.org")
	end()
	b.until(`!document.getElementById("ended").hidden`)
	logInAgain()
	b.until(`document.getElementById("ended").hidden && document.getElementById("lost").hidden`)
	require.Equal(t, "example.org", eval[string](b, `document.getElementById("domain").value`))
}

// TestBrowserFigures: counts on pages add up and name what is in flight, routes are in the order
// in which they were tried, and what belongs together is aligned.
func TestBrowserFigures(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	id := f.ofTwo()
	at := id.Time().UTC().Add(2 * time.Second).Truncate(time.Second)
	f.reroute(id, at)
	counts := models.Summary{Version: 9, Accepted: 2, Queued: 1, Cancelled: 1, Rerouted: 1,
		Providers: map[string]models.ProviderCounts{"sg": {Tried: 2, Refused: 2}, "mg": {Tried: 2, Waiting: 1, Pending: 1}}}
	require.NoError(t, f.store.PutSummaries(t.Context(), models.ChunkSummary{User: "local", Chunk: id, Summary: counts}))
	for _, level := range []models.Level{models.Second, models.Minute, models.Hour, models.Day} {
		err := f.store.RollUp(t.Context(), models.SpanOf("local", level, id.Time()))
		require.NoError(t, err)
	}
	var err error
	event := models.Event{
		ID:        "e",
		Recipient: 1,
		Attempt:   2,
		Provider:  "mg",
		Kind:      models.Delivered,
		At:        at.Add(15 * time.Second),
	}
	fact := models.Fact{Key: models.EventsKey(models.NewInboxID(at)), Events: []models.Event{event}}
	require.NoError(t, f.store.PutFacts(t.Context(), models.ChunkFact{Chunk: id, Fact: fact}))
	calls := telemetry.FailedCalls{From: at, Known: at.Add(100 * time.Millisecond), Last: at.Add(time.Second), Calls: 4}
	f.put(telemetry.FailedCallsReport, "w/1", telemetry.FailedCallsOf{"sg": {calls}})

	b := f.logIn(f.url)
	b.lookAround("figures-batch", "/batches/"+id.String())
	require.Equal(t, []string{"sg → mg", "sg → mg"},
		eval[[]string](b, `[...document.querySelectorAll(".log-row .via")].map((e) => e.innerText.trim())`))
	table := eval[string](b, `document.querySelector("[aria-labelledby=shares-title] table").innerText`)
	require.Regexp(t, `In flight\s+Waiting for events\s+Refused\s+Failed\s+Unknown`, table)
	require.Regexp(t, `mg\s+2\s+0\s+1\s+1\s+0\s+0\s+0`, table)
	b.do(chromedp.EmulateViewport(1440, 900))
	lefts := `[...document.querySelectorAll(".log-row .via")].map((e) => Math.round(e.getBoundingClientRect().left))`
	left := eval[[]int](b, lefts)
	require.Len(t, left, 2)
	require.Equal(t, left[0], left[1], "one row has a reason and one has none")

	b.lookAround("figures-log", "/logs/"+id.Log(1).String())
	b.sees("+ about 1") // 15 to 17 s
	require.Regexp(t, `about 1[567] s`, eval[string](b, `[...document.querySelectorAll(".tile")].at(-1).innerText`))
	require.Regexp(t, `^\d\d?:\d\d:\d\d( [AP]M)?$`,
		eval[string](b, `[...document.querySelectorAll(".story .at time")].at(-1).innerText`),
		"the provider gives whole seconds")

	b.lookAround("figures-overview", "/")
	tiles := map[string]int{}
	for name, n := range eval[map[string]string](b, `Object.fromEntries([...document.querySelectorAll(".tile")].map((e) =>
		[e.querySelector(".label").innerText, e.querySelector(".value").innerText]))`) {
		tiles[name], err = strconv.Atoi(n)
		require.NoError(t, err)
	}
	require.Equal(t, 2, tiles["Accepted today"])
	require.Equal(t, tiles["Accepted today"], tiles["Delivered"]+tiles["Failed"]+tiles["Queued"]+tiles["Cancelled"])
	require.Equal(t, 1, tiles["Cancelled"])
	b.sees("50% of accepted")

	b.open("/batches/" + id.String())
	eval[bool](b, `(document.getElementById("ask").showModal(), true)`)
	require.NotEqual(
		t,
		eval[string](b, "getComputedStyle(document.body).backgroundColor"),
		eval[string](
			b,
			"getComputedStyle(document.documentElement).backgroundColor",
		),
		"the gutter of the scrollbar is dimmed, too",
	)

	b.sees("SendGrid (sg) has been failing since")
	eval[bool](b, `(window.untouched = true)`)
	calls.To = at.Add(2100 * time.Millisecond)
	f.put(telemetry.FailedCallsReport, "w/1", telemetry.FailedCallsOf{"sg": {calls}})
	b.sees("SendGrid (sg) was failing for 2.1 s")
	require.True(t, eval[bool](b, "window.untouched"), "the page was reloaded")

	chart := eval[struct {
		Texts    []string `json:"texts"`
		Failures int      `json:"failures"`
	}](b, `(() => {
		const texts = [], canvas = CanvasRenderingContext2D.prototype, { fillText, fill } = canvas;
		const probe = document.createElement("canvas").getContext("2d");
		probe.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--bad").trim();
		let failures = 0;
		canvas.fillText = function (text, ...at) {
			texts.push(text);
			return fillText.call(this, text, ...at);
		};
		canvas.fill = function (...path) {
			if (!path.length && this.fillStyle === probe.fillStyle) failures++;
			return fill.apply(this, path);
		};
		return new Promise((done) => {
			document.querySelector("[data-chart]").dispatchEvent(new CustomEvent("htmx:sseMessage", { bubbles: true }));
			requestAnimationFrame(() => requestAnimationFrame(() => done({ texts, failures })));
		});
	})()`)
	require.Contains(t, chart.Texts, "sg failing", "the outage is shaded")
	require.Positive(t, chart.Failures, "the step with failed calls has a mark")
	seen := map[string]bool{}
	for _, label := range chart.Texts {
		if regexp.MustCompile(`\d:\d\d:\d\d`).MatchString(label) {
			require.False(t, seen[label], "the axis repeats a second: %v", chart.Texts)
			seen[label] = true
		}
	}
	require.NotEmpty(t, seen)

	eval[bool](b, `fetch("/logout", { method: "POST" }).then(() => true)`)
	b.open("/login")
	for _, width := range []int64{1920, 1440, 1024} {
		b.do(chromedp.EmulateViewport(width, 900))
		off := eval[float64](b, `(() => {
			const card = document.querySelector("main .panel").getBoundingClientRect();
			const page = document.body.getBoundingClientRect();
			return Math.abs(card.left - page.left - (page.right - card.right));
		})()`)
		require.Less(t, off, 2.0, "the card is in the middle of %d px", width)
	}
	require.Empty(t, b.complaints())
}

// TestBrowserCommandsAreShown: the page after a command says what it did, at once.
func TestBrowserCommandsAreShown(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	f.batchOf("local", nil, service.Recipient{Email: "other@example.com"})
	id := f.batchOf("local", nil, service.Recipient{Email: "ann@example.com"})
	require.NoError(t, f.store.Append(t.Context(), id, models.Entry{
		Number:     1,
		Token:      models.NewToken(),
		Kind:       models.Ending,
		At:         time.Now(),
		Recipients: models.SetOf(1),
		Reason:     models.RetriesUsedUp,
	}))
	b := f.logIn(f.url)
	b.open("/logs/" + id.Log(1).String() + "/release")
	b.press("Send again")
	b.sees("Queued: the message is sent again.")
	b.open("/operations/audit")
	b.sees("sent a message again")
	b.open("/providers/sg/offline")
	b.press("Take offline")
	b.until(`location.pathname === "/providers" && document.readyState === "complete"`)
	card := eval[string](b, `document.getElementById("sg").innerText`)
	require.Contains(t, card, "Offline: set by an operator")
	require.NotContains(t, card, "Healthy")
	require.Empty(t, b.complaints())
}

// TestBrowserFailingProvider: the card of a provider says why it is failing, and counts the seconds
// until the next attempt.
func TestBrowserFailingProvider(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.logIn(f.url)
	until := time.Now().Add(90 * time.Second)
	f.providers(func(p *telemetry.ProviderState) {
		p.Health = telemetry.Health{
			State:     telemetry.Suspended,
			Source:    telemetry.CallsFailed,
			Since:     time.Now().Add(-time.Minute),
			Until:     until,
			Failures:  7,
			LastError: "503 Service Unavailable",
		}
		if p.Name == "sg" {
			p.Health.State, p.Health.Until, p.Health.Failures = telemetry.Failing, time.Time{}, 1
		}
	})
	b.open("/providers")
	b.sees("7 calls failed since the last one succeeded. Last error: 503 Service Unavailable.")
	b.sees("1 call failed since the last one succeeded.")
	b.sees("Suspended: calls are failing")
	require.NotContains(t, eval[string](b, "document.body.innerText"), "Healthy")
	left := `[...document.querySelectorAll("#mg time[data-time=in]")]
		.map((e) => +(/^in (\d+) s$/.exec(e.innerText) ?? [])[1])[0]`
	b.until(left + " <= 90")
	first := eval[int](b, left)
	b.until(left + " < " + strconv.Itoa(first))
	b.lookAround("failing", "/providers")
	b.lookAround("failing-overview", "/")
	require.Empty(t, b.complaints())
}

// TestBrowserLocale: numbers, shares, days and times are in the format of the reader's language,
// also after an update.
func TestBrowserLocale(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	id := f.batchOf("local", nil, service.Recipient{Email: "a@example.com"})
	sum := func(version, accepted int64) {
		counts := models.Summary{Version: version, Accepted: accepted, Queued: accepted / 2, Failed: accepted / 4}
		counts.Success = accepted - counts.Queued - counts.Failed
		counts.Reasons = map[models.Reason]int64{models.MailboxInvalid: counts.Failed}
		counts.Providers = map[string]models.ProviderCounts{"sg": {Tried: accepted}}
		require.NoError(t, f.store.PutSummaries(t.Context(), models.ChunkSummary{User: "local", Chunk: id, Summary: counts}))
		for _, level := range models.Levels {
			err := f.store.RollUp(t.Context(), models.SpanOf("local", level, id.Time()))
			require.NoError(t, err)
		}
	}
	sum(1, 12_346)
	b := f.logIn(f.url)
	for i, c := range []struct{ locale, number, later, share, clock string }{
		{"en-US", "12,346", "34,568", "50%", `\d:\d\d [AP]M`},
		{"de-DE", "12.346", "56.790", "50\u00a0%", `\d\d:\d\d`},
	} {
		_, err := chromedp.Call(b.ctx, emulation.SetLocaleOverride, emulation.SetLocaleOverrideParams{Locale: c.locale})
		require.NoError(t, err)
		sum(int64(2*i+1), 12_346)
		b.open("/")
		b.sees(c.number)
		b.sees(c.share)
		require.Regexp(t, c.clock, eval[string](b, `document.querySelector(".recent-row").innerText`))
		sum(int64(2*i+2), int64(34_568+i*22_222))
		b.sees(c.later)
		b.sees(c.share + " of “Hello” failed")
		for _, path := range []string{"/", "/statistics", "/providers", "/batches"} {
			b.open(path)
			b.sees(c.later)
			if path == "/" || path == "/statistics" {
				b.sees(c.share)
			}
			require.NotContains(t, eval[string](b, "document.body.innerText"), "\u202f")
		}
	}
	require.Empty(t, b.complaints())
}

// TestBrowserOperations: each job of Operations has a page, and the audit log is filtered by who,
// what and when.
func TestBrowserOperations(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	boss := service.Caller{User: "local", Operator: true}
	b := f.logIn(f.url)
	for _, do := range []models.CommandKind{models.ProviderOffline, models.ProviderOnline} {
		_, _, err := f.service.Operate.ControlProvider(t.Context(), boss, do, "sg", "maintenance", service.Repeat{})
		require.NoError(t, err)
	}
	_, _, err := f.service.People.Control(t.Context(), boss, models.PauseUser, "local", "by mistake", service.Repeat{})
	require.NoError(t, err)
	b.open("/operations")
	for _, c := range []struct{ link, path, sees string }{
		{"Held and parked", "/operations/parked", "No parked messages"},
		{"Rules", "/operations/blocks", "No block rules"},
		{"Users and keys", "/operations/users", "may send as anyone"},
		{"Audit log", "/operations/audit", "paused a user"},
		{"Waiting mail and workers", "/operations", "Consistency check"},
	} {
		b.press(c.link)
		b.until(`location.pathname === ` + quoteJS(c.path) + ` && document.readyState === "complete"`)
		b.sees(c.sees)
		require.Equal(t, c.link, eval[string](b, `document.querySelector("h1").innerText`))
	}
	b.lookAround("operations-queues", "/operations")
	b.lookAround("operations-audit", "/operations/audit")
	rows := `document.querySelectorAll("#audit .audit-row").length`
	require.Equal(t, 3, eval[int](b, rows))
	b.do(chromedp.SetValue(chromedp.ID("what"), string(models.PauseUser)))
	b.press("Filter")
	b.until(`location.search.includes("what=") && document.readyState === "complete"`)
	require.Equal(t, 1, eval[int](b, rows))
	b.sees("by mistake")
	b.open("/operations/audit?who=local&day=" + time.Now().UTC().Format(time.DateOnly))
	require.Equal(t, 3, eval[int](b, rows))
	b.open("/operations/audit?who=other")
	b.sees("No entries match the filter.")
	require.Empty(t, b.complaints())
}
