package dashboard

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/stats"
)

// TestOverviewHour: the overview of everyone's mail has what the providers did in the last hour, by minute.
func TestOverviewHour(t *testing.T) {
	t.Parallel()
	require.Contains(t, newRig(t, nil).byLink(login.LocalUser()).get("/").text, "No messages were sent in the last hour.")
	f := newRig(t, nil)
	f.happened("one", 0, "sg", func(t *telemetry.ProviderTally) { t.Calls, t.Accepted, t.Delivered, t.Failed = 1, 8, 6, 1 })
	f.happened("two", 0, "mg", func(t *telemetry.ProviderTally) { t.Calls, t.Accepted, t.Failed = 1, 5, 4 })
	b := f.byLink(login.LocalUser()) // the pages keep what they read for a while
	page := b.get("/").text
	require.Contains(t, textOf(page), "Last hour by minute · by provider sent 13 delivered 6 failed 5 ")
	require.Contains(t, page, `&#34;kind&#34;:&#34;counts&#34;,`)
	require.Equal(t, 2, strings.Count(page, "<polyline"), "a line for each provider")

	h, err := f.board.providers.History(t.Context(), client.Hour)
	require.NoError(t, err)
	hour := hourOf(h)
	require.Len(t, hour.Chart.X, 60)
	for i, want := range []float64{13, 6, 5} {
		most := 0.0
		for _, v := range hour.Chart.Series[i].Values {
			most += v
		}
		require.InDelta(t, want, most, 0, hour.Chart.Series[i].Label)
	}
	require.Equal(t, 2, strings.Count(b.get("/providers").text, "<polyline"))

}

// TestOverviewHourOfUser: the overview of one user has the states of the mail that was accepted in each minute of the last
// hour. In an outage the hour comes before the events, and both before the days.
func TestOverviewHourOfUser(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	f.summed(f.mixed("local", 13))
	b := f.byLink(login.LocalUser())
	require.Equal(t, http.StatusOK, b.post("/everyone", url.Values{"everyone": {"no"}, "to": {"/"}}).StatusCode)
	page := b.get("/").text
	require.Contains(t, textOf(page), "Last hour by the minute in which mail was accepted "+
		"delivered 3 failed 6 sent 0 queued 2 cancelled 2 ")
	require.NotContains(t, page, "by provider")
	stats, err := f.service.Stats.Of(t.Context(), service.Caller{User: "local"}, stats.Query{Minutes: true})
	require.NoError(t, err)
	hour := hourOfUser(&stats)
	require.Len(t, hour.Chart.X, 60)
	for i, c := range hour.Counts {
		sum := 0.0
		for _, n := range hour.Chart.Series[i].Values {
			sum += n
		}
		require.InDelta(t, c.N, sum, 0, c.Label)
	}
	place := func(text string) int {
		require.Contains(t, page, text)
		return strings.Index(page, text)
	}
	require.Less(t, place(`sse-swap="attention"`), place(`id="hour"`))
	require.Less(t, place(`id="hour"`), place(`id="notices"`))
	require.Less(t, place(`id="notices"`), place(`id="days-title"`))
}

// TestOverviewTiles: a tile has a line of its count in the last 30 days.
func TestOverviewTiles(t *testing.T) {
	t.Parallel()
	days := []client.DayCounts{{Counts: client.Counts{Accepted: 3, Delivered: 2, Failed: 1}}, {Counts: client.Counts{}}}
	require.Equal(t, []float64{3, 0}, eachDay(days, "accepted"))
	require.Equal(t, []float64{2, 0}, eachDay(days, "delivered"))
	require.Equal(t, []float64{1, 0}, eachDay(days, "failed"))
	require.Equal(t, []float64{0, 0}, eachDay(days, "rerouted"))
	f := newRig(t, nil)
	page, err := f.board.web.Parts("overview", &overviewView{Days: days}, "today")
	require.NoError(t, err)
	require.Equal(t, 3, strings.Count(string(page["today"]), "<polyline"))
}
