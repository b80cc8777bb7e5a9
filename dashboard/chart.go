package dashboard

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/flow"
)

// chart is the input of static/charts.js.
type chart struct {
	Kind   string    `json:"kind"`           // bars (one per UTC day), steps (one bar each), area (stacked) or lines
	X      []float64 `json:"x"`              // seconds since 1970
	Step   int       `json:"step,omitempty"` // length of a step in seconds, for steps and lines; x is its beginning
	Max    int64     `json:"max,omitempty"`  // upper end of the scale; 0: the largest value
	Series []series  `json:"series"`
	Failed []failed  `json:"failed,omitempty"`
	Marks  []mark    `json:"marks,omitempty"`
	Unit   string    `json:"unit,omitempty"`
}

type series struct {
	Label  string    `json:"label"`
	Color  string    `json:"color"` // custom property of the style sheet
	Values []float64 `json:"values"`
}

// failed marks the steps in which something failed.
type failed struct {
	Label  string  `json:"label"`
	Values []int64 `json:"values"`
}

// mark shades a range of time.
type mark struct {
	From  float64 `json:"from"`
	To    float64 `json:"to"`
	Label string  `json:"label"`
}

// bar is a stacked bar of counts, 1000 units wide.
type bar struct {
	Label  string
	Parts  []barPart
	Linked bool // the parts are links
}

type barPart struct {
	Class    string
	X, Width int64
	To       string // URL of the list behind it, or ""
}

// link makes each part a link to the list of a batch's recipients in its state.
func (b *bar) link(batch string) {
	b.Linked = true
	for i := range b.Parts {
		b.Parts[i].To = batch + "?state=" + b.Parts[i].Class + "#logs"
	}
}

// barOf stacks success, failed and cancelled. Queued is the empty rest.
func barOf(c *service.Counts) bar {
	b := bar{
		Label: fmt.Sprintf(
			"%s delivered, %s failed, %s cancelled, %s queued",
			num(c.Success),
			num(c.Failed),
			num(c.Cancelled),
			num(c.Queued),
		),
	}
	at := int64(0)
	for _, p := range []struct {
		class string
		n     int64
	}{{"success", c.Success}, {"failed", c.Failed}, {"cancelled", c.Cancelled}} {
		width := int64(0)
		if p.n > 0 && c.Accepted > 0 {
			width = max(p.n*1000/c.Accepted, 4) // wide enough to be seen
		}
		if at+width > 1000 {
			width = 1000 - at
		}
		b.Parts = append(b.Parts, barPart{Class: p.class, X: at, Width: width})
		at += width
	}
	return b
}

// flowView is the send rate of a batch as a chart, and the outages of its providers in words.
type flowView struct {
	Chart   chart
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
	return slices.ContainsFunc(v.Chart.Failed, func(f failed) bool {
		return slices.ContainsFunc(f.Values, func(n int64) bool { return n > 0 })
	})
}

// outagesShown is how many outages are listed: the longest.
const outagesShown = 5

// addFlow adds the send rate and the outages.
func (d *Dashboard) addFlow(ctx context.Context, who service.Caller, v *batchView) error {
	f, err := d.service.Flow(ctx, who, v.ID.String())
	if err != nil {
		return err
	}
	v.Flow = d.flowOf(&f)
	return nil
}

// flowOf describes a flow as a chart and in words.
func (d *Dashboard) flowOf(f *flow.Flow) flowView {
	v := flowView{Partial: f.Sampled < f.Chunks, Active: f.Running}
	c := &v.Chart
	*c = chart{Kind: "area", Unit: "messages per second", X: []float64{}}
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
		c.Series = append(c.Series, series{Label: p.Provider, Color: d.colour(p.Provider), Values: rate})
		c.Failed = append(c.Failed, failed{Label: p.Provider, Values: p.Failed})
	}
	for i := range f.Outages {
		o := &f.Outages[i]
		to := seconds(o.To)
		if v.Active = v.Active || o.Lasts; o.Lasts {
			to = c.X[steps]
		}
		c.Marks = append(c.Marks, mark{
			From:  max(seconds(o.From), c.X[0]),
			To:    min(to, c.X[steps]),
			Label: o.Provider + " failing",
		})
	}
	listed := slices.Clone(f.Outages)
	if n := len(listed); n > outagesShown {
		slices.SortStableFunc(listed, func(a, b flow.Outage) int { return cmp.Compare(length(&b), length(&a)) })
		listed, v.Shorter = listed[:outagesShown], n-outagesShown
		slices.SortStableFunc(listed, func(a, b flow.Outage) int { return a.From.Compare(b.From) })
	}
	for i := range listed {
		o := outageView{Outage: listed[i], Name: d.named(listed[i].Provider), Took: length(&listed[i])}
		for k, name := range o.Through {
			if k > 0 {
				o.Via += ", "
			}
			o.Via += d.named(name)
		}
		v.Outages = append(v.Outages, o)
	}
	return v
}

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
