package mail

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/dashboard/chart"
	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/service/flow"
)

// TestFlowChart: the chart shows what was accepted, marks what failed, and shades an outage to
// its end.
func TestFlowChart(t *testing.T) {
	t.Parallel()
	known := web.NewProviders(nil)
	from := time.Unix(1_700_000_000, 0)
	v := flowOf(known, &flow.Flow{
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
		v = flowOf(known,
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
	v = flowOf(known, &flow.Flow{From: from, Step: time.Second, Outages: many,
		Providers: []flow.ProviderFlow{{Provider: "sg", Accepted: []float64{1}, Failed: []int64{0}}}})
	require.Equal(t, 3, v.Shorter)
	require.Len(t, v.Chart.Marks, 8)
	for i := 1; i < len(v.Outages); i++ {
		require.True(t, v.Outages[i].From.After(v.Outages[i-1].From))
	}
}
