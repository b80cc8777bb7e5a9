package mail

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/mail"
	"github.com/safedelivr/safedelivr/service/walk"
)

// listParameters are what the URL of a list may have besides its cursor.
var listParameters = []string{
	"state", "recipient_state", "reason", "provider", "result", "rerouted", "possible_duplicate", "doubled",
	"from", "to", "subject", "sender", "tag", "user", "everyone", "email", "q", "size",
}

// listQuery returns those parameters of a list that are set.
func listQuery(all url.Values) url.Values {
	q := url.Values{}
	for _, name := range listParameters {
		if value := strings.TrimSpace(all.Get(name)); value != "" {
			q.Set(name, value)
		}
	}
	if day := all.Get("day"); day != "" {
		q.Set("from", day)
		q.Set("to", day)
	}
	return q
}

// with returns the URL of a list with another value of a parameter.
func with(path string, q url.Values, name, value string) string {
	q = listQuery(q)
	if q.Set(name, value); value == "" {
		q.Del(name)
	}
	return web.Address(path, q)
}

// filterView is the filter of a list, as its form shows it.
type filterView struct {
	mail.LogFilter
	Query     map[string]string // the parameters of the list
	Filtered  bool              // something is selected besides the state
	Providers []string          // names that can be chosen
	Reasons   []models.Reason
	Results   []mail.ProviderResult
	Clear     string // URL of the list without the filter
}

// filterOf returns the filter in the URL of a list. Days that cannot be read select nothing
// and are refused by the service: from is then after to.
func filterOf(known *web.Providers, q url.Values) filterView {
	v := filterView{
		LogFilter: mail.LogFilter{
			State:     models.State(q.Get("state")),
			Reason:    models.Reason(q.Get("reason")),
			Provider:  q.Get("provider"),
			Result:    mail.ProviderResult(q.Get("result")),
			Rerouted:  q.Get("rerouted") != "",
			MayDouble: q.Get("possible_duplicate") != "",
			Doubled:   q.Get("doubled") != "",
			Email:     q.Get("email"),
			Part:      q.Get("q"),
			Tag:       q.Get("tag"),
			From:      dayOf(q.Get("from"), 0),
			To:        dayOf(q.Get("to"), 1),
		},
		Query:     map[string]string{},
		Providers: known.Names(),
		Reasons:   models.Reasons(),
		Results: []mail.ProviderResult{
			mail.ResultDelivered, mail.ResultRefused, mail.ResultFailed, mail.ResultPending, mail.ResultWaiting,
			mail.ResultUnknown,
		},
	}
	for name := range q {
		v.Query[name] = q.Get(name)
		v.Filtered = v.Filtered || name != "state" && name != "size" && name != "user" && name != "everyone"
	}
	return v
}

// dayOf returns the beginning of a UTC day, some days later, or the zero time for "".
func dayOf(text string, later int) time.Time {
	t, err := time.Parse(time.DateOnly, text)
	switch {
	case text == "":
		return time.Time{}
	case err != nil:
		return time.Unix(1, 0)
	}
	return t.AddDate(0, 0, later)
}

// sizes are the sizes of pages that can be chosen; the first is the default.
var sizes = []int{50, 25, 100, 500}

func sizeOf(q url.Values) int {
	n, _ := strconv.Atoi(q.Get("size")) // 0 is no size
	if !slices.Contains(sizes, n) {
		return sizes[0]
	}
	return n
}

// pager leads to the other pages of a list.
type pager struct {
	Cursor       string // of this page
	First, Last  int    // numbers of its entries
	Total        *int64 // entries of the list; nil: not known
	AtLeast      int64  // entries that the list has at least, if Total is nil; 0: not known
	Start        string // URL of the first page
	Newer, Older string // URLs of the pages before and behind, or ""
	Until        time.Time
	Sizes        []web.Tab
}

// Do lists the commands for selected entries.
func (p *pager) Do() []string { return []string{"Retry", "Release"} }

// Entries returns the number of entries of the list, or "" if it is not known.
func (p *pager) Entries() string {
	switch {
	case p.Total != nil:
		return web.Num(*p.Total)
	case p.Older == "":
		return web.Num(p.Last)
	case p.AtLeast > walk.MaxCounted:
		return "more than " + web.Num(walk.MaxCounted)
	case p.AtLeast > int64(p.Last):
		return "at least " + web.Num(p.AtLeast)
	}
	return ""
}

func pagerOf(path string, q url.Values, cursor string, info *mail.PageInfo, entries int) pager {
	p := pager{
		Cursor: cursor,
		First:  info.First,
		Last:   info.First + entries - 1,
		Total:  info.Total,
		Until:  info.Until,

		AtLeast: info.AtLeast,
		Start:   web.Address(path, q),
	}
	to := func(cursor string) string {
		if cursor == "" {
			return ""
		}
		at := url.Values{"cursor": {cursor}}
		for name := range q {
			at.Set(name, q.Get(name))
		}
		return web.Address(path, at)
	}
	p.Newer, p.Older = to(info.Prev), to(info.Next)
	for _, n := range slices.Sorted(slices.Values(sizes)) {
		p.Sizes = append(
			p.Sizes, web.Tab{To: with(path, q, "size", strconv.Itoa(n)), Text: strconv.Itoa(n), Here: n == sizeOf(q)},
		)
	}
	return p
}

