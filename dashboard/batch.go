package dashboard

import (
	"cmp"
	"context"
	"encoding/csv"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// batchView is one batch.
type batchView struct {
	*batchRow
	Shares  []providerShare
	Reasons []reasonCount
	Flow    flowView
	Tabs    []tab
	State   models.State // of the logs that are listed
	Logs    []logRow
	Older   string
	First   bool
	Actions []actionLink
	Kept    string // what keeps it from going on; empty: nothing
	Did     string // what was just ordered
	Of      string // name of the user whose it is, where it is somebody else
}

// providerShare is how a batch fared at one provider.
type providerShare struct {
	service.ProviderCounts
	Name, Title string
	Hue         int
}

type reasonCount struct {
	Reason models.Reason
	Count  int64
}

// flowView is how the batch went out, as a chart and in words.
type flowView struct {
	Chart    chart
	Troubles []troubleView
	Partial  bool // read from some of its chunks
}

type troubleView struct {
	service.Trouble
	Title string
	Took  time.Duration
}

// logRow is a log in a list.
type logRow struct {
	service.LogView
	Via []via
}

// via is a provider that was tried for a log.
type via struct {
	Provider  string
	Delivered bool
}

const logsPage = 50

// batch is GET /batches/{id}.
func (d *Dashboard) batch(w http.ResponseWriter, r *http.Request, v *visitor) error {
	state, cursor := models.State(r.URL.Query().Get("state")), r.URL.Query().Get("cursor")
	view, err := d.readBatch(r.Context(), v.caller(), r.PathValue("id"), state, cursor)
	if err != nil {
		return err
	}
	if view.User != "" {
		view.Of = d.nameOf(r.Context(), view.User)
	}
	kept := view.Kept
	if r.URL.Query().Get("waits") != "" {
		kept = cmp.Or(kept, "another order keeps it, or providers that are offline")
	}
	view.Did = didWords(r.URL.Query().Get("did"), r.URL.Query().Get("flying"), kept)
	if view.Did != "" && r.URL.Query().Get("late") != "" {
		view.Did += " If nothing moves within a minute, order it again: a part of the store could not be reached."
	}
	p := page{Title: cmp.Or(view.Subject, "Batch"), Active: "batches", Charts: true, Data: view}
	if view.First {
		p.Live = "/live/batches/" + view.ID.String() + "?state=" + url.QueryEscape(string(state))
	}
	d.render(w, r, v, http.StatusOK, "batch", p)
	return nil
}

// uncounted stands in an address for a number that could not be found out.
const uncounted = "unknown"

// didWords confirms an order. What lets mail go that something else keeps says so.
func didWords(did, flying, kept string) string {
	let := map[string]string{"resume": "Resumed.", "retry": "What failed and can be sent without risk is let go.", "release": "What was held is let go."}[did]
	if let != "" && kept != "" {
		return let + " Nothing of it goes out yet: " + kept + "."
	}
	words := map[string]string{"stop": "Stopped: no new call to a provider starts.", "resume": "Resumed: what was not handed over goes out now.",
		"cancel": "Cancelled: nothing more of it goes out.", "retry": "What failed and can be sent without risk goes out again.",
		"release": "What was held goes out again."}[did]
	if did != "stop" && did != "cancel" {
		return words
	}
	if n, err := strconv.Atoi(flying); err == nil && n > 0 {
		words += " Calls with " + mails(int64(n)) + " had begun already."
	} else if flying == uncounted {
		words += " How many calls had begun already could not be counted."
	}
	return words
}

// readBatch reads all that the page of a batch shows.
func (d *Dashboard) readBatch(
	ctx context.Context,
	who service.Caller,
	id string,
	state models.State,
	cursor string,
) (*batchView, error) {
	b, err := d.service.Batch(ctx, who, id)
	if err != nil {
		return nil, err
	}
	v := d.batchOf(ctx, who, &b, state)
	if err := d.addLogs(ctx, who, v, cursor); err != nil {
		return nil, err
	}
	return v, d.addFlow(ctx, who, v)
}

// batchOf is a batch without its logs and its flow.
func (d *Dashboard) batchOf(
	ctx context.Context,
	who service.Caller,
	b *service.BatchView,
	state models.State,
) *batchView {
	return &batchView{
		batchRow: d.rowOf(b),
		Shares:   d.sharesOf(&b.Counts),
		Reasons:  reasonsOf(&b.Counts),
		Tabs:     logTabs(b, state),
		State:    state,
		Actions:  actionsOf(b, who),
		Kept:     d.keptBy(ctx, who, b),
	}
}

// keptBy says what keeps a batch from going on, and who ordered it; empty: nothing.
func (d *Dashboard) keptBy(ctx context.Context, who service.Caller, b *service.BatchView) string {
	if b.StoppedBy == "" {
		return b.Waits
	}
	kept := "stopped by " + d.nameOf(ctx, b.StoppedBy)
	if !who.MayResume(b) {
		kept += ", and only an operator can resume it"
	}
	if b.Waits != "stopped by "+b.StoppedBy { // something else, too
		kept += "; " + b.Waits
	}
	return kept
}

// liveLogs is how often the logs and the flow of a batch in motion are read
// anew; its counts are read every second.
const liveLogs = 2 * time.Second

// batchEvents is GET /live/batches/{id}. The feed reads logs and flow only after
// the counts have changed.
func (d *Dashboard) batchEvents(w http.ResponseWriter, r *http.Request, v *visitor) error {
	id, state, who := r.PathValue("id"), models.State(r.URL.Query().Get("state")), v.caller()
	if _, err := d.service.Batch(r.Context(), who, id); err != nil {
		return err
	}
	return d.stream(w, r, v, eventsKey("batch ", who.User, " ", who.Operator, " ", id, " ", state), func() source {
		var last *batchView
		var read time.Time
		stale := true
		return source{
			read: func(ctx context.Context) (any, error) {
				b, err := d.service.Batch(ctx, who, id)
				if err != nil {
					return nil, err
				}
				if last != nil && !stale && reflect.DeepEqual(b, last.BatchView) {
					return last, nil
				}
				now := d.batchOf(ctx, who, &b, state)
				if stale = last != nil && time.Since(read) < liveLogs; stale {
					now.Logs, now.Older, now.First, now.Flow = last.Logs, last.Older, last.First, last.Flow
				} else {
					read = time.Now()
					if err := d.addLogs(ctx, who, now, ""); err != nil {
						return nil, err
					}
					if err := d.addFlow(ctx, who, now); err != nil {
						return nil, err
					}
				}
				last = now
				return now, nil
			},
			render: func(now any) (parts, error) {
				return d.pages.parts("batch", now, "actions", "progress", "counts", "flow", "troubles", "shares", "logs")
			},
		}
	})
}

func (d *Dashboard) sharesOf(c *service.Counts) []providerShare {
	var out []providerShare
	for _, name := range slices.Sorted(maps.Keys(c.Providers)) {
		out = append(
			out,
			providerShare{ProviderCounts: c.Providers[name], Name: name, Title: d.info(name).Title, Hue: d.hue(name)},
		)
	}
	return out
}

func reasonsOf(c *service.Counts) []reasonCount {
	var out []reasonCount
	for r, n := range c.Reasons {
		out = append(out, reasonCount{r, n})
	}
	slices.SortFunc(out, func(a, b reasonCount) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Reason, b.Reason))
	})
	return out
}

