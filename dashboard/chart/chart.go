// Package chart has what pages draw: charts, which a script draws from JSON, and stacked bars and small lines, which
// need no script.
package chart

import (
	"fmt"
	"html/template"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/models"
)

// Chart is the input of charts.js.
type Chart struct {
	// Kind is bars (one per UTC day), steps (one bar each), area (stacked), lines or counts.
	Kind   string    `json:"kind"`
	X      []float64 `json:"x"`              // seconds since 1970
	Step   int       `json:"step,omitempty"` // length of a step in seconds, for steps and lines; x is its beginning
	Max    int64     `json:"max,omitempty"`  // upper end of the scale; 0: the largest value
	Series []Series  `json:"series"`
	Failed []Failed  `json:"failed,omitempty"`
	Marks  []Mark    `json:"marks,omitempty"`
	Unit   string    `json:"unit,omitempty"`
	List   string    `json:"list,omitempty"` // of bars: address of the list behind them, without the days
}

// Series is a line, an area or the bars of a chart.
type Series struct {
	Label  string    `json:"label"`
	Color  string    `json:"color"` // custom property of the style sheet
	Values []float64 `json:"values"`
}

// Add appends a step: one value for each series.
func (c *Chart) Add(at time.Time, values ...int64) {
	c.X = append(c.X, float64(at.Unix()))
	for i, n := range values {
		c.Series[i].Values = append(c.Series[i].Values, float64(n))
	}
}

// Failed marks the steps in which something failed.
type Failed struct {
	Label  string  `json:"label"`
	Values []int64 `json:"values"`
}

// Mark shades a range of time.
type Mark struct {
	From  float64 `json:"from"`
	To    float64 `json:"to"`
	Label string  `json:"label"`
}

// Bar is a stacked bar of counts, 1000 units wide.
type Bar struct {
	Label  string
	Parts  []Part
	Linked bool // the parts are links
}

// Part is a part of a Bar.
type Part struct {
	Class    string
	X, Width int64
	To       string // URL of the list behind it, or ""
}

// Link makes each part a link to the list of a batch's recipients in its state.
func (b *Bar) Link(batch string) {
	b.Linked = true
	for i := range b.Parts {
		b.Parts[i].To = batch + "?state=" + b.Parts[i].Class + "#logs"
	}
}

// barStates are the states that a bar shows. Queued is the empty rest.
var barStates = []models.State{models.Success, models.Sent, models.Failed, models.Cancelled}

// BarOf stacks the counts of barStates.
func BarOf(c *client.Counts) Bar {
	var b Bar
	for _, s := range barStates {
		b.Label += web.Num(c.Of(client.State(s))) + " " + string(s) + ", "
	}
	b.Label += web.Num(c.Queued) + " queued"
	at := int64(0)
	for _, s := range barStates {
		width := int64(0)
		if n := c.Of(client.State(s)); n > 0 && c.Accepted > 0 {
			width = max(n*1000/c.Accepted, 4) // wide enough to be seen
		}
		if at+width > 1000 {
			width = 1000 - at
		}
		b.Parts = append(b.Parts, Part{Class: string(s), X: at, Width: width})
		at += width
	}
	return b
}

// Sparkline draws values as a small line without axes. Screen readers skip it: the figures are beside it. It is empty
// if there are less than two values, or none above 0.
func Sparkline(values []float64) template.HTML {
	most := 0.0
	for _, v := range values {
		most = max(most, v)
	}
	if len(values) < 2 || most == 0 {
		return ""
	}
	var points strings.Builder
	for i, v := range values {
		fmt.Fprintf(&points, "%d,%.1f ", i, 15-14*v/most)
	}
	text := fmt.Sprintf(`<svg class="spark" viewBox="0 0 %d 16" preserveAspectRatio="none" aria-hidden="true">`+
		`<polyline points="%s"/></svg>`, len(values)-1, strings.TrimSpace(points.String()))
	return template.HTML(text) //nolint:gosec // has only numbers
}
