package dashboard

import (
	"cmp"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/commands"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/mail"
	"github.com/safedelivr/safedelivr/service/table"
)

// batchRow is a batch in a list.
type batchRow struct {
	mail.BatchView
	Done  int64 // recipients with a final state
	Bar   bar
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
	return cmp.Or(b.Rendered, b.Subject)
}

// Movable reports whether the times of the batch may be changed.
func (b *batchRow) Movable() bool { return movable(&b.BatchView) }

func (d *Dashboard) rowOf(b *mail.BatchView) *batchRow {
	return &batchRow{
		BatchView: *b,
		Done:      b.Counts.Accepted - b.Counts.Open(),
		Bar:       barOf(&b.Counts),
		Split:     d.splitOf(&b.Counts),
	}
}

// splitOf counts the messages that each provider was tried for.
func (d *Dashboard) splitOf(c *client.Counts) []splitPart {
	var out []splitPart
	for name, n := range c.Providers {
		out = append(out, splitPart{Provider: name, Hue: d.hue(name), Count: n.Tried})
	}
	slices.SortFunc(out, func(a, b splitPart) int { return strings.Compare(a.Provider, b.Provider) })
	return out
}

// batchesView is the list of batches.
type batchesView struct {
	filterView
	pager
	Batches []*batchRow
	Tabs    []tab
	Of      string // name of the user who sent them, if that is not the visitor
}

// tab is a filter that can be chosen.
type tab struct {
	To, Text string
	Here     bool
	Count    int64
	Counted  bool
}

// batches is GET /batches.
func (d *Dashboard) batches(w http.ResponseWriter, r *http.Request, v *visitor) error {
	q := listQuery(r.URL.Query())
	view, err := d.readBatches(r.Context(), v.caller(), q, r.URL.Query().Get("cursor"))
	if err != nil {
		return err
	}
	p := page{Title: "Batches", Active: "batches", Data: view}
	if view.Cursor == "" {
		p.Live = "/live/batches?" + q.Encode()
	}
	d.render(w, r, v, http.StatusOK, "batches", p)
	return nil
}

// batchesEvents is GET /live/batches: the first page of the list.
func (d *Dashboard) batchesEvents(w http.ResponseWriter, r *http.Request, v *visitor) error {
	q, who := listQuery(r.URL.Query()), v.caller()
	if _, err := d.readBatches(r.Context(), who, q, ""); err != nil {
		return err
	}
	return d.stream(w, r, v, eventsKey("batches ", who.User, " ", who.Whose(), " ", q.Encode()), func() source {
		return source{
			read:   func(ctx context.Context) (any, error) { return d.readBatches(ctx, who, q, "") },
			render: func(now any) (parts, error) { return d.pages.parts("batches", now, "list") },
		}
	})
}

func (d *Dashboard) readBatches(
	ctx context.Context,
	who service.Caller,
	q url.Values,
	cursor string,
) (*batchesView, error) {
	v := &batchesView{filterView: d.filterOf(q), Tabs: batchTabs(q)}
	f := mail.BatchFilter{
		State:   q.Get("state"),
		Subject: q.Get("subject"),
		Sender:  q.Get("sender"),
		User:    q.Get("user"),
		Logs:    v.LogFilter,
	}
	f.Logs.State, f.Logs.Email, f.Logs.Part = models.State(q.Get("recipient_state")), "", ""
	list, err := d.service.Mail.FindBatches(ctx, who, f, service.Page{Limit: sizeOf(q), Cursor: cursor})
	if err != nil {
		return nil, err
	}
	v.pager = pagerOf("/batches", q, cursor, &list.PageInfo, len(list.Batches))
	if f.User != "" && f.User != who.User {
		v.Of = d.nameOf(ctx, f.User)
	}
	for i := range list.Batches {
		row := d.rowOf(&list.Batches[i])
		row.Bar.link("/batches/" + row.ID.String())
		if row.User != "" && v.Of == "" {
			row.Of = d.nameOf(ctx, row.User)
		}
		v.Batches = append(v.Batches, row)
	}
	return v, nil
}

