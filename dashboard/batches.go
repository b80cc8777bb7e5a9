package dashboard

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// batchRow is a batch in a list.
type batchRow struct {
	service.BatchView
	Done  int64 // recipients with a final state
	Bar   bar
	Split []splitPart
}

// splitPart is the number of messages of a batch that one provider accepted.
type splitPart struct {
	Provider string
	Hue      int
	Count    int64
}

// Word is the state of the batch, or the command that overrides it.
func (b *batchRow) Word() string {
	switch {
	case b.Cancelled:
		return "cancelled"
	case b.Stopped:
		return "stopped"
	}
	return string(b.State)
}

// Title is the subject of the batch, or why there is none.
func (b *batchRow) Title() string {
	switch {
	case b.State == models.BatchDamaged:
		return "(unreadable)"
	case b.Subject == "":
		return "(content removed)"
	}
	return b.Subject
}

func (d *Dashboard) rowOf(b *service.BatchView) *batchRow {
	return &batchRow{
		BatchView: *b,
		Done:      b.Counts.Accepted - b.Counts.Queued,
		Bar:       barOf(&b.Counts),
		Split:     d.splitOf(&b.Counts),
	}
}

// splitOf counts the messages that each provider accepted. Providers without any
// are left out.
func (d *Dashboard) splitOf(c *service.Counts) []splitPart {
	var out []splitPart
	for name, n := range c.Providers {
		if took := n.Delivered + n.Waiting + n.Failed; took > 0 {
			out = append(out, splitPart{Provider: name, Hue: d.hue(name), Count: took})
		}
	}
	slices.SortFunc(out, func(a, b splitPart) int { return strings.Compare(a.Provider, b.Provider) })
	return out
}

// batchesView is the list of batches.
type batchesView struct {
	Filter  service.BatchFilter
	Batches []*batchRow
	Tabs    []tab
	Older   string // URL of the next page
	First   bool   // this is the first page
	Search  string // the search term
	Of      string // name of the user who sent them, if that is not the visitor
}

// tab is a filter that can be chosen.
type tab struct {
	To, Text string
	Here     bool
	Count    int64
	Counted  bool
}

const batchesPage = 25

// batches is GET /batches.
func (d *Dashboard) batches(w http.ResponseWriter, r *http.Request, v *visitor) error {
	q := r.URL.Query()
	if wanted := strings.TrimSpace(q.Get("q")); wanted != "" {
		return d.find(w, r, v, wanted)
	}
	f := filterOf(q)
	view, err := d.readBatches(r.Context(), v.caller(), f, q.Get("cursor"))
	if err != nil {
		return err
	}
	p := page{Title: "Batches", Active: "batches", Data: view}
	if view.First {
		p.Live = "/live/batches?" + filterQuery(f).Encode()
	}
	d.render(w, r, v, http.StatusOK, "batches", p)
	return nil
}

// batchesEvents is GET /live/batches: the first page of the list.
func (d *Dashboard) batchesEvents(w http.ResponseWriter, r *http.Request, v *visitor) error {
	q, who := r.URL.Query(), v.caller()
	f := filterOf(q)
	if _, err := d.readBatches(r.Context(), who, f, ""); err != nil {
		return err
	}
	return d.stream(w, r, v, eventsKey("batches ", who.User, " ", f.User, " ", f.State, " ", f.Day), func() source {
		return source{
			read:   func(ctx context.Context) (any, error) { return d.readBatches(ctx, who, f, "") },
			render: func(now any) (parts, error) { return d.pages.parts("batches", now, "list") },
		}
	})
}

func (d *Dashboard) readBatches(
	ctx context.Context,
	who service.Caller,
	f service.BatchFilter,
	cursor string,
) (*batchesView, error) {
	list, err := d.service.FindBatches(ctx, who, f, service.Page{Limit: batchesPage, Cursor: cursor})
	if err != nil {
		return nil, err
	}
	v := &batchesView{Filter: f, Tabs: tabsOf(f), First: cursor == ""}
	if f.User != "" && f.User != who.User {
		v.Of = d.nameOf(ctx, f.User)
	}
	for i := range list.Batches {
		v.Batches = append(v.Batches, d.rowOf(&list.Batches[i]))
	}
	if list.Next != "" {
		next := filterQuery(f)
		next.Set("cursor", list.Next)
		v.Older = "/batches?" + next.Encode()
	}
	return v, nil
}

