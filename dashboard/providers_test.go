package dashboard

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/dashboard/providers"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// TestUnseenKindsOfEventAreShown checks that the page of the providers says which kinds of event
// came in, and which did not.
func TestUnseenKindsOfEventAreShown(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	at, err := json.Marshal(time.Now())
	require.NoError(t, err)
	for _, kind := range []models.EventKind{models.Delivered, models.Blocked} {
		name := telemetry.SeenKind{Provider: "sg", Kind: kind}.String()
		require.NoError(t, f.store.PutTransient(t.Context(), telemetry.EventSeen, name, at, time.Hour))
	}
	f.board.providers.Sample(t.Context(), time.Now())
	text := b.get("/providers").text
	require.Contains(t, text, "Not received in the last 30 days: Spam Reports")
	require.Contains(t, text, "Spam Reports: none")
	require.Contains(t, text, "Bounced: <time")

	name := telemetry.SeenKind{Provider: "sg", Kind: models.Complained}.String()
	require.NoError(t, f.store.PutTransient(t.Context(), telemetry.EventSeen, name, at, time.Hour))
	f.board.providers.Sample(t.Context(), time.Now())
	require.Contains(t, b.get("/providers").text, "all came in during the last 30 days")
}

// TestUnmatchedEventsAreShown checks that operators see how many events fitted no log.
func TestUnmatchedEventsAreShown(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	require.Contains(t, textOf(b.get("/operations/events").text), "No unmatched events.")
	f.providers(func(a *telemetry.ProviderState) { a.Counters.Unmatched = 7 })
	f.board.providers.Sample(t.Context(), time.Now())
	text := b.get("/operations").text
	require.Contains(t, textOf(text), "Unmatched events 14 they fit no message")
	require.Contains(t, text, `<a class="tile" href="/operations/events">`)

	id := f.mixed("local", 6)
	events := f.unmatched(51, id)
	page := b.get("/operations/events").text
	require.Contains(t, textOf(page), "u50@example.com bounced at sg · received ")
	require.Contains(t, page, `/logs/`+id.Log(2).String())
	require.Contains(t, textOf(page), "fits no message")
	require.NotContains(t, page, "u0@example.com")
	next := regexp.MustCompile(`/operations/events\?cursor=[^"]+`).FindString(page)
	require.Contains(t, b.get(next).text, "u0@example.com")
	post := b.get("/operations/events?event=" + events[50].ID.String()).text
	require.Contains(t, textOf(post), `"Address":"u50@example.com"`)
	require.Equal(t, http.StatusNotFound, b.get("/operations/events?event=x").StatusCode)
}

// unmatched stores bounces that were not matched, the newest last, which fits two messages of a batch.
func (f *rig) unmatched(n int, batch models.ID) []telemetry.UnmatchedEvent {
	f.Helper()
	var r telemetry.Unmatched
	for i := range n {
		u := models.UnnamedEvent{Event: models.Event{Kind: models.Bounced}, Address: fmt.Sprintf("u%d@example.com", i)}
		body, err := json.Marshal(u)
		require.NoError(f, err)
		in := models.Inbox{ID: models.NewInboxID(time.Now().Add(time.Duration(i-n) * time.Minute)), Provider: "sg",
			Posts: []models.Post{{Body: body}}}
		require.NoError(f, f.store.PutInbox(f.Context(), in))
		e := telemetry.UnmatchedEvent{ID: telemetry.UnmatchedID(in.ID, &u), Post: in.ID, Provider: "sg"}
		r.Events = append(r.Events, e)
	}
	r.Events[n-1].Logs = []models.ID{batch.Log(1), batch.Log(2)}
	f.put(telemetry.UnmatchedReport, "w", r)
	return r.Events
}

// unnamedAdapter parses a models.UnnamedEvent as JSON.
type unnamedAdapter struct{ models.Adapter }

func (unnamedAdapter) Parse(body []byte) models.Parsed {
	var u models.UnnamedEvent
	if json.Unmarshal(body, &u) != nil {
		return models.Parsed{}
	}
	return models.Parsed{Unnamed: []models.UnnamedEvent{u}}
}

