package dashboard

import (
	"html"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service"
)

// called stores a call to a provider with mail of a chunk, and its answer.
func (f *rig) called(chunk models.ID, n int, at time.Time, takes time.Duration, provider string, p models.Part) {
	f.Helper()
	require.NoError(f, f.store.Append(f.Context(), chunk, models.Entry{
		Number:     n,
		Token:      models.NewToken(),
		Kind:       models.Attempt,
		At:         at,
		Recipients: p.Recipients,
		Provider:   provider,
		CallEnds:   at.Add(time.Minute),
	}))
	o := models.Outcome{Attempt: n, At: at.Add(takes), Took: takes, Parts: []models.Part{p}}
	fact := models.Fact{Key: models.OutcomeKey(n), Outcome: &o}
	require.NoError(f, f.store.PutFacts(f.Context(), models.ChunkFact{Chunk: chunk, Fact: fact}))
}

// textOf returns the text of a page without its markup.
func textOf(page string) string {
	page = regexp.MustCompile(`(?s)<(script|style|svg).*?</(script|style|svg)>|<[^>]*>`).ReplaceAllString(page, " ")
	text := strings.Join(strings.Fields(html.UnescapeString(page)), " ")
	return regexp.MustCompile(` ([.,;:])`).ReplaceAllString(text, "$1")
}

// ofTwo returns a batch of two.
func (f *rig) ofTwo() models.ID {
	f.Helper()
	return f.batchOf("local", nil, service.Recipient{Email: "a@example.com"}, service.Recipient{Email: "b@example.com"})
}

// reroute stores that the first call for a batch of two, at SendGrid, failed, and that the second one was accepted by
// Mailgun.
func (f *rig) reroute(id models.ID, at time.Time) {
	f.Helper()
	all := models.SetTo(2)
	f.called(
		id,
		1,
		at,
		100*time.Millisecond,
		"sg",
		models.Part{Class: models.Unavailable, Recipients: all, Status: 503},
	)
	f.called(
		id,
		2,
		at.Add(150*time.Millisecond),
		50*time.Millisecond,
		"mg",
		models.Part{Class: models.Accepted, Recipients: all},
	)
}

// TestOutageInWords: the page of a batch names an outage while it lasts, and for how long it
// lasted.
func TestOutageInWords(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newBubbleRig(t, nil)
		at := time.Now().UTC().Add(-time.Minute).Truncate(time.Millisecond)
		id := f.ofTwo()
		f.reroute(id, at)
		path := "/batches/" + id.String()
		b := f.byLink(login.LocalUser())
		counts := "Calls with 2 messages failed; 2 were rerouted to Mailgun (mg), the first within 150 ms. " +
			"It answered: 503 Service Unavailable."
		require.Contains(t, textOf(b.get(path).text), "SendGrid (sg) was failing for 100 ms or longer. "+counts)

		calls := telemetry.FailedCalls{From: at, Known: at.Add(100 * time.Millisecond), Last: at.Add(time.Second), Calls: 4}
		f.put(telemetry.WorkerReport, "w", telemetry.WorkerState{Started: at.Add(-time.Hour)})
		shown := func(c telemetry.FailedCalls, want string) {
			f.put(telemetry.FailedCallsReport, "w/1", telemetry.FailedCallsOf{"sg": {c}})
			time.Sleep(time.Second)
			require.Contains(t, textOf(b.get(path).text), want)
		}
		shown(calls, "SendGrid (sg) has been failing since "+at.Format("15:04:05 UTC")+". "+counts)
		calls.To = at.Add(2100 * time.Millisecond)
		shown(calls, "SendGrid (sg) was failing for 2.1 s. "+counts)
	})
}

// TestAcceptedMailIsNoOutage: a provider that accepted mail was not failing, even if the mail was not delivered.
func TestAcceptedMailIsNoOutage(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	at := time.Now().UTC().Add(-time.Minute)
	id := f.batchOf("local", nil, service.Recipient{Email: "a@example.com"}, service.Recipient{Email: "b@example.com"})
	for n, provider := range []string{"sg", "mg"} { // it bounced, and was sent again
		part := models.Part{Class: models.Accepted, Recipients: models.SetOf(1)}
		f.called(id, n+1, at.Add(time.Duration(n)*time.Second), 100*time.Millisecond, provider, part)
	}
	text := textOf(f.byLink(login.LocalUser()).get("/batches/" + id.String()).text)
	require.Contains(t, text, "Send rate by provider")
	require.NotContains(t, text, "failing")
	require.NotContains(t, text, "calls failed")
}
