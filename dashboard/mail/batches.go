// Package mail has the pages of mail: batches, their recipients, lists and searches, and the commands about them.
package mail

import (
	"cmp"
	"context"
	"embed"
	"encoding/csv"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/dashboard/chart"
	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/mail"
	"github.com/safedelivr/safedelivr/service/table"
)

// views are the templates of this room.
var views = web.NewTemplates(files, nil)

//go:embed *.html
var files embed.FS

// Pages are the pages of batches and of their recipients.
type Pages struct {
	web    *web.Frame
	mail   *mail.Reader
	chunks chunks
}

// newPages returns the pages.
func newPages(frame *web.Frame, svc *service.Service) *Pages {
	return &Pages{web: frame, mail: svc.Mail, chunks: chunks{mail: svc.Mail, readers: map[string]*chunkReader{}}}
}

// Routes returns the routes of the pages, and of the commands about mail.
func Routes(frame *web.Frame, svc *service.Service) web.Routes {
	p := newPages(frame, svc)
	c := &commandPages{web: frame, pages: p, service: svc}
	return web.Routes{
		Templates: views,
		Entries: []web.Entry{
			{Group: web.NavSend, To: "/batches", Icon: "layers", Text: "Batches"},
			{Group: web.NavWatch, To: "/logs", Icon: "inbox", Text: "Recipients"},
		},
		Users: map[string]web.Handler{
			"GET /batches":                           p.batches,
			"GET /live/batches":                      p.batchesEvents,
			"GET /batches/{id}":                      p.batch,
			"GET /live/batches/{id}":                 p.batchEvents,
			"GET /batches/{id}/export.csv":           p.exportBatch,
			"GET /batches/{id}/attachments/{number}": p.attachment,
			"GET /search":                            p.search,
			"GET /logs":                              p.logs,
			"GET /logs/{id}":                         p.logPage,
			"GET /logs/{id}/mail":                    p.mailOfLog,
			"GET /logs/{id}/requests/{provider}":     p.requestOfLog,
			"GET /live/logs/{id}":                    p.logEvents,
			"POST /selected/{do}":                    c.sendSelected,
			"GET /batches/{id}/reschedule":           c.askTimes,
			"POST /batches/{id}/reschedule":          c.reschedule,
			"GET /batches/{id}/{do}":                 c.askBatch,
			"GET /logs/{id}/release":                 c.askLog,
		},
		Calls: map[string]web.Call{
			"POST /batches/{id}/{do}": {Verbs: "batches", Then: controlled},
			"POST /logs/{id}/release": {
				Operation: "releaseLog", To: "/logs/{id}?did=sent", Done: "Queued: the message is sent again.",
			},
		},
	}
}

// Row is a batch in a list.
type Row struct {
	mail.BatchView
	Done  int64 // recipients with a final state
	Bar   chart.Bar
	Split []splitPart
	Of    string // name of the owner, in a list of everybody's batches
}

// splitPart is the number of messages of a batch that one provider was tried for.
type splitPart struct {
	Provider string
	Hue      int
	Count    int64
}

// Word is the state of the batch, or the command that overrides it.
func (b *Row) Word() string {
	switch {
	case b.Cancelled:
		return "cancelled"
	case b.Stopped:
		return "stopped"
	}
	return string(b.State)
}

// Title is the subject of the batch, or why there is none.
func (b *Row) Title() string {
	switch {
	case b.State == models.BatchDamaged:
		return "(unreadable)"
	case b.Subject == "":
		return "(content removed)"
	}
	return cmp.Or(b.Rendered, b.Subject)
}

// Movable reports whether the times of the batch may be changed.
func (b *Row) Movable() bool { return movable(&b.BatchView) }

// RowOf returns the row of a batch.
func RowOf(known *web.Providers, b *mail.BatchView) *Row {
	return &Row{
		BatchView: *b, Done: b.Counts.Accepted - b.Counts.Open(), Bar: chart.BarOf(&b.Counts),
		Split: splitOf(known, &b.Counts),
	}
}

// splitOf counts the messages that each provider was tried for.
func splitOf(known *web.Providers, c *client.Counts) []splitPart {
	var out []splitPart
	for name, n := range c.Providers {
		out = append(out, splitPart{Provider: name, Hue: known.Hue(name), Count: n.Tried})
	}
	slices.SortFunc(out, func(a, b splitPart) int { return strings.Compare(a.Provider, b.Provider) })
	return out
}

// batchesView is the list of batches.
type batchesView struct {
	filterView
	pager
	Batches []*Row
	Tabs    []web.Tab
	Of      string // name of the user who sent them, if that is not the visitor
}

// batches is GET /batches.
func (p *Pages) batches(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	q := listQuery(r.URL.Query())
	view, err := p.readBatches(r.Context(), v.Caller(), q, r.URL.Query().Get("cursor"))
	if err != nil {
		return err
	}
	page := web.Page{Title: "Batches", Data: view}
	if view.Cursor == "" {
		page.Live = "/live/batches?" + q.Encode()
	}
	return p.web.Render(w, r, v, http.StatusOK, "batches", page)
}

// batchesEvents is GET /live/batches: the first page of the list.
func (p *Pages) batchesEvents(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	q, who := listQuery(r.URL.Query()), v.Caller()
	if _, err := p.readBatches(r.Context(), who, q, ""); err != nil {
		return err
	}
	key := web.EventsKey("batches ", who.User, " ", who.Whose(), " ", q.Encode())
	return p.web.Stream(w, r, v, key, func() web.Source {
		return web.Source{
			Read:   func(ctx context.Context) (any, error) { return p.readBatches(ctx, who, q, "") },
			Render: func(now any) (web.Parts, error) { return p.web.Parts("batches", now, "list") },
		}
	})
}

