package mail

import (
	"cmp"
	"context"
	"html/template"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/mail"
)

// batchView is the page of one batch.
type batchView struct {
	*Row
	Shares  []providerShare
	Reasons []reasonCount
	Flow    flowView
	Tabs    []web.Tab
	Filter  filterView // of the logs that are listed
	Pager   pager
	Logs    []logRow
	Actions []web.Action
	Kept    string // what keeps it from being sent, or ""
	Given   *given // the command that keeps it from being sent, or nil
	Did     string // confirmation of the command that was just given
	Of      string // name of the batch's user, if that is not the visitor
	First   string // subject as the first recipient gets it, or ""
}

// Heading is the subject as the first recipient gets it, or the title.
func (v *batchView) Heading() string { return cmp.Or(v.First, v.Title()) }

// Export is the URL of the listed recipients as a file.
func (v *batchView) Export() string {
	q := url.Values{}
	for name, value := range v.Filter.Query {
		q.Set(name, value)
	}
	return web.Address("/batches/"+v.ID.String()+"/export.csv", q)
}

// Files lists the attachments.
func (v *batchView) Files() []fileLink { return fileLinks(v.ID, v.Attached) }

// providerShare has the counts of a batch at one provider.
type providerShare struct {
	client.ProviderCounts
	Name, Title string
	Hue         int
}

type reasonCount struct {
	Reason models.Reason
	Count  int64
}

// logRow is a log in a list.
type logRow struct {
	mail.LogView
	Via []via
}

// via is a provider that was tried for a log.
type via struct {
	Provider  string
	Delivered bool
}

// batch is GET /batches/{id}.
func (p *Pages) batch(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	q, cursor := listQuery(r.URL.Query()), r.URL.Query().Get("cursor")
	view, err := p.readBatch(r.Context(), v.Caller(), r.PathValue("id"), q, cursor)
	if err != nil {
		return err
	}
	if view.User != "" {
		view.Of = p.web.NameOf(r.Context(), view.User)
	}
	kept := view.Kept
	if r.URL.Query().Get("waits") != "" {
		kept = cmp.Or(kept, "another command holds it, or its providers are offline")
	}
	query := r.URL.Query()
	view.Did = didWords(query.Get("did"), query.Get("flying"), query.Get("reached"), kept)
	if view.Did != "" && r.URL.Query().Get("late") != "" {
		view.Did += " Part of the store could not be reached. If nothing changes within a minute, try again."
	}
	if view.Recipients == 1 {
		return p.showLog(w, r, v, view.ID.Log(1).String(), view)
	}
	if strings.Contains(view.Subject, "{{") {
		first, err := p.mail.Mail(r.Context(), v.Caller(), view.ID.Log(1).String())
		if err != nil {
			return err
		}
		view.First = first.Subject
	}
	page := web.Page{Title: view.Heading(), Charts: true, Done: view.Did, Data: view}
	if cursor == "" {
		page.Live = web.Address("/live/batches/"+view.ID.String(), q)
	}
	return p.web.Render(w, r, v, http.StatusOK, "batch", page)
}

// uncounted is a number in a URL that is not known.
const uncounted = "unknown"

// didWords confirms a command. flying is the number of messages in flight, reached the number that the command reaches.
// kept is what still delays the messages, if anything.
func didWords(did, flying, reached, kept string) string {
	n, err := strconv.ParseInt(reached, 10, 32)
	if err == nil && n == 0 && (did == "try" || did == "retry" || did == "release") {
		return "Nothing changed: there is no message to send again."
	}
	if err == nil && n == 0 && did == "reschedule" {
		return "Nothing changed."
	}
	done := map[string]string{
		"resume":  "Resumed.",
		"try":     "Messages that wait are tried now.",
		"retry":   "Failed messages that can be retried are queued again.",
		"release": "Held messages are queued again.",
		"stop":    "Stopped: no new provider call starts.",
		"cancel":  "Cancelled: nothing more is sent.",

		"reschedule": "The time is changed.",
	}[did]
	switch {
	case n < 1:
	case did == "try":
		done = web.Messages(n) + web.Plural(n, " is", " are") + " tried now."
	case did == "retry":
		done = web.Num(n) + web.Plural(n, " failed message is", " failed messages are") + " queued again."
	case did == "release":
		done = web.Num(n) + web.Plural(n, " held message is", " held messages are") + " queued again."
	case did == "stop":
		done += " " + web.Messages(n) + web.Plural(n, " waits.", " wait.")
	case did == "cancel":
		done += " " + web.Messages(n) + web.Plural(n, " is cancelled.", " are cancelled.")
	}
	if did != "stop" && did != "cancel" {
		if done != "" && kept != "" {
			done += " Nothing is sent yet: " + kept + "."
		}
		return done
	}
	if n, err := strconv.Atoi(flying); err == nil && n > 0 {
		done += " Calls with " + web.Messages(int64(n)) + " had already started."
	} else if flying == uncounted {
		done += " The calls that had already started could not be counted."
	}
	return done
}

