// Package overview has the first page, with what happened lately, and the page of statistics.
package overview

import (
	"context"
	"embed"
	"html/template"
	"net/http"
	"regexp"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/dashboard/attention"
	"github.com/safedelivr/safedelivr/dashboard/chart"
	pages "github.com/safedelivr/safedelivr/dashboard/mail"
	"github.com/safedelivr/safedelivr/dashboard/providers"
	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/mail"
	"github.com/safedelivr/safedelivr/service/stats"
)

// views are the templates of this room.
var views = web.NewTemplates(files, template.FuncMap{"spark": chart.Sparkline, "eachDay": eachDay})

//go:embed *.html
var files embed.FS

// Pages are the first page, and that of statistics.
type Pages struct {
	web       *web.Frame
	providers *providers.Pages
	attention *attention.Reader
	service   *service.Service
}

// New returns the pages.
func New(frame *web.Frame, svc *service.Service, of *providers.Pages, troubles *attention.Reader) *Pages {
	return &Pages{web: frame, providers: of, attention: troubles, service: svc}
}

// Routes returns the routes of the pages.
func (p *Pages) Routes() web.Routes {
	return web.Routes{
		Templates: views,
		Entries: []web.Entry{
			{Group: web.NavTop, To: "/", Icon: "home", Text: "Overview"},
			{Group: web.NavWatch, To: "/statistics", Icon: "bars", Text: "Statistics"},
		},
		Users: map[string]web.Handler{
			"GET /{$}":           p.overview,
			"GET /live/overview": p.overviewEvents,
			"GET /statistics":    p.statistics,
		},
	}
}

// overviewView is the first page.
type overviewView struct {
	Base      string // base URL of the API
	Empty     bool   // the user has no batches
	Others    string // mail of other users, if an operator has none; "": there is none
	Whose     string // whose mail the page shows, if it is that of all users
	From, Day string // the first of the days, and today, in UTC
	Today     client.Counts
	Totals    client.Counts
	Days      []client.DayCounts
	Chart     chart.Chart
	Hour      *hourView
	Providers []providers.Provider
	Attention []attention.Attention
	Notices   []noticeRow
	Operator  bool
	Batches   []*pages.Row
}

const (
	overviewBatches = 6
	overviewNotices = 5
	watchedBatches  = 30 // number of newest batches that are checked for problems
)

// overviewParts are the parts of the page that update by themselves.
var overviewParts = []string{"attention", "today", "hour", "days", "providers", "recent", "notices"}

// overview is GET /.
func (p *Pages) overview(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	view, err := p.readOverview(r.Context(), v.Caller())
	if err != nil {
		return err
	}
	if view.Empty && v.Operator && !v.Everyone {
		who := v.Caller()
		who.Everyone = true
		all, err := p.service.Stats.Of(r.Context(), who, stats.Query{})
		if err != nil {
			return err
		}
		view.Others = mailOfUsers(&all)
	}
	page := web.Page{Title: "Overview", Live: "/live/overview", Charts: true, Data: view}
	return p.web.Render(w, r, v, http.StatusOK, "overview", page)
}

// Grave reports whether something does not work.
func (v *overviewView) Grave() bool {
	return slices.ContainsFunc(v.Attention, func(a attention.Attention) bool { return a.Grave })
}

// mailOfUsers says how much mail of how many users there is; "" if there is none.
func mailOfUsers(s *stats.Stats) string {
	if s.Users == 0 {
		return ""
	}
	return web.Messages(s.Totals.Accepted) + " of " + web.Num(s.Users) + " " + web.Plural(s.Users, "user", "users")
}

// overviewEvents is GET /live/overview.
func (p *Pages) overviewEvents(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	who := v.Caller()
	return p.web.Stream(w, r, v, web.EventsKey("overview ", who.Whose(), " ", who.Operator), func() web.Source {
		return web.Source{
			Read: func(ctx context.Context) (any, error) { return p.readOverview(ctx, who) },
			Render: func(now any) (web.Parts, error) {
				return p.web.Parts("overview", now, overviewParts...)
			},
		}
	})
}

