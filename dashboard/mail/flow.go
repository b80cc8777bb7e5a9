package mail

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/dashboard/chart"
	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/flow"
)

// flowView is the send rate of a batch as a chart, and the outages of its providers in words.
type flowView struct {
	Chart   chart.Chart
	Outages []outageView
	Shorter int  // outages that are not listed
	Partial bool // estimated from some of its chunks
	Active  bool // it changes by itself: calls are running, or a provider is failing
}

type outageView struct {
	flow.Outage
	Name string // of the provider, with its title
	Took time.Duration
	Via  string // the other providers, with their titles
}

// HasFailed reports whether calls failed.
func (v *flowView) HasFailed() bool {
	return slices.ContainsFunc(v.Chart.Failed, func(f chart.Failed) bool {
		return slices.ContainsFunc(f.Values, func(n int64) bool { return n > 0 })
	})
}

// outagesShown is how many outages are listed: the longest.
const outagesShown = 5

// addFlow adds the send rate and the outages.
func (p *Pages) addFlow(ctx context.Context, who service.Caller, v *batchView) error {
	f, err := p.mail.Flow(ctx, who, v.ID.String())
	if err != nil {
		return err
	}
	v.Flow = flowOf(p.web.Providers, &f)
	for _, open := range f.Open {
		v.countOpen(open, p.web.Providers.Info(open.Provider).Title, p.web.Providers.Hue(open.Provider))
	}
	return nil
}

// countOpen counts messages of calls without an outcome at their provider, if the sums do not have them yet.
func (v *batchView) countOpen(open flow.Open, title string, hue int) {
	i := slices.IndexFunc(v.Shares, func(s providerShare) bool { return s.Name == open.Provider })
	if i < 0 {
		i = len(v.Shares)
		v.Shares = append(v.Shares, providerShare{Name: open.Provider, Title: title, Hue: hue})
	}
	s := &v.Shares[i]
	late := open.InFlight + open.Unknown - s.Tried // events may have settled calls that the sums have
	if late <= 0 {
		return
	}
	unknown := min(late, open.Unknown)
	s.Tried, s.Unknown, s.Pending = s.Tried+late, s.Unknown+unknown, s.Pending+late-unknown
}

// flowOf describes a flow as a chart and in words.
func flowOf(known *web.Providers, f *flow.Flow) flowView {
	v := flowView{Partial: f.Sampled < f.Chunks, Active: f.Running}
	c := &v.Chart
	*c = chart.Chart{Kind: "area", Unit: "messages per second", X: []float64{}}
	if len(f.Providers) == 0 {
		return v
	}
	steps := len(f.Providers[0].Accepted)
	for i := range steps + 1 { // the last step needs an end
		c.X = append(c.X, seconds(f.From.Add(time.Duration(i)*f.Step)))
	}
	for i := range f.Providers {
		p := &f.Providers[i]
		rate := rounded(append(p.Accepted, p.Accepted[steps-1]))
		c.Series = append(c.Series, chart.Series{Label: p.Provider, Color: known.Colour(p.Provider), Values: rate})
		c.Failed = append(c.Failed, chart.Failed{Label: p.Provider, Values: p.Failed})
	}
	for i := range f.Outages {
		o := &f.Outages[i]
		to := seconds(o.To)
		if o.Lasts {
			to = c.X[steps]
		}
		v.Active = v.Active || o.Lasts || !o.Over && time.Since(o.To) < toldWithin
		c.Marks = append(c.Marks, chart.Mark{
			From: max(seconds(o.From), c.X[0]), To: min(to, c.X[steps]), Label: o.Provider + " failing",
		})
	}
	listed := slices.Clone(f.Outages)
	if n := len(listed); n > outagesShown {
		slices.SortStableFunc(listed, func(a, b flow.Outage) int { return cmp.Compare(length(&b), length(&a)) })
		listed, v.Shorter = listed[:outagesShown], n-outagesShown
		slices.SortStableFunc(listed, func(a, b flow.Outage) int { return a.From.Compare(b.From) })
	}
	for i := range listed {
		o := outageView{Outage: listed[i], Name: known.Named(listed[i].Provider), Took: length(&listed[i])}
		for k, name := range o.Through {
			if k > 0 {
				o.Via += ", "
			}
			o.Via += known.Named(name)
		}
		v.Outages = append(v.Outages, o)
	}
	return v
}

// toldWithin is how long after a failed call workers may still tell whether the calls go on failing.
const toldWithin = time.Minute

// length returns how long an outage took; the longest for one that lasts.
func length(o *flow.Outage) time.Duration {
	if o.Lasts {
		return math.MaxInt64
	}
	return o.To.Sub(o.From)
}

func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

func rounded(values []float64) []float64 {
	out := make([]float64, len(values))
	for i, v := range values {
		out[i] = float64(int64(v + .5))
	}
	return out
}
