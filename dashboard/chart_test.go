package dashboard

import (
	"html"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/dashboard/chart"
	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/flow"
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

// TestOutageInWords: the page of a batch tells of an outage while it lasts, and for how long it
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
		told := func(c telemetry.FailedCalls, want string) {
			f.put(telemetry.FailedCallsReport, "w/1", telemetry.FailedCallsOf{"sg": {c}})
			time.Sleep(time.Second)
			require.Contains(t, textOf(b.get(path).text), want)
		}
		told(calls, "SendGrid (sg) has been failing since "+at.Format("15:04:05 UTC")+". "+counts)
		calls.To = at.Add(2100 * time.Millisecond)
		told(calls, "SendGrid (sg) was failing for 2.1 s. "+counts)
	})
}

// TestAcceptedMailIsNoOutage: a provider that accepted mail was not failing, whatever became of
// the mail.
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

// TestFlowChart: the chart shows what was accepted, marks what failed, and shades an outage to
// its end.
func TestFlowChart(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	from := time.Unix(1_700_000_000, 0)
	v := flowOf(f.board.web.Providers, &flow.Flow{
		From:      from,
		Step:      time.Second,
		Providers: []flow.ProviderFlow{{Provider: "sg", Accepted: []float64{3, 0, 0, 2}, Failed: []int64{0, 7, 0, 0}}},
		Outages: []flow.Outage{
			{Provider: "sg", From: from.Add(-time.Hour), To: from.Add(1500 * time.Millisecond), Over: true},
			{Provider: "sg", From: from.Add(2 * time.Second), To: from.Add(2100 * time.Millisecond), Lasts: true},
		},
	})
	begin := float64(from.Unix())
	require.Equal(t, []float64{begin, begin + 1, begin + 2, begin + 3, begin + 4}, v.Chart.X)
	require.Equal(t, []float64{3, 0, 0, 2, 2}, v.Chart.Series[0].Values)
	require.Equal(t, []chart.Failed{{Label: "sg", Values: []int64{0, 7, 0, 0}}}, v.Chart.Failed)
	require.Equal(t, []chart.Mark{
		{From: begin, To: begin + 1.5, Label: "sg failing"},
		{From: begin + 2, To: begin + 4, Label: "sg failing"},
	}, v.Chart.Marks)
	require.True(t, v.Active)

	for ago, active := range map[time.Duration]bool{time.Second: true, time.Hour: false} {
		to := time.Now().Add(-ago)
		v = flowOf(f.board.web.Providers,
			&flow.Flow{From: to, Step: time.Second, Outages: []flow.Outage{{Provider: "sg", From: to, To: to}},
				Providers: []flow.ProviderFlow{{Provider: "sg", Accepted: []float64{1}, Failed: []int64{1}}}},
		)
		require.Equal(t, active, v.Active, "workers may tell of it %s later", ago)
	}

	many := make([]flow.Outage, 8)
	for i := range many {
		begins := from.Add(time.Duration(i) * time.Minute)
		many[i] = flow.Outage{
			Provider: "sg",
			From:     begins,
			To:       begins.Add(time.Duration(i%5) * time.Second),
			Over:     true,
		}
	}
	v = flowOf(f.board.web.Providers, &flow.Flow{From: from, Step: time.Second, Outages: many,
		Providers: []flow.ProviderFlow{{Provider: "sg", Accepted: []float64{1}, Failed: []int64{0}}}})
	require.Equal(t, 3, v.Shorter)
	require.Len(t, v.Chart.Marks, 8)
	for i := 1; i < len(v.Outages); i++ {
		require.True(t, v.Outages[i].From.After(v.Outages[i-1].From))
	}
}
