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

// historyView is what happened at the providers over time. It is the same for
// everybody, and is read and rendered once for all pages that show it.
type historyView struct {
	Range     service.HistoryRange
	Words     string // of the range
	Empty     bool   // nothing happened
	Providers []historyProvider
	Answers   chart // how long calls took, a line per provider
	Delivery  chart
	Rows      []historyRow
	Step      time.Duration

	parts parts
}

// historyProvider is one provider's part.
type historyProvider struct {
	Name, Title string
	Hue         int
	Totals      service.HistoryCounts
	Calls       chart // what calls came to
	Reports     chart // what events told
}

// historyRow is a line of the table: some steps of one provider.
type historyRow struct {
	At          time.Time
	Name, Title string
	Hue         int
	service.HistoryCounts
}

// historyWords are the ranges for people, and how many steps a row of the table
// holds.
var historyWords = map[service.HistoryRange]struct {
	tab, words string
	row        int
}{
	service.LastHour:  {"Hour", "the last hour, by the minute", 5},
	service.LastDay:   {"Day", "the last 24 hours, by the quarter of an hour", 8},
	service.LastWeek:  {"Week", "the last 7 days, by two hours", 12},
	service.LastMonth: {"Month", "the last 30 days, by six hours", 4},
}

// historyTabs are the links that switch the range.
func historyTabs(now service.HistoryRange) []tab {
	var out []tab
	for _, r := range service.HistoryRanges {
		out = append(out, tab{Text: historyWords[r].tab, To: "/providers?range=" + string(r) + "#history", Here: r == now})
	}
	return out
}

// histories keeps what was read last, by range.
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

// historyEvery is how often it is read while somebody looks.
const historyEvery = 2 * time.Second

// history is the history of a range. What it returns stays the same pointer
// while nothing has changed.
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

// viewOfHistory draws a history. Providers have the same scale, so that they can
// be compared.
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
	told := most(func(c *service.HistoryCounts) int64 { return c.Delivered + c.Failed + c.Deferred })
	v.Empty = calls == 0 && told == 0
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
				Max:  told,
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

// add appends a step to a chart: a value for each of its series.
func (c *chart) add(at time.Time, values ...int64) {
	c.X = append(c.X, float64(at.Unix()))
	for i, n := range values {
		c.Series[i].Values = append(c.Series[i].Values, float64(n))
	}
}

// historyRows gathers steps into the rows of a table, the newest first; what
// nothing happened in is left out.
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

// Spans is how long a row of the table is.
func (v *historyView) Spans() time.Duration {
	return time.Duration(historyWords[v.Range].row) * v.Step
}

// ms is a time that a history tells; 0: there is none.
func ms(n float64) time.Duration { return time.Duration(n * float64(time.Millisecond)) }
