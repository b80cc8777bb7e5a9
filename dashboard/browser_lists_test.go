//go:build browser

package dashboard

import (
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// TestBrowserSearchKey: the key / leads to the search, but not in a field.
func TestBrowserSearchKey(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	id := f.batchOf("local", map[string]string{"subject": "A/B"}, service.Recipient{Email: "ann@example.com"})
	b := f.logIn(f.url)
	b.open("/batches")
	b.until(`document.readyState === "complete"`)
	press := `document.activeElement.dispatchEvent(
		new KeyboardEvent("keydown", { key: "/", bubbles: true, cancelable: true }))`
	require.False(t, eval[bool](b, press), "the key would be typed, too")
	require.Equal(t, "find", eval[string](b, "document.activeElement.id"))
	require.True(t, eval[bool](b, press), "it is typed")
	b.fill("find", "a/b")
	f.summed(id)
	eval[bool](b, `(document.getElementById("find").form.requestSubmit(), true)`)
	b.at("/search?q=a%2Fb")
	b.sees("“a/b”")
	b.until(`document.querySelector("main a[href='/batches/` + id.String() + `']")`)
	require.Empty(t, b.complaints())
}

// TestBrowserSelected: a list is not replaced while entries of it are selected, and a command reaches those that are.
func TestBrowserSelected(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	id := f.mixed("local", 12)
	b := f.logIn(f.url)
	b.open("/batches/" + id.String())
	b.until(`document.querySelector("[sse-connect]")["htmx-internal-data"]?.sseEventSource?.readyState === 1`)
	eval[bool](b, `(() => {
		window.kept = 0;
		document.body.addEventListener("htmx:sseBeforeMessage", (e) => {
			if (e.target.matches("form[sse-swap=logs]") && e.defaultPrevented) kept++;
		});
		document.querySelector("[data-all]").click();
		return true;
	})()`)
	checked := `document.querySelectorAll(".log-row input:checked").length`
	require.Equal(t, 12, eval[int](b, checked))
	require.NoError(t, f.store.Append(t.Context(), id, models.Entry{Number: 6, Token: models.NewToken(),
		Kind: models.Cancel, At: time.Now(), Recipients: models.SetOf(6)}))
	f.summed(id)
	b.until("kept > 0")
	require.Equal(t, 12, eval[int](b, checked), "the list was replaced")
	eval[bool](b, `(document.querySelector("[data-all]").click(),
		document.querySelector(".log-row input[value='`+id.Log(3).String()+`']").click(), true)`)
	require.Equal(t, 1, eval[int](b, checked))
	eval[bool](b, `(document.querySelector("button[formaction='/selected/retry']").click(), true)`)
	b.sees("Retry 1 message?")
	b.answer()
	b.at("/batches/" + id.String())
	commands, err := f.store.Commands(t.Context(), 0, 10)
	require.NoError(t, err)
	require.True(t, commands[0].Names(3))
	require.False(t, commands[0].Names(9))
	require.Empty(t, b.complaints())
}

// TestBrowserBarIsALink: a click on the bar of a day leads to the mail of that day.
func TestBrowserBarIsALink(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	id := f.mixed("local", 6)
	b := f.logIn(f.url)
	day := id.Time().UTC().Format(time.DateOnly)
	for path, to := range map[string]string{
		"/":                            "/logs?from=" + day + "&to=" + day,
		"/statistics?by=tag&name=news": "/logs?tag=news&from=" + day + "&to=" + day,
	} {
		b.open(path)
		for range 20 { // a live page may move the chart before the click
			b.until(`document.querySelector("[data-chart] .u-over")`)
			place := eval[[]float64](b, `(() => {
				const over = document.querySelector("[data-chart] .u-over");
				over.scrollIntoView();
				const r = over.getBoundingClientRect();
				return [r.right - r.width / 60, r.top + r.height / 2];
			})()`)
			b.do(chromedp.MouseClickXY(place[0], place[1]))
			if b.within(5*time.Second, isAt(to)) {
				break
			}
		}
		b.at(to)
		b.until(`document.querySelectorAll(".log-row").length === 6`)
	}
	require.Empty(t, b.complaints())
}

// TestBrowserStatements: accepted mail that bounced, and was retried by a user, is no outage. The address of a form
// leads to its page.
func TestBrowserStatements(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	at := time.Now().UTC().Add(-time.Minute)
	id := f.batchOf("local", nil, service.Recipient{Email: "a@example.com"}, service.Recipient{Email: "b@example.com"})
	accepted := models.Part{Class: models.Accepted, Recipients: models.SetOf(1)}
	f.called(id, 1, at, 100*time.Millisecond, "sg", accepted)
	bounced := models.Event{ID: "e", Attempt: 1, Provider: "sg", Recipient: 1, Kind: models.Bounced,
		At: at.Add(time.Second), Reason: models.MailboxFull}
	require.NoError(t, f.store.PutFacts(t.Context(), models.ChunkFact{Chunk: id,
		Fact: models.Fact{Key: "e", Events: []models.Event{bounced}}}))
	require.NoError(t, f.store.Append(t.Context(), id, models.Entry{Number: 2, Token: models.NewToken(),
		Kind: models.Release, At: at.Add(2 * time.Second), Recipients: models.SetOf(1)}))
	f.called(id, 3, at.Add(3*time.Second), 100*time.Millisecond, "mg", accepted)
	f.called(id, 4, at.Add(4*time.Second), 100*time.Millisecond, "sg", models.Part{
		Class: models.Accepted, Recipients: models.SetOf(2)})
	b := f.logIn(f.url)
	b.open("/batches/" + id.String())
	b.sees("Send rate by provider")
	b.until(`document.querySelector("[data-chart] canvas")`)
	rates := eval[map[string][]float64](b, `Object.fromEntries(
		JSON.parse(document.querySelector("[data-chart] data").value)
		.series.map((s) => [s.label, s.values]))`)
	sent := func(rate []float64) (steps []int) {
		for i, r := range rate[:len(rate)-1] { // the last step ends there
			if r > 0 {
				steps = append(steps, i)
			}
		}
		return steps
	}
	last := len(rates["sg"]) - 2
	require.Equal(t, []int{0, last}, sent(rates["sg"]))
	require.Equal(t, []int{last * 3 / 4}, sent(rates["mg"]))
	require.NotContains(t, eval[string](b, "document.body.innerText"), "failing")
	b.open("/logs/" + id.Log(1).String())
	b.sees("Retried manually")
	require.NotContains(t, eval[string](b, "document.body.innerText"), "arrive twice")
	b.open("/operations/blocks/x/remove")
	b.at("/operations/blocks")
	b.open("/settings/keys/x/revoke")
	b.at("/settings/keys")
	require.Empty(t, b.complaints())
}

// TestBrowserUnmatched looks at the list of unmatched events, and at the post of one.
func TestBrowserUnmatched(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	events := f.unmatched(3, f.mixed("local", 6))
	b := f.logIn(f.url)
	b.lookAround("events", "/operations/events")
	b.lookAround("event", "/operations/events?event="+events[2].ID.String())
	b.sees(`"Address":"u2@example.com"`)
	require.Empty(t, b.complaints())
}