func (p *Pages) readOverview(ctx context.Context, who service.Caller) (*overviewView, error) {
	stats, err := p.service.Stats.Of(ctx, who, stats.Query{Minutes: !who.Everyone})
	if err != nil {
		return nil, err
	}
	batches, err := p.service.Mail.FindBatches(ctx, who, mail.BatchFilter{}, service.Page{Limit: watchedBatches})
	if err != nil {
		return nil, err
	}
	providers, err := p.providers.Now()
	if err != nil {
		return nil, err
	}
	attention, err := p.attention.Of(ctx, who, providers, batches.Batches, &stats.Totals)
	if err != nil {
		return nil, err
	}
	notices, err := p.noticesOf(ctx, who)
	if err != nil {
		return nil, err
	}
	v := &overviewView{
		Base:      p.web.PublicURL(),
		Empty:     len(batches.Batches) == 0,
		From:      stats.From,
		Day:       stats.Days[len(stats.Days)-1].Date,
		Today:     stats.Days[len(stats.Days)-1].Counts,
		Totals:    stats.Totals,
		Days:      stats.Days,
		Chart:     daysChart(stats.Days, "/logs"),
		Providers: providers,
		Attention: attention,
		Notices:   notices,
		Operator:  who.Operator,
	}
	hour, err := p.providers.History(ctx, client.Hour)
	if err != nil {
		return nil, err
	}
	for i := range v.Providers {
		v.Providers[i].Minutes = hour.MinutesOf(v.Providers[i].Name)
	}
	if who.Everyone {
		v.Whose, v.Hour = mailOfUsers(&stats), hourOf(hour)
	} else {
		v.Hour = hourOfUser(&stats)
	}
	for i := range batches.Batches[:min(overviewBatches, len(batches.Batches))] {
		v.Batches = append(v.Batches, pages.RowOf(p.web.Providers, &batches.Batches[i]))
	}
	return v, nil
}

// daysChart shows the counts of each day. list is the address of the list behind them, or "".
func daysChart(days []client.DayCounts, list string) chart.Chart {
	c := chart.Chart{Kind: "bars", List: list, Series: stateSeries()}
	for i := range days {
		at, err := time.Parse(time.DateOnly, days[i].Date)
		if err != nil {
			continue // the service writes valid dates
		}
		c.Add(at, eachState(&days[i].Counts)...)
	}
	return c
}

// noticeRow is a notice as pages show it.
type noticeRow struct {
	At   time.Time
	Text string
	Good bool // something is over
}

// good are the notices that something is over.
var good = map[models.NoticeKind]bool{
	models.ProviderRecovered: true, models.FailoverEnded: true, models.WebhooksAccepted: true,
	models.AcceptanceResumed: true, models.SendingResumed: true,
}

// noticesOf returns the newest notices for an operator's Overview.
func (p *Pages) noticesOf(ctx context.Context, who service.Caller) ([]noticeRow, error) {
	if !who.Operator {
		return nil, nil
	}
	list, err := p.service.Operate.LatestNotices(ctx, who, overviewNotices)
	out := make([]noticeRow, 0, len(list))
	for i := range list {
		n := list[i].Notice
		out = append(out, noticeRow{At: list[i].At, Text: withTimes(n.Text(), list[i].At), Good: good[n.Kind]})
	}
	return out, err
}

// clockTime matches a time in the text of a notice.
var clockTime = regexp.MustCompile(`\d\d:\d\d:\d\d UTC on \d+ [A-Z][a-z]+`)

// withTimes returns the text of a notice of a time with its times in RFC 3339, for timedShort.
func withTimes(text string, at time.Time) string {
	return clockTime.ReplaceAllStringFunc(text, func(s string) string {
		t, err := time.Parse("15:04:05 UTC on 2 January", s)
		if err != nil {
			return s
		}
		t = t.AddDate(at.UTC().Year(), 0, 0)
		if t.Sub(at) > 180*24*time.Hour { // in the year before
			t = t.AddDate(-1, 0, 0)
		}
		return t.Format(time.RFC3339)
	})
}

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

// hourView is the last hour by minute: what the providers did with the mail of all users, or the states of the mail
// that one user sent.
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
		{Label: "sent", Color: "--sent-fill"}, {Label: "queued", Color: "--wait-fill"},
		{Label: "cancelled", Color: "--off-fill"}}
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
