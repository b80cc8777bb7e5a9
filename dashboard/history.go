package dashboard

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service"
)

// historyView is the history of all providers. It does not depend on the visitor,
// and is read and rendered once for all open pages.
type historyView struct {
	Range     service.HistoryRange
	Words     string // the range in words
	Empty     bool   // there were no calls and no events
	Providers []historyProvider
	Answers   chart // response times, a line per provider
	Delivery  chart
	Rows      []historyRow
	Step      time.Duration

	parts parts
}

// historyProvider is the history of one provider.
type historyProvider struct {
	Name, Title string
	Hue         int
	Totals      service.HistoryCounts
	Calls       chart // outcomes of calls
	Reports     chart // events
}

// historyRow is a row of the table: the sum of some steps of one provider.
type historyRow struct {
	At          time.Time
	Name, Title string
	Hue         int
	service.HistoryCounts
}

// historyWords describes the ranges, and how many steps a row of the table sums.
var historyWords = map[service.HistoryRange]struct {
	tab, words string
	row        int
}{
	service.LastHour:  {"Hour", "the last hour, by minute", 5},
	service.LastDay:   {"Day", "the last 24 hours, by 15 minutes", 8},
	service.LastWeek:  {"Week", "the last 7 days, by 2 hours", 12},
	service.LastMonth: {"Month", "the last 30 days, by 6 hours", 4},
}

// historyTabs returns the links that switch the range.
func historyTabs(now service.HistoryRange) []tab {
	var out []tab
	for _, r := range service.HistoryRanges {
		out = append(out, tab{Text: historyWords[r].tab, To: "/providers?range=" + string(r) + "#history", Here: r == now})
	}
	return out
}

// histories caches the last history of each range.
type histories struct {
	mu   sync.Mutex
	kept map[service.HistoryRange]*keptHistory
}

type keptHistory struct {
	mu   sync.Mutex
	read time.Time
	from service.History
	view *historyView
}

// historyEvery is how long a cached history is valid.
const historyEvery = 2 * time.Second

// history returns the history of a range. The pointer stays the same while the
// history does not change.
func (d *Dashboard) history(ctx context.Context, back service.HistoryRange) (*historyView, error) {
	if _, ok := historyWords[back]; !ok {
		back = service.LastHour
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
	h, err := d.service.History(ctx, back)
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
func (d *Dashboard) viewOfHistory(h *service.History) *historyView {
	v := &historyView{
		Range: h.Range,
		Words: historyWords[h.Range].words,
		Empty: true,
		Step:  time.Duration(h.Step) * time.Second,
	}
	most := func(pick func(*service.HistoryCounts) int64) (n int64) {
		for i := range h.Providers {
			for k := range h.Providers[i].Steps {
				n = max(n, pick(&h.Providers[i].Steps[k].HistoryCounts))
			}
		}
		return n
	}
	calls := most(func(c *service.HistoryCounts) int64 { return c.Accepted + c.Refused + c.Unknown })
	reported := most(func(c *service.HistoryCounts) int64 { return c.Delivered + c.Failed + c.Deferred })
	v.Empty = calls == 0 && reported == 0
	lines := func() chart { return chart{Kind: "lines", Unit: "ms", Step: h.Step} }
	v.Answers, v.Delivery = lines(), lines()
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
		for k := range a.Steps {
			p := &a.Steps[k]
			out.Calls.add(p.At, p.Accepted, p.Unknown, p.Refused)
			out.Reports.add(p.At, p.Delivered, p.Deferred, p.Failed)
			answers.Values = append(answers.Values, p.Answer)
			delivery.Values = append(delivery.Values, p.Deliver)
		}
		v.Answers.X, v.Delivery.X = out.Calls.X, out.Calls.X
		v.Answers.Series, v.Delivery.Series = append(v.Answers.Series, answers), append(v.Delivery.Series, delivery)
		v.Providers = append(v.Providers, out)
	}
	v.Rows = historyRows(h, v.Providers)
	return v
}

// add appends a step: one value for each series.
func (c *chart) add(at time.Time, values ...int64) {
	c.X = append(c.X, float64(at.Unix()))
	for i, n := range values {
		c.Series[i].Values = append(c.Series[i].Values, float64(n))
	}
}

// historyRows sums steps into rows, newest first. Empty rows are left out.
func historyRows(h *service.History, providers []historyProvider) []historyRow {
	var out []historyRow
	size := historyWords[h.Range].row
	for end := historySteps(h); end > 0; end -= size {
		for i := range h.Providers {
			var sum telemetry.ProviderTally
			first := max(0, end-size)
			for k := first; k < end; k++ {
				sum.Add(&h.Providers[i].Steps[k].Tally)
			}
			c := service.HistoryCountsOf(&sum)
			if c == (service.HistoryCounts{}) {
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

func historySteps(h *service.History) int {
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
