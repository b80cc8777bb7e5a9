package dashboard

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
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
func (d *Dashboard) overview(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	view, err := d.readOverview(r.Context(), v.Caller())
	if err != nil {
		return err
	}
	if view.Empty && v.Operator && !v.Everyone {
		who := v.Caller()
		who.Everyone = true
		all, err := d.service.Stats.Of(r.Context(), who, stats.Query{})
		if err != nil {
			return err
		}
		view.Others = mailOfUsers(&all)
	}
	page := web.Page{Title: "Overview", Active: "overview", Live: "/live/overview", Charts: true, Data: view}
	d.web.Render(w, r, v, http.StatusOK, "overview", page)
	return nil
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
func (d *Dashboard) overviewEvents(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	who := v.Caller()
	return d.web.Stream(w, r, v, web.EventsKey("overview ", who.Whose(), " ", who.Operator), func() web.Source {
		return web.Source{
			Read: func(ctx context.Context) (any, error) { return d.readOverview(ctx, who) },
			Render: func(now any) (web.Parts, error) {
				return d.web.Parts("overview", now, overviewParts...)
			},
		}
	})
}

func (d *Dashboard) readOverview(ctx context.Context, who service.Caller) (*overviewView, error) {
	stats, err := d.service.Stats.Of(ctx, who, stats.Query{Minutes: !who.Everyone})
	if err != nil {
		return nil, err
	}
	batches, err := d.service.Mail.FindBatches(ctx, who, mail.BatchFilter{}, service.Page{Limit: watchedBatches})
	if err != nil {
		return nil, err
	}
	providers, err := d.providers.Now()
	if err != nil {
		return nil, err
	}
	attention, err := d.attention.Of(ctx, who, providers, batches.Batches, &stats.Totals)
	if err != nil {
		return nil, err
	}
	notices, err := d.noticesOf(ctx, who)
	if err != nil {
		return nil, err
	}
	v := &overviewView{
		Base:      d.web.PublicURL(),
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
	hour, err := d.providers.History(ctx, client.Hour)
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
		v.Batches = append(v.Batches, pages.RowOf(d.web.Providers, &batches.Batches[i]))
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

// statisticsView is the page of sums by provider, tag, category, template or sender.
type statisticsView struct {
	stats.Stats
	By        models.GroupKind
	Name      string // of the group that days and totals are of, or ""
	All       string // address of the page about all groups
	Tabs      []web.Tab
	Chart     chart.Chart
	Providers []string
	Error     string // why the range of days cannot be used
}

// ByProvider reports whether the groups are providers.
func (v *statisticsView) ByProvider() bool { return v.By == models.ByProvider }

// About returns the address of the page about one group.
func (v *statisticsView) About(name string) string { return v.address(v.By, name) }

// listOf returns the address of the list of the mail of a group, or of all mail if there is no name: of any time. It is
// "" if lists cannot be filtered by the kind of group.
func (v *statisticsView) listOf(name string) string {
	switch {
	case name == "":
		return "/logs"
	case v.By == models.ByTag:
		return "/logs?" + url.Values{"tag": {name}}.Encode()
	}
	return ""
}

// List returns the address of the list behind a count of a group, or of all mail; "" if there is none. of is a pair of a
// parameter and its value, or nothing.
func (v *statisticsView) List(name string, of ...string) string {
	list := v.listOf(name)
	if list == "" {
		return ""
	}
	q := url.Values{"from": {v.From}, "to": {v.To}}
	for i := 0; i+1 < len(of); i += 2 {
		q.Set(of[i], of[i+1])
	}
	path, query, _ := strings.Cut(list, "?")
	return path + "?" + strings.TrimPrefix(query+"&"+q.Encode(), "&")
}

func (v *statisticsView) address(by models.GroupKind, name string) string {
	query := url.Values{"by": {string(by)}, "from": {v.From}, "to": {v.To}}
	if name != "" {
		query.Set("name", name)
	}
	return "/statistics?" + query.Encode()
}

// statistics is GET /statistics.
func (d *Dashboard) statistics(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	query := r.URL.Query()
	view := statisticsView{
		By: models.GroupKind(cmp.Or(query.Get("by"), string(models.ByTag))), Name: query.Get("name"),
	}
	wanted := stats.Query{
		From: query.Get("from"), To: query.Get("to"), By: string(view.By), Name: view.Name,
	}
	status := http.StatusOK
	var err error
	view.Stats, err = d.service.Stats.Of(r.Context(), v.Caller(), wanted)
	if wrong, ok := errors.AsType[*service.Error](err); ok && len(wrong.Fields) > 0 {
		status, view.Error, view.By = http.StatusBadRequest, web.Sentence(wrong.Fields[0].Detail), models.ByTag
		view.Name = ""
		view.Stats, err = d.service.Stats.Of(r.Context(), v.Caller(), stats.Query{By: string(view.By)})
	}
	if err != nil {
		return err
	}
	for _, kind := range models.GroupKinds {
		view.Tabs = append(view.Tabs, web.Tab{Text: kind.Words(), To: view.address(kind, ""), Here: kind == view.By})
	}
	view.All, view.Chart = view.address(view.By, ""), daysChart(view.Days, view.listOf(view.Name))
	view.Providers = slices.Sorted(maps.Keys(view.Totals.Providers))
	d.web.Render(w, r, v, status, "statistics", web.Page{Title: "Statistics", Active: "statistics", Charts: true, Data: &view})
	return nil
}
