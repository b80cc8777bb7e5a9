package dashboard

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/flow"
	"github.com/safedelivr/safedelivr/service/operate"
)

// historyView is the history of all providers. It does not depend on the visitor,
// and is read and rendered once for all open pages.
type historyView struct {
	Range     client.HistoryRange
	Words     string // the range in words
	Span      string // the same, without its steps
	Empty     bool   // there were no calls and no events
	Providers []historyProvider
	Answers   chart // response times, a line per provider
	Delivery  chart
	Delivered chart // messages that were delivered, of those with a result
	Deferred  chart // deferrals, per message with a result
	Rows      []historyRow
	Step      time.Duration

	parts parts
}

// historyProvider is the history of one provider.
type historyProvider struct {
	Name, Title string
	Hue         int
	Totals      client.HistoryCounts
	Calls       chart // outcomes of calls
	Reports     chart // events
}

// historyRow is a row of the table: the sum of some steps of one provider.
type historyRow struct {
	At          time.Time
	Name, Title string
	Hue         int
	client.HistoryCounts
}

// historyWords describes the ranges, and how many steps a row of the table sums.
var historyWords = map[client.HistoryRange]struct {
	tab, words string
	row        int
}{
	client.Hour:  {"Hour", "the last hour, by minute", 5},
	client.Day:   {"Day", "the last 24 hours, by 15 minutes", 8},
	client.Week:  {"Week", "the last 7 days, by 2 hours", 12},
	client.Month: {"Month", "the last 30 days, by 6 hours", 4},
}

// historyTabs returns the links that switch the range.
func historyTabs(now client.HistoryRange) []tab {
	var out []tab
	for _, r := range operate.HistoryRanges {
		out = append(out, tab{Text: historyWords[r].tab, To: "/providers?range=" + string(r) + "#history", Here: r == now})
	}
	return out
}

// histories caches the last history of each range.
type histories struct {
	mu   sync.Mutex
	kept map[client.HistoryRange]*keptHistory
}

type keptHistory struct {
	mu   sync.Mutex
	read time.Time
	from operate.History
	view *historyView
}

// historyEvery is how long a cached history is valid.
const historyEvery = 2 * time.Second

// history returns the history of a range. The pointer stays the same while the
// history does not change.
func (d *Dashboard) history(ctx context.Context, back client.HistoryRange) (*historyView, error) {
	if _, ok := historyWords[back]; !ok {
		back = client.Hour
	}
	d.histories.mu.Lock()
	k := d.histories.kept[back]
	if k == nil {
		k = &keptHistory{}
		d.histories.kept[back] = k
	}
	d.histories.mu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.view != nil && time.Since(k.read) < historyEvery {
		return k.view, nil
	}
	h, err := d.service.Operate.History(ctx, back)
	if err != nil {
		return nil, err
	}
	k.read = time.Now()
	if k.view != nil && reflect.DeepEqual(h, k.from) {
		return k.view, nil
	}
	view := d.viewOfHistory(&h)
	if view.parts, err = d.pages.parts("providers", view, "history", "history-table"); err != nil {
		return nil, err
	}
	k.from, k.view = h, view
	return view, nil
}

// viewOfHistory builds the charts and rows of a history. All providers share one
// scale.
func (d *Dashboard) viewOfHistory(h *operate.History) *historyView {
	v := &historyView{
		Range: h.Range,
		Words: historyWords[h.Range].words,
		Empty: true,
		Step:  time.Duration(h.Step) * time.Second,
	}
	v.Span, _, _ = strings.Cut(v.Words, ",")
	most := func(pick func(*client.HistoryCounts) int64) (n int64) {
		for i := range h.Providers {
			for k := range h.Providers[i].Steps {
				n = max(n, pick(&h.Providers[i].Steps[k].HistoryCounts))
			}
		}
		return n
	}
	calls := most(func(c *client.HistoryCounts) int64 { return c.Accepted + c.Refused + c.Unknown })
	reported := most(func(c *client.HistoryCounts) int64 { return c.Delivered + c.Failed + c.Deferred })
	v.Empty = calls == 0 && reported == 0
	lines := func() chart { return chart{Kind: "lines", Unit: "ms", Step: h.Step} }
	v.Answers, v.Delivery = lines(), lines()
	v.Delivered = chart{Kind: "shares", Step: h.Step, Max: 100}
	v.Deferred = chart{Kind: "shares", Step: h.Step}
	for i := range h.Providers {
		a := &h.Providers[i]
		info := d.info(a.Provider)
		colour := d.colour(a.Provider)
		out := historyProvider{Name: a.Provider, Title: info.Title, Hue: d.hue(a.Provider), Totals: a.Totals,
			Calls: chart{
				Kind: "steps",
				Step: h.Step,
				Max:  calls,
				Series: []series{{Label: "accepted", Color: colour}, {Label: "unknown", Color: "--warn-fill"},
					{Label: "refused", Color: "--bad-fill"}},
			},
			Reports: chart{
				Kind: "steps",
				Step: h.Step,
				Max:  reported,
				Series: []series{{Label: "delivered", Color: "--ok-fill"}, {Label: "deferred", Color: "--wait-fill"},
					{Label: "failed", Color: "--bad-fill"}},
			}}
		label := fmt.Sprintf("%s %s", info.Title, a.Provider)
		answers, delivery := series{Label: label, Color: colour}, series{Label: label, Color: colour}
		delivered, deferred := answers, answers
		for k := range a.Steps {
			p := &a.Steps[k]
			out.Calls.add(p.At, p.Accepted, p.Unknown, p.Refused)
			out.Reports.add(p.At, p.Delivered, p.Deferred, p.Failed)
			answers.Values = append(answers.Values, p.AnswerMS)
			delivery.Values = append(delivery.Values, p.DeliveryMS)
			delivered.Values = append(delivered.Values, percent(p.Delivered, p.Delivered+p.Failed))
			deferred.Values = append(deferred.Values, percent(p.Deferred, p.Delivered+p.Failed))
		}
		for c, s := range map[*chart]series{
			&v.Answers: answers, &v.Delivery: delivery, &v.Delivered: delivered, &v.Deferred: deferred,
		} {
			c.X, c.Series = out.Calls.X, append(c.Series, s)
		}
		v.Providers = append(v.Providers, out)
	}
	v.Rows = historyRows(h, v.Providers)
	return v
}