func logTabs(b *service.BatchView, state models.State) []tab {
	to := "/batches/" + b.ID.String()
	out := []tab{{To: to + "#logs", Text: "All", Here: state == "", Count: b.Counts.Accepted, Counted: true}}
	for _, t := range []struct {
		state models.State
		text  string
		n     int64
	}{{models.Success, "Delivered", b.Counts.Success}, {models.Failed, "Failed", b.Counts.Failed}, {models.Queued, "Queued", b.Counts.Queued}, {models.Cancelled, "Cancelled", b.Counts.Cancelled}} {
		out = append(
			out,
			tab{To: to + "?state=" + string(t.state) + "#logs", Text: t.text, Here: t.state == state, Count: t.n, Counted: true},
		)
	}
	return out
}

func (d *Dashboard) addLogs(ctx context.Context, who service.Caller, v *batchView, cursor string) error {
	id := v.ID.String()
	logs, err := d.service.Logs(ctx, who, id, v.State, service.Page{Limit: logsPage, Cursor: cursor})
	if err != nil {
		return err
	}
	v.First = cursor == ""
	for i := range logs.Logs {
		v.Logs = append(v.Logs, logRow{LogView: logs.Logs[i], Via: viaOf(&logs.Logs[i])})
	}
	if logs.Next != "" {
		v.Older = "/batches/" + id + "?state=" + url.QueryEscape(
			string(v.State),
		) + "&cursor=" + url.QueryEscape(
			logs.Next,
		) + "#logs"
	}
	return nil
}

// viaOf lists the providers that were tried, the one that delivered last.
func viaOf(l *service.LogView) []via {
	var out []via
	for _, name := range slices.Sorted(maps.Keys(l.Providers)) {
		out = append(out, via{name, l.Providers[name]})
	}
	slices.SortStableFunc(out, func(a, b via) int {
		switch {
		case a.Delivered == b.Delivered:
			return 0
		case a.Delivered:
			return 1
		}
		return -1
	})
	return out
}

