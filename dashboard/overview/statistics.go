package overview

import (
	"cmp"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/safedelivr/safedelivr/dashboard/chart"
	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/stats"
)

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

// List returns the address of the list behind a count of a group or of all mail, or "". of is a pair of a parameter and
// its value, or nothing.
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
func (p *Pages) statistics(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	query := r.URL.Query()
	view := statisticsView{
		By: models.GroupKind(cmp.Or(query.Get("by"), string(models.ByTag))), Name: query.Get("name"),
	}
	wanted := stats.Query{
		From: query.Get("from"), To: query.Get("to"), By: string(view.By), Name: view.Name,
	}
	status := http.StatusOK
	var err error
	view.Stats, err = p.service.Stats.Of(r.Context(), v.Caller(), wanted)
	if wrong, ok := errors.AsType[*service.Error](err); ok && len(wrong.Fields) > 0 {
		status, view.Error, view.By = http.StatusBadRequest, web.Sentence(wrong.Fields[0].Detail), models.ByTag
		view.Name = ""
		view.Stats, err = p.service.Stats.Of(r.Context(), v.Caller(), stats.Query{By: string(view.By)})
	}
	if err != nil {
		return err
	}
	for _, kind := range models.GroupKinds {
		view.Tabs = append(view.Tabs, web.Tab{Text: kind.Words(), To: view.address(kind, ""), Here: kind == view.By})
	}
	view.All, view.Chart = view.address(view.By, ""), daysChart(view.Days, view.listOf(view.Name))
	view.Providers = slices.Sorted(maps.Keys(view.Totals.Providers))
	return p.web.Render(w, r, v, status, "statistics",
		web.Page{Title: "Statistics", Charts: true, Data: &view})
}