// percent returns part of whole in percent for a chart, or -1 if there is nothing to divide by.
func percent(part, whole int64) float64 {
	if whole == 0 {
		return -1
	}
	return math.Round(float64(part)*1000/float64(whole)) / 10
}

// finalOf returns the number of messages with a result.
func finalOf(c client.HistoryCounts) int64 { return c.Delivered + c.Failed }

// add appends a step: one value for each series.
func (c *chart) add(at time.Time, values ...int64) {
	c.X = append(c.X, float64(at.Unix()))
	for i, n := range values {
		c.Series[i].Values = append(c.Series[i].Values, float64(n))
	}
}

// historyRows sums steps into rows, newest first. Empty rows are left out.
func historyRows(h *operate.History, providers []historyProvider) []historyRow {
	var out []historyRow
	size := historyWords[h.Range].row
	for end := historySteps(h); end > 0; end -= size {
		for i := range h.Providers {
			var sum telemetry.ProviderTally
			first := max(0, end-size)
			for k := first; k < end; k++ {
				sum.Add(&h.Providers[i].Steps[k].Tally)
			}
			c := operate.HistoryCountsOf(&sum)
			if c == (client.HistoryCounts{}) {
				continue
			}
			a := &providers[i]
			out = append(
				out,
				historyRow{At: h.Providers[i].Steps[first].At, Name: a.Name, Title: a.Title, Hue: a.Hue, HistoryCounts: c},
			)
		}
	}
	return out
}

func historySteps(h *operate.History) int {
	if len(h.Providers) == 0 {
		return 0
	}
	return len(h.Providers[0].Steps)
}

// Spans is the duration of a row of the table.
func (v *historyView) Spans() time.Duration {
	return time.Duration(historyWords[v.Range].row) * v.Step
}

// ms converts milliseconds to a Duration.
func ms(n float64) time.Duration { return time.Duration(n * float64(time.Millisecond)) }

// chart is the input of static/charts.js.
type chart struct {
	Kind   string    `json:"kind"`           // bars (one per UTC day), steps (one bar each), area (stacked), lines or counts
	X      []float64 `json:"x"`              // seconds since 1970
	Step   int       `json:"step,omitempty"` // length of a step in seconds, for steps and lines; x is its beginning
	Max    int64     `json:"max,omitempty"`  // upper end of the scale; 0: the largest value
	Series []series  `json:"series"`
	Failed []failed  `json:"failed,omitempty"`
	Marks  []mark    `json:"marks,omitempty"`
	Unit   string    `json:"unit,omitempty"`
	List   string    `json:"list,omitempty"` // of bars: address of the list behind them, without the days
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

// barStates are the states that a bar shows. Queued is the empty rest.
var barStates = []models.State{models.Success, models.Sent, models.Failed, models.Cancelled}

// barOf stacks the counts of barStates.
func barOf(c *client.Counts) bar {
	var b bar
	for _, s := range barStates {
		b.Label += num(c.Of(client.State(s))) + " " + string(s) + ", "
	}
	b.Label += num(c.Queued) + " queued"
	at := int64(0)
	for _, s := range barStates {
		width := int64(0)
		if n := c.Of(client.State(s)); n > 0 && c.Accepted > 0 {
			width = max(n*1000/c.Accepted, 4) // wide enough to be seen
		}
		if at+width > 1000 {
			width = 1000 - at
		}
		b.Parts = append(b.Parts, barPart{Class: string(s), X: at, Width: width})
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
	f, err := d.service.Mail.Flow(ctx, who, v.ID.String())
	if err != nil {
		return err
	}
	v.Flow = d.flowOf(&f)
	for _, open := range f.Open {
		v.countOpen(open, d.info(open.Provider).Title, d.hue(open.Provider))
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
		if o.Lasts {
			to = c.X[steps]
		}
		v.Active = v.Active || o.Lasts || !o.Over && time.Since(o.To) < toldWithin
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