func batchTabs(q url.Values) []tab {
	var out []tab
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
		out = append(out, tab{To: with("/batches", q, "state", t[0]), Text: t[1], Here: t[0] == q.Get("state")})
	}
	return out
}

// exportBatch is GET /batches/{id}/export.csv, streamed page by page.
func (d *Dashboard) exportBatch(w http.ResponseWriter, r *http.Request, v *visitor) error {
	id, who, f := r.PathValue("id"), v.caller(), d.filterOf(listQuery(r.URL.Query())).LogFilter
	b, err := d.service.Mail.ListedBatch(r.Context(), who, id)
	if err != nil {
		return err
	}
	logs, err := d.service.Mail.Logs(r.Context(), who, id, f, service.Page{Limit: exportPage})
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
		logs, err = d.service.Mail.Logs(r.Context(), who, id, f, service.Page{Limit: exportPage, Cursor: logs.Next})
		if err != nil {
			d.log.Warn("export aborted", "batch_id", id, "err", err)
			panic(http.ErrAbortHandler) // the browser must not take half a file for all of it
		}
	}
}

const exportPage = 500

// exportColumns are the columns of an export before those of the metadata.
var exportColumns = []string{
	"id", "email", "role", "name", "state", "reason", "reason_text", "detail", "providers_tried", "delivered_by", "attempts",
	"copies", "deliver_at", "tags", "category",
}

// maxColumns is the number of keys of metadata that have a column of their own.
const maxColumns = 100

// metadataColumns returns the keys of metadata that have a column: those of the batch, and
// those of the first recipients.
func metadataColumns(b *mail.BatchView, logs []mail.LogView) []string {
	keys := maps.Clone(b.Metadata)
	if keys == nil {
		keys = map[string]string{}
	}
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
		at, strings.Join(b.Tags, " "), b.Category,
	}
	metadata := maps.Clone(b.Metadata)
	if metadata == nil {
		metadata = map[string]string{}
	}
	maps.Copy(metadata, l.Metadata)
	for _, key := range columns {
		row = append(row, metadata[key])
		delete(metadata, key)
	}
	if len(metadata) == 0 {
		return append(row, "")
	}
	text, _ := toJSON(metadata) // a map of strings always encodes
	return append(row, text)
}

// timesForm has the fields in which the times of a batch are changed, as they were typed.
type timesForm struct {
	DeliverAt, TimeZone string
	Now, AnyTime        bool
	Window              *models.SendWindow // that the batch has
	Wrong               map[string]string  // mistakes by field
}

// times returns the times that the form names.
func (f *timesForm) times() intake.Times {
	t := intake.Times{DeliverAt: f.DeliverAt, TimeZone: f.TimeZone}
	if f.Now {
		t.DeliverAt = time.Now().Format(time.RFC3339)
	}
	if f.AnyTime {
		t.Window = &intake.Window{None: true}
	}
	return t
}

// askTimes is GET /batches/{id}/reschedule.
func (d *Dashboard) askTimes(w http.ResponseWriter, r *http.Request, v *visitor) error {
	return d.showTimes(w, r, v, nil)
}

// showTimes shows the form in which the times of a batch are changed; typed is nil at first.
func (d *Dashboard) showTimes(w http.ResponseWriter, r *http.Request, v *visitor, typed *timesForm) error {
	b, err := d.service.Mail.Batch(r.Context(), v.caller(), r.PathValue("id"))
	if err != nil {
		return err
	}
	if typed == nil {
		defaults, err := d.service.People.Defaults(r.Context(), v.caller(), v.User)
		zone, unknown := time.LoadLocation(defaults.Zone) // UTC if there is none
		if err != nil || unknown != nil {
			return cmp.Or(err, unknown)
		}
		typed = &timesForm{DeliverAt: b.DeliverAt.In(zone).Format("2006-01-02T15:04:05"), TimeZone: zone.String()}
	}
	typed.Window = b.Window
	who := messages(b.Counts.Queued) + " " + plural(b.Counts.Queued, "is", "are")
	if own := b.OwnTimes; own != nil {
		who = "All but " + messages(int64(own.Recipients)) + " to recipients with times of their own, which stay, are"
	}
	return d.ask(w, r, v, "batches", &askView{
		Title: "Change the time of this batch?",
		Do:    "Change time",
		Back:  "/batches/" + b.ID.String(),
		Times: typed,
		Text: []string{
			who + " to be sent at " +
				b.DeliverAt.UTC().Format(time.RFC3339) + ". Nothing is sent before the new time.",
			"The expiry moves by the same amount.",
		},
	})
}