func (d *Dashboard) addFlow(ctx context.Context, who service.Caller, v *batchView) error {
	f, err := d.service.Flow(ctx, who, v.ID.String())
	if err != nil {
		return err
	}
	v.Flow.Partial = f.Sampled < f.Chunks
	v.Flow.Chart = chart{Kind: "area", Unit: "mails per second", X: []float64{}}
	steps := 0
	for i := range f.Providers {
		a := &f.Providers[i]
		steps = len(a.Taken)
		v.Flow.Chart.Series = append(
			v.Flow.Chart.Series,
			series{Label: a.Provider, Color: d.colour(a.Provider), Values: rounded(a.Taken)},
		)
	}
	if steps == 0 {
		return nil
	}
	for i := range steps + 1 { // the last step needs an end
		v.Flow.Chart.X = append(v.Flow.Chart.X, seconds(f.From.Add(time.Duration(i)*f.Step)))
	}
	for i := range v.Flow.Chart.Series {
		s := &v.Flow.Chart.Series[i]
		s.Values = append(s.Values, s.Values[steps-1])
	}
	for i := range f.Troubles {
		t := &f.Troubles[i]
		title := d.info(t.Provider).Title
		v.Flow.Troubles = append(v.Flow.Troubles, troubleView{Trouble: *t, Title: title, Took: t.To.Sub(t.From)})
		v.Flow.Chart.Marks = append(
			v.Flow.Chart.Marks,
			mark{
				From:  seconds(t.From),
				To:    max(seconds(t.To), seconds(t.From)+f.Step.Seconds()),
				Label: t.Provider + " took nothing",
			},
		)
	}
	return nil
}

func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

func rounded(values []float64) []float64 {
	out := make([]float64, len(values))
	for i, v := range values {
		out[i] = float64(int64(v + .5))
	}
	return out
}

// previewBatch is GET /batches/{id}/preview: the content for a sandboxed frame.
func (d *Dashboard) previewBatch(w http.ResponseWriter, r *http.Request, v *visitor) error {
	c, err := d.service.Content(r.Context(), v.caller(), r.PathValue("id"))
	if err != nil {
		return err
	}
	showMail(w, &c, r.URL.Query().Get("part") == "text")
	return nil
}

// mailPage shows a mail's text as it is.
var mailPage = template.Must(
	template.New(
		"text",
	).Parse(
		`<!doctype html><meta charset="utf-8"><title>Text</title><style>body{margin:1rem;font:15px/1.5 system-ui,sans-serif;white-space:pre-wrap;overflow-wrap:anywhere;color:#1b1c1a;background:#fff}</style>{{.}}`,
	),
)

// showMail writes a mail's content as a page that can load and run nothing.
func showMail(w http.ResponseWriter, c *models.Content, text bool) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", previewPolicy)
	h.Set("X-Frame-Options", "SAMEORIGIN")
	h.Set("Cache-Control", "no-store")
	if !text && c.HTML != "" {
		_, _ = w.Write([]byte(c.HTML)) //nolint:gosec // meant to be seen as what it is; the policy above takes its teeth
		return
	}
	_ = mailPage.Execute(w, c.Text) // the browser may be gone
}

// exportBatch is GET /batches/{id}/export.csv, streamed page by page.
func (d *Dashboard) exportBatch(w http.ResponseWriter, r *http.Request, v *visitor) error {
	id, state, who := r.PathValue("id"), models.State(r.URL.Query().Get("state")), v.caller()
	logs, err := d.service.Logs(r.Context(), who, id, state, service.Page{Limit: exportPage})
	if err != nil {
		return err
	}
	name := "batch-" + id
	if state != "" {
		name += "-" + string(state)
	}
	h := w.Header()
	h.Set("Content-Type", "text/csv; charset=utf-8")
	h.Set("Content-Disposition", fmt.Sprintf(`attachment; filename=%q`, name+".csv"))
	out := csv.NewWriter(w)
	_ = out.Write(
		[]string{
			"id",
			"email",
			"name",
			"state",
			"reason",
			"reason_text",
			"detail",
			"providers_tried",
			"delivered_by",
			"attempts",
			"copies",
		},
	)
	for {
		for i := range logs.Logs {
			l := &logs.Logs[i]
			delivered := ""
			for _, a := range viaOf(l) {
				if a.Delivered {
					delivered = a.Provider
				}
			}
			row := []string{l.ID.String(), l.Email, l.Name, string(l.State), string(l.Reason), l.ReasonText, l.Detail,
				strings.Join(
					slices.Sorted(maps.Keys(l.Providers)),
					" ",
				), delivered, strconv.Itoa(l.Attempts), strconv.Itoa(l.Copies)}
			for k := range row {
				row[k] = harmlessCell(row[k])
			}
			_ = out.Write(row)
		}
		out.Flush()
		if logs.Next == "" {
			return nil
		}
		if logs, err = d.service.Logs(r.Context(), who, id, state, service.Page{Limit: exportPage, Cursor: logs.Next}); err != nil {
			d.log.Warn("export broken off", "batch_id", id, "err", err)
			panic(http.ErrAbortHandler) // so that half a file is no whole one
		}
	}
}

const exportPage = 500

// harmlessCell keeps spreadsheets from taking a cell for a formula.
func harmlessCell(s string) string {
	if s != "" && strings.ContainsRune("=+-@\t\r", rune(s[0])) {
		return "'" + s
	}
	return s
}