func filterOf(q url.Values) service.BatchFilter {
	return service.BatchFilter{State: models.BatchState(q.Get("state")), Day: q.Get("day"), User: q.Get("user")}
}

func filterQuery(f service.BatchFilter) url.Values {
	q := url.Values{}
	if f.State != "" {
		q.Set("state", string(f.State))
	}
	if f.Day != "" {
		q.Set("day", f.Day)
	}
	if f.User != "" {
		q.Set("user", f.User)
	}
	return q
}

func tabsOf(f service.BatchFilter) []tab {
	var out []tab
	for _, t := range []struct {
		state models.BatchState
		text  string
	}{{"", "All"}, {models.BatchSending, "Sending"}, {models.BatchQueued, "Queued"}, {models.BatchDone, "Done"}} {
		g := f
		g.State = t.state
		to := "/batches"
		if q := filterQuery(g).Encode(); q != "" {
			to += "?" + q
		}
		out = append(out, tab{To: to, Text: t.text, Here: t.state == f.State})
	}
	return out
}

// foundView is a page of search results.
type foundView struct {
	Search string
	Logs   []foundRow
	Older  string
	First  bool
	None   string // text to show if there are no results
}

type foundRow struct {
	service.FoundLog
	Via []via
}

// find searches for an address, or redirects to the batch or log with an ID.
func (d *Dashboard) find(w http.ResponseWriter, r *http.Request, v *visitor, wanted string) error {
	if strings.Contains(wanted, "@") {
		return d.findAddress(w, r, v, wanted)
	}
	id := strings.TrimPrefix(strings.ToLower(wanted), "batch.")
	if b, err := d.service.Batch(r.Context(), v.caller(), id); err == nil {
		seeOther(w, r, "/batches/"+b.ID.String())
		return nil
	}
	if l, err := d.service.Log(r.Context(), v.caller(), id); err == nil {
		seeOther(w, r, "/logs/"+l.ID.String())
		return nil
	}
	return d.showFound(w, r, v, http.StatusNotFound, &foundView{Search: wanted, First: true,
		None: "No batch or log of yours has this ID. Enter a full address or ID."})
}

// findAddress lists the logs of an address, newest first.
func (d *Dashboard) findAddress(w http.ResponseWriter, r *http.Request, v *visitor, address string) error {
	cursor := r.URL.Query().Get("cursor")
	found, err := d.service.Search(r.Context(), v.caller(), address, service.Page{Limit: logsPage, Cursor: cursor})
	var wrong *service.Error
	if cursor == "" && errors.As(err, &wrong) && len(wrong.Fields) > 0 {
		return d.showFound(w, r, v, http.StatusNotFound,
			&foundView{Search: address, First: true, None: sentence(wrong.Fields[0].Detail)})
	}
	if err != nil {
		return err
	}
	view := &foundView{
		Search: address,
		First:  cursor == "",
		None: "You have sent no message to this address. " +
			"A message is found from its first attempt until its address is removed.",
	}
	for i := range found.Logs {
		view.Logs = append(view.Logs, foundRow{found.Logs[i], viaOf(&found.Logs[i].LogView)})
	}
	if found.Next != "" {
		view.Older = "/batches?" + url.Values{"q": {address}, "cursor": {found.Next}}.Encode()
		view.None = "Not found in your newest mail. Older mail can be searched, too."
	}
	return d.showFound(w, r, v, http.StatusOK, view)
}

func (d *Dashboard) showFound(w http.ResponseWriter, r *http.Request, v *visitor, status int, view *foundView) error {
	d.render(w, r, v, status, "found", page{Title: "Search", Active: "batches", Data: view})
	return nil
}
