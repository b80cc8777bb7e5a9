package dashboard

import (
	"encoding/json"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/dashboard/chart"
	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// TestOverviewHour: the overview of everyone's mail has what the providers did in the last hour, by minute.
func TestOverviewHour(t *testing.T) {
	t.Parallel()
	require.Contains(t, newRig(t, nil).byLink(login.LocalUser()).get("/").text, "No messages were sent in the last hour.")
	f := newRig(t, nil)
	f.happened("one", 0, "sg", func(t *telemetry.ProviderTally) {
		t.Calls, t.Accepted, t.Delivered, t.Failed = 1, 8, 6, 1
	})
	f.happened("two", 0, "mg", func(t *telemetry.ProviderTally) { t.Calls, t.Accepted, t.Failed = 1, 5, 4 })
	b := f.byLink(login.LocalUser()) // the pages keep what they read for a while
	page := b.get("/").text
	require.Contains(t, textOf(page), "Last hour at the providers, by minute · by provider sent 13 delivered 6 failed 5 ")
	require.Contains(t, page, `&#34;kind&#34;:&#34;counts&#34;,`)
	require.Equal(t, 2, strings.Count(page, "<polyline"), "a line for each provider")

	require.Equal(t, []float64{13, 6, 5}, sumsOfHour(t, page))
	require.Equal(t, 2, strings.Count(b.get("/providers").text, "<polyline"))
}

// sumsOfHour returns the sum of each series in the chart of the last hour, by minute.
func sumsOfHour(t *testing.T, page string) (out []float64) {
	t.Helper()
	_, page, _ = strings.Cut(page, `id="hour"`)
	data := regexp.MustCompile(`<data value="([^"]*)">`).FindStringSubmatch(page)
	require.NotNil(t, data)
	var c chart.Chart
	require.NoError(t, json.Unmarshal([]byte(html.UnescapeString(data[1])), &c))
	require.Len(t, c.X, 60)
	for _, s := range c.Series {
		sum := 0.0
		for _, v := range s.Values {
			sum += v
		}
		out = append(out, sum)
	}
	return out
}

// TestOverviewHourOfUser: the overview of one user has the states of the mail that was accepted in each minute of the
// last hour. In an outage the hour comes before the events, and both before the days.
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
	require.Equal(t, []float64{3, 6, 0, 2, 2}, sumsOfHour(t, page))
	place := func(text string) int {
		require.Contains(t, page, text)
		return strings.Index(page, text)
	}
	require.Less(t, place(`sse-swap="attention"`), place(`id="hour"`))
	require.Less(t, place(`id="hour"`), place(`id="notices"`))
	require.Less(t, place(`id="notices"`), place(`id="days-title"`))
}
