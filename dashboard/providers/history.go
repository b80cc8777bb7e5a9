package providers

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/dashboard/chart"
	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service/operate"
)

// HistoryView is the history of all providers. It does not depend on the visitor, and is read and rendered once for all
// open pages.
type HistoryView struct {
	Range     client.HistoryRange
	Words     string // the range in words
	Span      string // the same, without its steps
	Empty     bool   // there were no calls and no events
	Providers []historyProvider
	Answers   chart.Chart // response times, a line per provider
	Delivery  chart.Chart
	Delivered chart.Chart // messages that were delivered, of those with a result
	Deferred  chart.Chart // deferrals, per message with a result
	Rows      []historyRow
	Step      time.Duration

	parts web.Parts
}

// historyProvider is the history of one provider.
type historyProvider struct {
	Name, Title string
	Hue         int
	Totals      client.HistoryCounts
	Calls       chart.Chart // outcomes of calls
	Reports     chart.Chart // events
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
func historyTabs(now client.HistoryRange) []web.Tab {
	var out []web.Tab
	for _, r := range operate.HistoryRanges {
		out = append(out, web.Tab{Text: historyWords[r].tab, To: "/providers?range=" + string(r) + "#history",
			Here: r == now})
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
	view *HistoryView
}

// historyEvery is how long a cached history is valid.
const historyEvery = 2 * time.Second

// History returns the history of a range. The pointer stays the same while the history does not change.
func (p *Pages) History(ctx context.Context, back client.HistoryRange) (*HistoryView, error) {
	if _, ok := historyWords[back]; !ok {
		back = client.Hour
	}
	p.histories.mu.Lock()
	k := p.histories.kept[back]
	if k == nil {
		k = &keptHistory{}
		p.histories.kept[back] = k
	}
	p.histories.mu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.view != nil && time.Since(k.read) < historyEvery {
		return k.view, nil
	}
	h, err := p.service.Operate.History(ctx, back)
	if err != nil {
		return nil, err
	}
	k.read = time.Now()
	if k.view != nil && reflect.DeepEqual(h, k.from) {
		return k.view, nil
	}
	view := p.viewOfHistory(&h)
	if view.parts, err = p.web.Parts("providers", view, "history", "history-table"); err != nil {
		return nil, err
	}
	k.from, k.view = h, view
	return view, nil
}

// viewOfHistory builds the charts and rows of a history. All providers share one scale.
func (p *Pages) viewOfHistory(h *operate.History) *HistoryView {
	v := &HistoryView{
		Range: h.Range, Words: historyWords[h.Range].words, Empty: true,
		Step: time.Duration(h.Step) * time.Second,
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
	lines := func() chart.Chart { return chart.Chart{Kind: "lines", Unit: "ms", Step: h.Step} }
	v.Answers, v.Delivery = lines(), lines()
	v.Delivered = chart.Chart{Kind: "shares", Step: h.Step, Max: 100}
	v.Deferred = chart.Chart{Kind: "shares", Step: h.Step}
	for i := range h.Providers {
		a := &h.Providers[i]
		info := p.web.Providers.Info(a.Provider)
		colour := p.web.Providers.Colour(a.Provider)
		out := historyProvider{Name: a.Provider, Title: info.Title, Hue: p.web.Providers.Hue(a.Provider), Totals: a.Totals,
			Calls: chart.Chart{
				Kind: "steps",
				Step: h.Step,
				Max:  calls,
				Series: []chart.Series{{Label: "accepted", Color: colour}, {Label: "unknown", Color: "--warn-fill"},
					{Label: "refused", Color: "--bad-fill"}},
			},
			Reports: chart.Chart{
				Kind: "steps",
				Step: h.Step,
				Max:  reported,
				Series: []chart.Series{{Label: "delivered", Color: "--ok-fill"}, {Label: "deferred", Color: "--wait-fill"},
					{Label: "failed", Color: "--bad-fill"}},
			}}
		label := fmt.Sprintf("%s %s", info.Title, a.Provider)
		answers, delivery := chart.Series{Label: label, Color: colour}, chart.Series{Label: label, Color: colour}
		delivered, deferred := answers, answers
		for k := range a.Steps {
			p := &a.Steps[k]
			out.Calls.Add(p.At, p.Accepted, p.Unknown, p.Refused)
			out.Reports.Add(p.At, p.Delivered, p.Deferred, p.Failed)
			answers.Values = append(answers.Values, p.AnswerMS)
			delivery.Values = append(delivery.Values, p.DeliveryMS)
			delivered.Values = append(delivered.Values, web.Percent(p.Delivered, p.Delivered+p.Failed))
			deferred.Values = append(deferred.Values, web.Percent(p.Deferred, p.Delivered+p.Failed))
		}
		for c, s := range map[*chart.Chart]chart.Series{
			&v.Answers: answers, &v.Delivery: delivery, &v.Delivered: delivered, &v.Deferred: deferred,
		} {
			c.X, c.Series = out.Calls.X, append(c.Series, s)
		}
		v.Providers = append(v.Providers, out)
	}
	v.Rows = historyRows(h, v.Providers)
	return v
}

// finalOf returns the number of messages with a result.
func finalOf(c client.HistoryCounts) int64 { return c.Delivered + c.Failed }

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
			out = append(out, historyRow{h.Providers[i].Steps[first].At, a.Name, a.Title, a.Hue, c})
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
func (v *HistoryView) Spans() time.Duration {
	return time.Duration(historyWords[v.Range].row) * v.Step
}

// MinutesOf returns the messages that a provider accepted in each minute of the last hour.
func (v *HistoryView) MinutesOf(provider string) []float64 {
	for i := range v.Providers {
		if v.Providers[i].Name == provider {
			return v.Providers[i].Calls.Series[0].Values
		}
	}
	return nil
}
