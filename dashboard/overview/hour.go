package overview

import (
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/dashboard/chart"
	"github.com/safedelivr/safedelivr/dashboard/providers"
	"github.com/safedelivr/safedelivr/service/stats"
)

// dayCounts are the counts that eachDay knows.
var dayCounts = map[string]func(*client.Counts) int64{
	"accepted":  func(c *client.Counts) int64 { return c.Accepted },
	"delivered": func(c *client.Counts) int64 { return c.Delivered },
	"failed":    func(c *client.Counts) int64 { return c.Failed },
	"rerouted":  func(c *client.Counts) int64 { return c.Rerouted },
}

// eachDay returns a count of each day. It panics if it does not know the count.
func eachDay(days []client.DayCounts, count string) (out []float64) {
	of := dayCounts[count]
	for i := range days {
		out = append(out, float64(of(&days[i].Counts)))
	}
	return out
}

// hourView is the last hour by minute: what the providers did with the mail of all users, or the states of the mail that
// one user sent.
type hourView struct {
	OfUser bool
	Counts []hourCount
	Chart  chart.Chart
}

// hourCount is an entry of the legend: a series of the chart, and its sum.
type hourCount struct {
	Label string
	N     int64
}

// Empty reports whether nothing happened.
func (v *hourView) Empty() bool {
	return !slices.ContainsFunc(v.Counts, func(c hourCount) bool { return c.N > 0 })
}

// hourOf adds up the providers of the history of an hour.
func hourOf(h *providers.HistoryView) *hourView {
	v := &hourView{Chart: chart.Chart{Kind: "counts", Step: int(h.Step.Seconds()), Series: []chart.Series{
		{Label: "sent", Color: "--p5"}, {Label: "delivered", Color: "--ok-fill"}, {Label: "failed", Color: "--bad-fill"},
	}}}
	sums := make([]int64, len(v.Chart.Series))
	for i := range h.Providers {
		p := &h.Providers[i]
		sums[0], sums[1], sums[2] = sums[0]+p.Totals.Accepted, sums[1]+p.Totals.Delivered, sums[2]+p.Totals.Failed
		v.Chart.X = p.Calls.X
		for k, values := range [][]float64{p.Calls.Series[0].Values, p.Reports.Series[0].Values, p.Reports.Series[2].Values} {
			v.Chart.Series[k].Values = sumOf(v.Chart.Series[k].Values, values)
		}
	}
	for i, n := range sums {
		v.Counts = append(v.Counts, hourCount{v.Chart.Series[i].Label, n})
	}
	return v
}

// hourOfUser shows the states of the mail of one user that was accepted in each minute of the last hour.
func hourOfUser(s *stats.Stats) *hourView {
	v := &hourView{OfUser: true, Chart: chart.Chart{Kind: "steps", Step: 60, Series: stateSeries()}}
	for _, s := range v.Chart.Series {
		v.Counts = append(v.Counts, hourCount{Label: s.Label})
	}
	for i := range s.Minutes {
		counts := eachState(&s.Minutes[i])
		for k, n := range counts {
			v.Counts[k].N += n
		}
		v.Chart.Add(s.MinutesFrom.Add(time.Duration(i)*time.Minute), counts...)
	}
	return v
}

// stateSeries returns the series of a chart of states.
func stateSeries() []chart.Series {
	return []chart.Series{{Label: "delivered", Color: "--ok-fill"}, {Label: "failed", Color: "--bad-fill"},
		{Label: "sent", Color: "--sent-fill"}, {Label: "queued", Color: "--wait-fill"}, {Label: "cancelled", Color: "--off-fill"}}
}

// eachState returns the counts in the order of stateSeries.
func eachState(c *client.Counts) []int64 {
	return []int64{c.Delivered, c.Failed, c.Sent, c.Queued, c.Cancelled}
}

// sumOf returns the sums of two lists of the same length; a may be empty.
func sumOf(a, b []float64) []float64 {
	out := make([]float64, len(b))
	copy(out, a)
	for i := range b {
		out[i] += b[i]
	}
	return out
}
