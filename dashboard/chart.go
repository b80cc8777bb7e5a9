package dashboard

import (
	"fmt"

	"github.com/safedelivr/safedelivr/service"
)

// chart is the input of static/charts.js.
type chart struct {
	Kind   string    `json:"kind"`           // bars (one per UTC day), steps (one bar each), area (stacked) or lines
	X      []float64 `json:"x"`              // seconds since 1970
	Step   int       `json:"step,omitempty"` // length of a step in seconds, for steps and lines; x is its beginning
	Max    int64     `json:"max,omitempty"`  // upper end of the scale; 0: the largest value
	Series []series  `json:"series"`
	Marks  []mark    `json:"marks,omitempty"`
	Unit   string    `json:"unit,omitempty"`
}

type series struct {
	Label  string    `json:"label"`
	Color  string    `json:"color"` // custom property of the style sheet
	Values []float64 `json:"values"`
}

// mark shades a range of time.
type mark struct {
	From  float64 `json:"from"`
	To    float64 `json:"to"`
	Label string  `json:"label"`
}

// bar is a stacked bar of counts, 1000 units wide.
type bar struct {
	Label string
	Parts []barPart
}

type barPart struct {
	Class    string
	X, Width int64
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
		b.Parts = append(b.Parts, barPart{p.class, at, width})
		at += width
	}
	return b
}