// foundView is a list of recipients of all mail.
type foundView struct {
	filterView
	pager
	Logs []foundRow
	Tabs []web.Tab
	None string // text to show if there are no results
}

type foundRow struct {
	mail.FoundLog
	Via []via
	Of  string // name of the owner, if that is not the visitor
}

// logs is GET /logs: recipients of all mail.
func (p *Pages) logs(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	view, err := p.readFound(r.Context(), v.Caller(), listQuery(r.URL.Query()), r.URL.Query().Get("cursor"))
	if e := web.Refused(err); e != nil && len(e.Fields) == 1 && e.Fields[0].Pointer == "/email" {
		return p.showFound(w, r, v, http.StatusNotFound, web.Sentence(e.Fields[0].Detail))
	}
	if err != nil {
		return err
	}
	return p.web.Render(w, r, v, http.StatusOK, "found", web.Page{Title: "Recipients", Data: view})
}

func (p *Pages) readFound(ctx context.Context, who service.Caller, q url.Values, cursor string) (*foundView, error) {
	v := &foundView{filterView: filterOf(p.web.Providers, q), None: "No recipient matches."}
	found, err := p.mail.FindLogs(ctx, who, v.LogFilter, service.Page{Limit: sizeOf(q), Cursor: cursor})
	if err != nil {
		return nil, err
	}
	v.pager = pagerOf("/logs", q, cursor, &found.PageInfo, len(found.Logs))
	for i := range found.Logs {
		p.nameCommand(ctx, &found.Logs[i].LogView)
		row := foundRow{FoundLog: found.Logs[i], Via: viaOf(&found.Logs[i].LogView)}
		if row.User != "" {
			row.Of = p.web.NameOf(ctx, row.User)
		}
		v.Logs = append(v.Logs, row)
	}
	for _, t := range stateTabs {
		to := with("/logs", q, "state", string(t.state))
		v.Tabs = append(v.Tabs, web.Tab{To: to, Text: t.text, Here: t.state == v.State})
	}
	switch {
	case v.Older != "":
		v.None = "Nothing was found in this part of your mail. Older mail can be searched, too."
	case !v.Filtered && v.State == "":
		v.None = "Recipients of the messages that you send appear here."
	case v.Email != "":
		v.None = "No message was sent to this address. " +
			"A message is found from its first attempt until its address is removed."
	}
	return v, nil
}

func (p *Pages) showFound(w http.ResponseWriter, r *http.Request, v *web.Visitor, status int, none string) error {
	view := &foundView{filterView: filterOf(p.web.Providers, listQuery(r.URL.Query())), None: none}
	return p.web.Render(w, r, v, status, "found", web.Page{Title: "Search", Entry: "/logs", Data: view})
}

// search is GET /search. It redirects from a text of the search box to the page of an ID, the list of an address or a
// domain, or the lists of a text.
func (p *Pages) search(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	wanted := strings.TrimSpace(r.URL.Query().Get("q"))
	id := strings.TrimPrefix(strings.ToLower(wanted), "batch.")
	if b, err := p.mail.ListedBatch(r.Context(), v.Caller(), id); err == nil {
		return web.SeeOther(w, r, "/batches/"+b.ID.String())
	}
	if l, err := p.mail.Log(r.Context(), v.Caller(), id); err == nil {
		return web.SeeOther(w, r, "/logs/"+l.ID.String())
	}
	if _, err := models.ParseID(id); err == nil {
		return p.showFound(w, r, v, http.StatusNotFound, "No batch or message that you can read has this ID.")
	}
	if email := cmp.Or(wholeAddress(wanted), domain(wanted)); email != "" {
		return web.SeeOther(w, r, web.Address("/logs", url.Values{"email": {email}}))
	}
	if wanted == "" {
		return web.SeeOther(w, r, "/logs")
	}
	return p.searchText(w, r, v, wanted)
}

// wholeAddress returns the text if it is a complete address, else "".
func wholeAddress(text string) string {
	if _, err := intake.ParseAddress(text); err != nil {
		return ""
	}
	return text
}

// domain returns the text as a domain with an @ before it if it is a domain, else "".
func domain(text string) string {
	name := strings.TrimPrefix(text, "@")
	if !strings.Contains(name, ".") || strings.ContainsAny(name, "@ ") || wholeAddress("any@"+name) == "" {
		return ""
	}
	return "@" + name
}

// textView is what a text was found in.
type textView struct {
	Search  string
	Batches *batchesView // whose subject has it
	Found   *foundView   // whose address has it
}

// textFound is the number of results of each kind that the page of a text has.
const textFound = "25"

// searchText shows the newest batches whose subject has a text, and the newest recipients whose
// address has it.
func (p *Pages) searchText(w http.ResponseWriter, r *http.Request, v *web.Visitor, text string) error {
	view := &textView{Search: text}
	var err error
	q := url.Values{"subject": {text}, "size": {textFound}}
	if view.Batches, err = p.readBatches(r.Context(), v.Caller(), q, ""); err != nil {
		return err
	}
	q = url.Values{"q": {text}, "size": {textFound}}
	if view.Found, err = p.readFound(r.Context(), v.Caller(), q, ""); err != nil {
		return err
	}
	return p.web.Render(w, r, v, http.StatusOK, "search", web.Page{Title: "Search", Entry: web.NoEntry, Data: view})
}