// readBatch reads everything that the page of a batch shows.
func (p *Pages) readBatch(
	ctx context.Context, who service.Caller, id string, q url.Values, cursor string,
) (*batchView, error) {
	b, err := p.mail.Batch(ctx, who, id)
	if err != nil {
		return nil, err
	}
	v := p.batchOf(ctx, who, &b, q)
	if err := p.addLogs(ctx, who, v, q, cursor); err != nil {
		return nil, err
	}
	return v, p.addFlow(ctx, who, v)
}

// batchOf returns the view of a batch without its logs and its flow.
func (p *Pages) batchOf(ctx context.Context, who service.Caller, b *mail.BatchView, q url.Values) *batchView {
	row := RowOf(p.web.Providers, b)
	row.Bar.Link("/batches/" + b.ID.String())
	return &batchView{
		Row:     row,
		Shares:  sharesOf(p.web.Providers, &b.Counts),
		Reasons: reasonsOf(&b.Counts),
		Tabs:    logTabs(b, q),
		Filter:  filterOf(p.web.Providers, q),
		Actions: actionsOf(b, who),
		Kept:    p.waitingFor(ctx, who, b),
		Given:   p.givenOf(ctx, b),
	}
}

// given is who gave a command, when and why.
type given struct {
	By  string // name
	At  time.Time
	Why string
}

// givenOf returns the command that withholds or has cancelled a batch, or nil.
func (p *Pages) givenOf(ctx context.Context, b *mail.BatchView) *given {
	switch {
	case b.Cancelled:
		return &given{p.web.NameOf(ctx, b.CancelledBy), b.CancelledAt, b.CancelledWhy}
	case b.Stopped:
		return &given{p.web.NameOf(ctx, b.StoppedBy), b.StoppedAt, b.StoppedWhy}
	case b.Waits != nil && !b.Waits.Since.IsZero():
		return &given{p.web.NameOf(ctx, b.Waits.By), b.Waits.Since, b.Waits.Why}
	}
	return nil
}

// Few reports whether the page begins with the recipients.
func (v *batchView) Few() bool { return v.Recipients <= fewRecipients }

const fewRecipients = 10

// Note is what the batch waits for besides the command that Word is about.
func (v *batchView) Note() string {
	switch {
	case v.Word() == "stopped":
		return strings.TrimPrefix(strings.TrimPrefix(v.Kept, "stopped by "+v.Given.By), "; ")
	case v.Kept == "" && v.Waits != nil:
		return v.Waits.Text
	}
	return v.Kept
}

// waitingFor returns the commands that keep a batch from being sent, or "".
func (p *Pages) waitingFor(ctx context.Context, who service.Caller, b *mail.BatchView) string {
	switch {
	case b.StoppedBy != "":
	case b.Waits != nil && b.Waits.ByCommand():
		return b.Waits.Text
	default:
		return ""
	}
	kept := "stopped by " + p.web.NameOf(ctx, b.StoppedBy)
	if !mail.MayResume(who, b) {
		kept += "; only an operator can resume it"
	}
	if b.Waits != nil && b.Waits.Code != models.WaitBatchStopped { // another command, too
		kept += "; " + b.Waits.Text
	}
	return kept
}

// liveLogs is how often the logs of an unfinished batch are read, and what it waits for. Its
// counts and its flow are read every second.
const liveLogs = 2 * time.Second

// batchEvents is GET /live/batches/{id}. The feed reads logs and flow only after the counts
// have changed, and the flow while it changes by itself.
func (p *Pages) batchEvents(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	id, q, who := r.PathValue("id"), listQuery(r.URL.Query()), v.Caller()
	if _, err := p.mail.ListedBatch(r.Context(), who, id); err != nil {
		return err
	}
	key := web.EventsKey("batch ", who.User, " ", who.Operator, " ", id, " ", q.Encode())
	return p.web.Stream(w, r, v, key, func() web.Source {
		var last *batchView
		var read, asked time.Time
		stale := true // the logs are older than the counts
		return web.Source{
			Read: func(ctx context.Context) (any, error) {
				b, err := p.mail.ListedBatch(ctx, who, id)
				switch {
				case err != nil || b.Waits != nil || b.Counts.Open() == 0:
				case last == nil || time.Since(asked) >= liveLogs || last.Stopped:
					b, err = p.mail.Batch(ctx, who, id)
					asked = time.Now()
				default:
					b.Waits = last.Waits
				}
				if err != nil {
					return nil, err
				}
				if stale = stale || !reflect.DeepEqual(b, last.BatchView); !stale && !last.Flow.Active {
					return last, nil
				}
				now := p.batchOf(ctx, who, &b, q)
				if stale && time.Since(read) >= liveLogs {
					read, stale = time.Now(), false
					if err := p.addLogs(ctx, who, now, q, ""); err != nil {
						return nil, err
					}
				} else {
					now.Logs, now.Pager = last.Logs, last.Pager
				}
				if err := p.addFlow(ctx, who, now); err != nil {
					return nil, err
				}
				last = now
				return now, nil
			},
			Render: func(now any) (web.Parts, error) {
				return p.web.Parts("batch", now, "actions", "progress", "counts", "flow", "outages", "shares", "logs")
			},
		}
	})
}