// TestWebhookSetUp checks that pages show the webhook URL of a provider and whether
// webhooks arrive.
func TestWebhookSetUp(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	text := b.get("/settings/webhooks").text
	require.Contains(t, text, "No webhook key", "mg")
	require.Contains(t, text, "No webhook received yet", "sg")
	require.Contains(t, text, f.url+"/webhooks/sg")
	require.Contains(t, text, "cannot reach this address: set SAFEDELIVR_PUBLIC_URL")

	f.providers(func(a *telemetry.ProviderState) {
		a.Counters.Accepted, a.Answers, a.Reported = 10, 80*time.Millisecond, 2048*time.Millisecond
	})
	for _, ago := range []time.Duration{2 * time.Minute, 0} {
		f.board.providers.Sample(t.Context(), time.Now().Add(-ago))
	}
	text = b.get("/providers").text
	require.Contains(t, text, "No webhook has arrived yet: check its address and key.")
	require.Contains(t, text, f.url+"/webhooks/sg")
	require.Contains(t, text, "80 ms")
	require.Contains(t, text, "2.0 s")
	require.Contains(t, b.get("/settings/webhooks").text, "although it accepted mail")

	f.put(telemetry.LastReceived, "mg", time.Now().UTC())
	f.put(telemetry.LastReceived, "sg", time.Now().UTC())
	f.board.providers.Sample(t.Context(), time.Now())
	require.NotContains(t, b.get("/providers").text, "No webhook has arrived yet")
	require.Contains(t, b.get("/settings/webhooks").text, "last verified webhook")

	f.reopen(func(d *Deps) { d.PublicURL = "https://mail.example.com" })
	require.NotContains(t, b.get("/settings/webhooks").text, "SAFEDELIVR_PUBLIC_URL")
}

// TestUnverifiedSenders checks that only operators see which senders a provider
// rejects.
func TestUnverifiedSenders(t *testing.T) {
	t.Parallel()
	f := newRig(t, &login.GitHub{Operators: []string{"bob"}, Logins: []string{"ann"}}, ann, bob)
	operator := f.browser()
	operator.byGitHub("bob")
	f.providers(func(a *telemetry.ProviderState) { a.Health.Senders = []string{"shop.example", evil} })
	f.board.providers.Sample(t.Context(), time.Now())
	text := operator.get("/providers").text
	require.Contains(t, text, "Senders not verified at SendGrid")
	require.Contains(t, text, "shop.example, ")
	require.NotContains(t, text, "<script>alert")
	visitor := f.browser()
	visitor.byGitHub("Ann")
	text = visitor.get("/providers").text
	require.Contains(t, text, "Other limits")
	require.NotContains(t, text, "shop.example")
}

// cardOf returns the text of a provider's part of the page of the providers.
func (b *browser) cardOf(name string) string {
	_, card, found := strings.Cut(b.get("/providers").text, `<section class="panel" id="`+name+`"`)
	require.True(b, found)
	card, _, _ = strings.Cut("<i"+card, "</section>")
	return textOf(card)
}

// TestFailingProviderInWords: the pages say that a provider is failing, since how many calls,
// with which error, and when it is tried next.
func TestFailingProviderInWords(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	until := time.Now().Add(time.Hour).UTC()
	for name, c := range map[string]struct {
		health         telemetry.Health
		card, overview string
	}{
		"sg": {
			telemetry.Health{State: telemetry.Failing, Failures: 1},
			"Failing 1 call failed since the last one succeeded. Last error: 503 Service Unavailable. " +
				"Next attempt with the next message.",
			"SendGrid (sg) is failing · 1 call failed since the last one succeeded. Last error: 503 Service Unavailable.",
		},
		"mg": {
			telemetry.Health{State: telemetry.Suspended, Source: telemetry.CallsFailed, Until: until, Failures: 7},
			"Suspended: calls are failing 7 calls failed since the last one succeeded. Last error: 503 Service Unavailable. " +
				"Next attempt at " + until.Format("15:04:05 UTC") + ".",
			"Mailgun (mg) is suspended: calls are failing · 7 calls failed",
		},
	} {
		f.providers(func(p *telemetry.ProviderState) {
			p.Health = telemetry.Health{State: telemetry.Healthy}
			if p.Name == name {
				p.Health = c.health
				p.Health.Since, p.Health.LastError = until.Add(-2*time.Hour), "503 Service Unavailable"
			}
		})
		f.board.providers.Sample(t.Context(), time.Now())
		require.Contains(t, b.cardOf(name), c.card)
		require.Contains(t, textOf(b.get("/").text), c.overview)
	}
}

// TestOfflineIsShownAtOnce: the page after the command shows the provider as offline, before workers report it.
func TestOfflineIsShownAtOnce(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	for _, c := range []struct{ do, state string }{
		{"offline", "Offline: set by an operator"}, {"drain", "Draining"}, {"online", "Healthy"},
	} {
		require.Equal(t, http.StatusOK, b.post("/providers/sg/"+c.do, nil).StatusCode)
		card := b.cardOf("sg")
		require.Contains(t, card, c.state)
		if c.do != "online" {
			require.NotContains(t, card, "Healthy")
		}
	}
}