// reschedule is POST /batches/{id}/reschedule.
func (d *Dashboard) reschedule(w http.ResponseWriter, r *http.Request, v *visitor) error {
	why, repeat := answered(w, r)
	form := &timesForm{
		DeliverAt: strings.TrimSpace(r.PostFormValue("deliver_at")),
		TimeZone:  strings.TrimSpace(r.PostFormValue("time_zone")),
		Now:       r.PostFormValue("now") != "",
		AnyTime:   r.PostFormValue("any_time") != "",
	}
	id := r.PathValue("id")
	repeat.Hash = hashOf(why + fmt.Sprint(form.DeliverAt, " ", form.TimeZone, form.Now, form.AnyTime))
	if repeat.Key != "" {
		repeat.Key = r.PostFormValue("once") + repeat.Hash
	}
	change := commands.Reschedule{Batch: id, Times: form.times(), Why: why}
	done, _, err := d.service.Commands.Reschedule(r.Context(), v.caller(), change, repeat)
	var refused *service.Error
	if errors.As(err, &refused) && len(refused.Fields) > 0 {
		form.Wrong = wrongFields(refused)
		return d.showTimes(w, r, v, form)
	}
	if err != nil {
		return err
	}
	seeOther(w, r, "/batches/"+id+"?did=reschedule&reached="+counted(done.Recipients))
	return nil
}

// defaultsForm has the fields of the defaults of a user's batches, as they were typed.
type defaultsForm struct {
	TimeZone, From, To, Weekdays string
	Strict                       bool
	Wrong                        map[string]string // mistakes by field
}

// defaultsNow returns the form with the defaults that are in effect.
func (d *Dashboard) defaultsNow(ctx context.Context, who service.Caller) (f defaultsForm, err error) {
	v, err := d.service.People.Defaults(ctx, who, who.User)
	f.TimeZone = v.Zone
	if w := intake.WindowOf(v.Window); w != nil {
		f.From, f.To, f.Weekdays, f.Strict = w.From, w.To, strings.Join(w.Weekdays, ", "), w.Strict
		f.TimeZone = cmp.Or(f.TimeZone, w.Zone)
	}
	return f, err
}

// setDefaults is POST /settings/times.
func (d *Dashboard) setDefaults(w http.ResponseWriter, r *http.Request, v *visitor) error {
	why, _ := answered(w, r)
	f := defaultsForm{
		TimeZone: strings.TrimSpace(r.PostFormValue("time_zone")),
		From:     strings.TrimSpace(r.PostFormValue("from")),
		To:       strings.TrimSpace(r.PostFormValue("until")),
		Weekdays: strings.TrimSpace(r.PostFormValue("weekdays")),
		Strict:   r.PostFormValue("strict") != "",
	}
	times := intake.Times{TimeZone: f.TimeZone}
	if f.From != "" || f.To != "" {
		days := strings.FieldsFunc(strings.ToLower(f.Weekdays), func(c rune) bool { return c == ',' || c == ' ' })
		times.Window = &intake.Window{From: f.From, To: f.To, Weekdays: days, Strict: f.Strict}
	}
	_, err := d.service.People.SetDefaults(r.Context(), v.caller(), v.User, times, why)
	var refused *service.Error
	if errors.As(err, &refused) && len(refused.Fields) > 0 {
		f.Wrong = wrongFields(refused)
		return d.showSettings(w, r, v, http.StatusUnprocessableEntity, &settingsView{Page: "times", Times: f})
	}
	if err != nil {
		return err
	}
	seeOther(w, r, settingsPath("times"))
	return nil
}