func sharesOf(known *web.Providers, c *client.Counts) []providerShare {
	var out []providerShare
	for _, name := range slices.Sorted(maps.Keys(c.Providers)) {
		out = append(out, providerShare{c.Providers[name], name, known.Info(name).Title, known.Hue(name)})
	}
	return out
}

func reasonsOf(c *client.Counts) []reasonCount {
	var out []reasonCount
	for r, n := range c.FailedReasons {
		out = append(out, reasonCount{models.Reason(r), n})
	}
	slices.SortFunc(out, func(a, b reasonCount) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Reason, b.Reason))
	})
	return out
}

// stateTabs are the states of recipients by which lists are filtered.
var stateTabs = []struct {
	state models.State
	text  string
}{
	{"", "All"},
	{models.Success, "Delivered"},
	{models.Failed, "Failed"},
	{models.Queued, "Queued"},
	{models.Sent, "Sent"},
	{models.Cancelled, "Cancelled"},
}

func logTabs(b *mail.BatchView, q url.Values) []web.Tab {
	path := "/batches/" + b.ID.String() + "#logs"
	var out []web.Tab
	for _, t := range stateTabs {
		here, count := url.Values{}, b.Counts.Accepted
		if t.state != "" {
			here.Set("state", string(t.state))
			count = b.Counts.Of(client.State(t.state))
		}
		if size := q.Get("size"); size != "" {
			here.Set("size", size)
		}
		out = append(out, web.Tab{
			To: web.Address(path, here), Text: t.text, Here: string(t.state) == q.Get("state"), Count: count,
			Counted: true,
		})
	}
	return out
}

func (p *Pages) addLogs(ctx context.Context, who service.Caller, v *batchView, q url.Values, cursor string) error {
	id := v.ID.String()
	logs, err := p.mail.Logs(ctx, who, id, v.Filter.LogFilter, service.Page{Limit: sizeOf(q), Cursor: cursor})
	if err != nil {
		return err
	}
	v.Pager = pagerOf("/batches/"+id+"#logs", q, cursor, &logs.PageInfo, len(logs.Logs))
	for i := range logs.Logs {
		p.nameCommand(ctx, &logs.Logs[i])
		v.Logs = append(v.Logs, logRow{LogView: logs.Logs[i], Via: viaOf(&logs.Logs[i])})
	}
	return nil
}

// viaOf lists the providers that were tried, in that order. Of several tries at one, the last one has delivered it.
func viaOf(l *mail.LogView) []via {
	var out []via
	for i, name := range l.Route {
		out = append(out, via{name, l.Providers[name] && !slices.Contains(l.Route[i+1:], name)})
	}
	return out
}

// Via lists the providers that were tried.
func (v *logView) Via() []via { return viaOf(&v.LogView) }

// mailPage shows the text of a message.
var mailPage = template.Must(template.New("text").Parse(`<!doctype html><meta charset="utf-8"><title>Text</title>` +
	`<style>body{margin:1rem;font:15px/1.5 system-ui,sans-serif;white-space:pre-wrap;overflow-wrap:anywhere;` +
	`color:#1b1c1a;background:#fff}</style>{{.}}`))

// showMail writes the content of a message as a page that cannot load or run
// anything.
func showMail(w http.ResponseWriter, c *models.Content, text bool) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", web.PreviewPolicy)
	h.Set("X-Frame-Options", "SAMEORIGIN")
	h.Set("Cache-Control", "no-store")
	if !text && c.HTML != "" {
		_, _ = w.Write([]byte(c.HTML))
		return
	}
	_ = mailPage.Execute(w, c.Text) // the browser may be gone
}

// fileLink is an attachment in a list.
type fileLink struct {
	models.Attachment
	URL string
}

func fileLinks(batch models.ID, list []models.Attachment) (out []fileLink) {
	for i, a := range list {
		out = append(out, fileLink{a, "/batches/" + batch.String() + "/attachments/" + strconv.Itoa(i)})
	}
	return out
}

// attachment is GET /batches/{id}/attachments/{number}: a file to be saved. A browser shows and runs
// nothing of it.
func (p *Pages) attachment(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	number, err := strconv.Atoi(r.PathValue("number"))
	if err != nil {
		number = -1
	}
	a, in, err := p.mail.OpenAttachment(r.Context(), v.Caller(), r.PathValue("id"), number)
	if err != nil {
		return err
	}
	first := make([]byte, min(a.Size, models.PieceSize)) // an error is shown as a page
	if _, err := io.ReadFull(in, first); err != nil {
		return err
	}
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": a.Filename}))
	h.Set("Content-Length", strconv.FormatInt(a.Size, 10))
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'; frame-ancestors 'none'")
	h.Set("Cache-Control", "no-store")
	if _, err := w.Write(first); err == nil { //nolint:gosec // the header keeps browsers from showing it
		_, _ = io.Copy(w, in) // the browser sees by the length that bytes are missing
	}
	return nil
}