// TestCheckOfProvider: an operator has a provider checked, and the page says what was found and what to do. A provider
// is checked by one request at a time.
func TestCheckOfProvider(t *testing.T) {
	t.Parallel()
	f := newRig(t, &login.GitHub{Operators: []string{"bob"}, Logins: []string{"ann"}}, ann, bob)
	asked, found := make(chan string), make(chan struct{})
	f.inspect = func(_ context.Context, provider string) []providers.Finding {
		asked <- provider
		<-found
		return []providers.Finding{
			{State: "ok", About: "key", Text: "may send mail"},
			{State: "wrong", About: "DMARC", Text: "no policy at " + evil, ToDo: "Publish TXT " + evil},
		}
	}
	operator, user := f.browser(), f.browser()
	operator.byGitHub("bob")
	user.byGitHub("Ann")
	require.NotContains(t, user.get("/providers").text, "/providers/sg/check")
	require.Equal(t, http.StatusNotFound, user.get("/providers/sg/check").StatusCode)
	require.Equal(t, http.StatusNotFound, operator.get("/providers/ses/check").StatusCode)
	page := operator.get("/providers").text
	require.Contains(t, page, `href="/providers/sg/check"`)
	require.NotContains(t, page, "Check of")

	pages := make(chan answer, 2)
	go func() { pages <- operator.get("/providers/sg/check") }()
	require.Equal(t, "sg", <-asked)
	again := operator.get("/providers/sg/check")
	require.Equal(t, http.StatusConflict, again.StatusCode)
	require.Contains(t, again.text, "Another check of this provider is running")
	go func() { pages <- operator.get("/providers/mg/check") }()
	require.Equal(t, "mg", <-asked, "another provider is checked meanwhile")
	close(found)
	for range 2 {
		a := <-pages
		require.Equal(t, http.StatusOK, a.StatusCode)
		require.NotContains(t, a.text, evil)
		require.Regexp(t, `Check of (SendGrid \(sg\)|Mailgun \(mg\)) no mail was sent key ok may send mail DMARC wrong no policy at `+
			`.+ Publish TXT .+ (Mailgun|SendGrid) (sg|mg) 0 per second now`, textOf(a.text))
	}
	go func() { pages <- operator.get("/providers/sg/check") }()
	require.Equal(t, "sg", <-asked, "it can be checked again")
	<-pages
}

// TestStatesOfProviders: the card of a provider says its state, what that means, and what comes next.
func TestStatesOfProviders(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	until := time.Now().Add(time.Hour).UTC()
	next := "Next attempt at " + until.Format("15:04:05 UTC") + "."
	for name, c := range map[string]struct {
		state, source string
		card          string
		where         string // on the overview
		probe         bool
	}{
		"rejected": {
			telemetry.Suspended, telemetry.Rejected,
			"Suspended: key or account rejected It said so. Check its key, account and quota. " + next,
			"rejects its key, account or quota", true,
		},
		"asked to wait": {
			telemetry.Suspended, telemetry.RetryAfter,
			"Suspended: it asked to wait It said so. " + next, "asked to wait", true,
		},
		"silent": {
			telemetry.Suspended, telemetry.Silence,
			"Suspended: no delivery events It said so. Check its webhook address and key. " + next,
			"accepts mail but sends no delivery events", true,
		},
		"probation": {
			telemetry.Probation, "", "Recovering: few messages at a time It said so.",
			"is recovering: it gets few messages at a time", false,
		},
		"probing": {
			telemetry.Probing, "", "Recovering: testing one message It said so. Next attempt with the next message.",
			"is recovering: one message tests it", false,
		},
		"draining": {telemetry.Draining, "", "Draining It said so.", "is being drained", false},
		"offline":  {telemetry.Offline, "", "Offline: set by an operator It said so.", "was taken offline", false},
	} {
		f.providers(func(p *telemetry.ProviderState) {
			if p.Name != "sg" { // if no provider accepts mail, Overview says that instead
				p.Health.State = telemetry.Healthy
				return
			}
			p.Health = telemetry.Health{State: c.state, Source: c.source, Since: until.Add(-2 * time.Hour), Why: "it said so"}
			if c.state == telemetry.Suspended {
				p.Health.Until = until
			}
		})
		f.board.providers.Sample(t.Context(), time.Now())
		card := b.cardOf("sg")
		require.Contains(t, card, c.card, name)
		require.Contains(t, card, "Since "+until.Add(-2*time.Hour).Format("2 Jan 2006, 15:04:05 UTC"), name)
		require.Equal(t, c.probe, strings.Contains(card, "Test now"), name)
		require.Contains(t, textOf(b.get("/").text), "SendGrid (sg) "+c.where, name)
	}
}