func (p *Pages) readBatches(
	ctx context.Context, who service.Caller, q url.Values, cursor string,
) (*batchesView, error) {
	v := &batchesView{filterView: filterOf(p.web.Providers, q), Tabs: batchTabs(q)}
	f := mail.BatchFilter{
		State: q.Get("state"), Subject: q.Get("subject"), Sender: q.Get("sender"), User: q.Get("user"),
		Logs: v.LogFilter,
	}
	f.Logs.State, f.Logs.Email, f.Logs.Part = models.State(q.Get("recipient_state")), "", ""
	list, err := p.mail.FindBatches(ctx, who, f, service.Page{Limit: sizeOf(q), Cursor: cursor})
	if err != nil {
		return nil, err
	}
	v.pager = pagerOf("/batches", q, cursor, &list.PageInfo, len(list.Batches))
	if f.User != "" && f.User != who.User {
		v.Of = p.web.NameOf(ctx, f.User)
	}
	for i := range list.Batches {
		row := RowOf(p.web.Providers, &list.Batches[i])
		row.Bar.Link("/batches/" + row.ID.String())
		if row.User != "" && v.Of == "" {
			row.Of = p.web.NameOf(ctx, row.User)
		}
		v.Batches = append(v.Batches, row)
	}
	return v, nil
}

func batchTabs(q url.Values) []web.Tab {
	var out []web.Tab
	for _, t := range [][2]string{
		{"", "All"},
		{string(models.BatchScheduled), "Scheduled"},
		{string(models.BatchSending), "Sending"},
		{string(models.BatchQueued), "Queued"},
		{string(models.BatchSent), "Sent"},
		{string(models.BatchDone), "Done"},
		{mail.BatchStopped, "Stopped"},
		{mail.BatchCancelled, "Cancelled"},
	} {
		out = append(out, web.Tab{To: with("/batches", q, "state", t[0]), Text: t[1], Here: t[0] == q.Get("state")})
	}
	return out
}

// exportBatch is GET /batches/{id}/export.csv, streamed page by page.
func (p *Pages) exportBatch(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	id, who, f := r.PathValue("id"), v.Caller(), filterOf(p.web.Providers, listQuery(r.URL.Query())).LogFilter
	b, err := p.mail.ListedBatch(r.Context(), who, id)
	if err != nil {
		return err
	}
	logs, err := p.mail.Logs(r.Context(), who, id, f, service.Page{Limit: exportPage})
	if err != nil {
		return err
	}
	name := "batch-" + id
	if f.State != "" {
		name += "-" + string(f.State)
	}
	h := w.Header()
	h.Set("Content-Type", "text/csv; charset=utf-8")
	h.Set("Content-Disposition", fmt.Sprintf(`attachment; filename=%q`, name+".csv"))
	out, columns := csv.NewWriter(w), metadataColumns(&b, logs.Logs)
	write := func(row []string) {
		_ = out.Write(table.HarmlessRow(row)) // Flush keeps the error, and the browser may be gone
	}
	head := slices.Clone(exportColumns)
	for _, key := range columns {
		head = append(head, "metadata."+key)
	}
	write(append(head, "other_metadata"))
	for {
		for i := range logs.Logs {
			write(exportRow(&b, &logs.Logs[i], columns))
		}
		out.Flush()
		if logs.Next == "" {
			return nil
		}
		logs, err = p.mail.Logs(r.Context(), who, id, f, service.Page{Limit: exportPage, Cursor: logs.Next})
		if err != nil {
			p.web.Log.Warn("export aborted", "batch_id", id, "err", err)
			panic(http.ErrAbortHandler) // the browser must not take half a file for all of it
		}
	}
}

const exportPage = 500

// exportColumns are the columns of an export before those of the metadata.
var exportColumns = []string{
	"id", "email", "role", "name", "state", "reason", "reason_text", "detail", "providers_tried", "delivered_by",
	"attempts", "copies", "deliver_at", "tags", "category",
}

// maxColumns is the number of keys of metadata that have a column of their own.
const maxColumns = 100

// metadataColumns returns the keys of metadata that have a column: those of the batch, and
// those of the first recipients.
func metadataColumns(b *mail.BatchView, logs []mail.LogView) []string {
	keys := map[string]string{}
	maps.Copy(keys, b.Metadata)
	for i := range logs {
		maps.Copy(keys, logs[i].Metadata)
	}
	out := slices.Sorted(maps.Keys(keys))
	return out[:min(len(out), maxColumns)]
}

// exportRow returns the row of a recipient. Its metadata replaces that of the batch. What has
// no column is JSON in the last one.
func exportRow(b *mail.BatchView, l *mail.LogView, columns []string) []string {
	delivered := ""
	for _, a := range viaOf(l) {
		if a.Delivered {
			delivered = a.Provider
		}
	}
	at := ""
	if !l.DeliverAt.IsZero() {
		at = l.DeliverAt.Format(time.RFC3339)
	}
	row := []string{
		l.ID.String(), l.Email, string(l.Role), l.Name, string(l.State), string(l.Reason), l.ReasonText, l.Detail,
		strings.Join(l.Route, " "), delivered, strconv.Itoa(l.Attempts), strconv.Itoa(l.Copies),
		at, strings.Join(b.Tags, ", "), b.Category,
	}
	metadata := map[string]string{}
	maps.Copy(metadata, b.Metadata)
	maps.Copy(metadata, l.Metadata)
	for _, key := range columns {
		row = append(row, metadata[key])
		delete(metadata, key)
	}
	if len(metadata) == 0 {
		return append(row, "")
	}
	text, _ := web.ToJSON(metadata) // a map of strings always encodes
	return append(row, text)
}
