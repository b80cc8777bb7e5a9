package mail

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/mail"
)

// logView is the page of one recipient.
type logView struct {
	mail.LogStory
	Story []moment
	Took  string // from acceptance to the last event

	CanRelease bool   // it can be sent again
	Of         string // name of the owner, if that is not the visitor
	Mail       mail.Mail
	Batch      *batchView // if it is the only recipient: its batch without its logs
}

// Files lists the attachments.
func (v *logView) Files() []fileLink { return fileLinks(v.BatchID, v.Mail.Attachments) }

// SaysWaiting reports whether the text of what the mail waits for says that it waits.
func (v *logView) SaysWaiting() bool { return strings.HasPrefix(v.ReasonText, "waiting ") }

// Tries has the command that tries waiting mail now, if there is one.
func (v *logView) Tries() []web.Action {
	if !triable(v.Waits) {
		return nil
	}
	return []web.Action{{Do: "/batches/" + v.BatchID.String() + "/try", Text: "Try now"}}
}

// moment is an entry of the timeline, in words.
type moment struct {
	At    time.Time
	After string // the time since acceptance; empty: none
	Rough bool   // At is known to the second only
	Icon  string
	Tone  string // good, bad, turn, warn or nothing
	Title string
	Text  string
	Quote string // text from the provider or the receiving server
}

// logPage is GET /logs/{id}.
func (p *Pages) logPage(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	id := r.PathValue("id")
	b, err := p.mail.ListedBatch(r.Context(), v.Caller(), batchOfLog(id))
	if err == nil && b.Recipients == 1 {
		to := url.URL{Path: "/batches/" + b.ID.String(), RawQuery: r.URL.RawQuery}
		return web.SeeOther(w, r, to.String()) // which shows its only recipient
	}
	return p.showLog(w, r, v, id, nil)
}

// batchOfLog returns the ID of the batch of a log. Anything else stays as it is.
func batchOfLog(id string) string {
	if log, err := models.ParseLogID(id); err == nil {
		return log.Batch().String()
	}
	return id
}

// showLog shows the page of a log. b is its batch if it is the only recipient, else nil.
func (p *Pages) showLog(w http.ResponseWriter, r *http.Request, v *web.Visitor, id string, b *batchView) error {
	view, err := p.readLog(r.Context(), v.Caller(), id)
	if err != nil {
		return err
	}
	if view.Batch = b; view.User != "" {
		view.Of = p.web.NameOf(r.Context(), view.User)
	}
	if view.Mail, err = p.mail.Mail(r.Context(), v.Caller(), id); err != nil {
		return err
	}
	title, did := view.Email, ""
	if b != nil {
		title, did = view.Mail.Subject, b.Did
	}
	page := web.Page{Title: cmp.Or(title, "Recipient"), Live: "/live/logs/" + id, Done: did, Data: view}
	return p.web.Render(w, r, v, http.StatusOK, "log", page)
}

// mailOfLog is GET /logs/{id}/mail: the message as its recipient gets it, for a sandboxed frame.
func (p *Pages) mailOfLog(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	m, err := p.mail.Mail(r.Context(), v.Caller(), r.PathValue("id"))
	if err != nil {
		return err
	}
	showMail(w, &models.Content{Text: m.Text, HTML: m.HTML}, r.URL.Query().Get("part") == "text")
	return nil
}

// requestOfLog is GET /logs/{id}/requests/{provider}: the body of the request to a provider, as text.
func (p *Pages) requestOfLog(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	m, err := p.mail.Mail(r.Context(), v.Caller(), r.PathValue("id"))
	if err != nil {
		return err
	}
	for i := range m.Requests {
		if m.Requests[i].Provider == r.PathValue("provider") {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			_, _ = w.Write(m.Requests[i].Body)
			return nil
		}
	}
	return web.ErrNoPage
}

// logEvents is GET /live/logs/{id}.
func (p *Pages) logEvents(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	id, who := r.PathValue("id"), v.Caller()
	log, err := models.ParseLogID(id)
	if err != nil {
		return web.ErrNoPage
	}
	if _, err := p.mail.Log(r.Context(), who, id); err != nil {
		return err
	}
	key := web.EventsKey("log ", who.User, " ", who.Operator, " ", id)
	return p.web.Stream(w, r, v, key, func() web.Source { return p.logSource(who, log) })
}

// logSource reads one log: every second, or every quietLogs once its state is final.
func (p *Pages) logSource(who service.Caller, log models.ID) web.Source {
	var last *logView
	var from *mail.Stories
	var read time.Time
	return web.Source{
		Read: func(ctx context.Context) (any, error) {
			if last != nil && !last.State.Open() && time.Since(read) < quietLogs {
				return last, nil
			}
			now, err := p.chunks.of(who, log).now(ctx)
			if err != nil {
				return nil, err
			}
			if read = time.Now(); now == from {
				return last, nil
			}
			l, err := now.Log(log)
			if err != nil {
				return nil, err
			}
			view := p.storyOf(ctx, &l)
			if b := p.chunks.of(who, log).batch(); b.Recipients == 1 {
				view.Batch = p.batchOf(ctx, who, &b, nil)
			}
			last, from = view, now
			return last, nil
		},
		Render: func(now any) (web.Parts, error) { return p.web.Parts("log", now, "log-actions", "summary", "story") },
	}
}

func (p *Pages) readLog(ctx context.Context, who service.Caller, id string) (*logView, error) {
	l, err := p.mail.Log(ctx, who, id)
	if err != nil {
		return nil, err
	}
	return p.storyOf(ctx, &l), nil
}

// storyOf describes a log in words, with the names of those who gave commands.
func (p *Pages) storyOf(ctx context.Context, l *mail.LogStory) *logView {
	p.nameCommand(ctx, &l.LogView)
	for i := range l.Timeline {
		if m := &l.Timeline[i]; m.By != "" {
			m.By = p.web.NameOf(ctx, m.By)
		}
	}
	return viewOf(p.web.Providers, l)
}

// nameCommand says of a log that a command withholds by name who gave the command, and why.
func (p *Pages) nameCommand(ctx context.Context, l *mail.LogView) {
	w := l.Waits
	if w == nil || w.By == "" || l.Reason != "" {
		return
	}
	l.ReasonText = strings.Replace(l.ReasonText, w.By, p.web.NameOf(ctx, w.By), 1)
	if w.Why != "" {
		l.ReasonText += ": “" + w.Why + "”"
	}
}

// viewOf describes the timeline of a log in words.
func viewOf(known *web.Providers, l *mail.LogStory) *logView {
	v := &logView{LogStory: *l, CanRelease: l.State == models.Failed && !l.Reason.Hard()}
	v.Took = "–"
	last := time.Duration(0)
	for i := range l.Timeline {
		m := momentOf(known, &l.Timeline[i], l.Timeline[:i])
		after := m.At.Sub(l.CreatedAt)
		switch m.Rough = l.Timeline[i].What == "event" && m.At.Nanosecond() == 0; {
		case m.Rough:
			last = roughly(after, last)
			m.After = tookRoughly(last)
			v.Took = m.After
		case after > 0:
			m.After = web.Took(after)
			if after >= last {
				last, v.Took = after, m.After
			}
		}
		v.Story = append(v.Story, m)
	}
	return v
}

// momentOf describes one entry of a timeline in words. before has the entries before it.
func momentOf(known *web.Providers, t *models.Moment, before []models.Moment) moment {
	m := moment{At: t.At, Quote: t.Text}
	provider := known.Named(t.Provider)
	switch t.What {
	case "accepted":
		m.Icon, m.Title, m.Text = "inbox", "Accepted", "Stored durably."
	case "attempt":
		m.Icon, m.Title = "send", "Sent to "+provider
		if t.Because == models.ReleasedManually {
			m.Text = "Sent again, as requested."
			break
		}
		if t.Because != "" {
			m.Icon, m.Tone, m.Title, m.Text = "turn", "turn", "Routed to "+provider, "Reason: "+t.Because+"."
			if newest("attempt", before).Provider == t.Provider {
				m.Icon, m.Tone, m.Title = "send", "", "Sent to "+provider+" again"
			}
		}
		if last := newest("answer", before); t.Because != "" && last.TookMS > 0 {
			m.Text = "Reason: " + t.Because + " (after " + web.Took(web.MS(last.TookMS)) + ")."
		}
	case "repeat":
		m.Icon, m.Title = "turn", "Sent to "+provider+" again, as the same mail"
		if m.Text = "The provider recognises the repeat, so it returns the result of the first call."; t.Because != "" {
			m.Title, m.Text = "Not sent to "+provider+" again", web.Sentence(t.Because)
		}
	case "answer":
		m.answer(t, provider)
	case "event":
		m.event(t, provider)
	case "end":
		m.Icon, m.Tone, m.Title, m.Text = "cross", "bad", "Failed: no further attempts", web.Sentence(t.Because)
	case "cancel":
		m.Icon, m.Title, m.Text = "stop", "Cancelled", "It is not sent to any further provider."
	case "release":
		m.Icon, m.Tone, m.Title = "turn", "warn", "Retried manually"
		if t.By != "" {
			m.Title += " by " + t.By
		}
		m.Text = "It is sent again."
		if mayHaveIt(before) {
			m.Text += " It may arrive twice: an earlier attempt may have been accepted."
		}
	default:
		m.Icon, m.Title, m.Text = "info", web.Sentence(t.What), web.Sentence(t.Because)
	}
	return m
}

// mayHaveIt reports whether a provider may have accepted the mail in an earlier attempt, and no event says that it
// failed.
func mayHaveIt(before []models.Moment) bool {
	may := map[int]bool{} // by attempt
	for i := range before {
		switch m := &before[i]; {
		case m.What == "attempt":
			may[m.Attempt] = true // until it is answered
		case m.What == "answer" && m.Class.Refused(), m.What == "event" && m.Event.Failure():
			may[m.Attempt] = false
		}
	}
	return slices.Contains(slices.Collect(maps.Values(may)), true)
}

// newest returns the newest entry of a kind, or the zero value.
func newest(what string, before []models.Moment) models.Moment {
	for _, m := range slices.Backward(before) {
		if m.What == what {
			return m
		}
	}
	return models.Moment{}
}

// answer describes the response to a call.
func (m *moment) answer(t *models.Moment, provider string) {
	after := ""
	if t.TookMS > 0 {
		after = " after " + web.Took(web.MS(t.TookMS))
	}
	status := ""
	if t.Status > 0 {
		status = fmt.Sprintf(" HTTP status: %d.", t.Status)
	}
	switch {
	case t.Class == models.Accepted:
		m.Icon, m.Title, m.Text = "check", provider+" accepted it"+after, "Waiting for delivery events."
	case t.Class == models.Unknown:
		m.Icon, m.Tone, m.Title = "alert", "warn", "Unknown whether "+provider+" accepted it"
		m.Text = "The call was made but no usable answer came back. " +
			"It is not sent again until evidence shows what happened." + status
	default:
		m.Icon, m.Tone, m.Title = "cross", "bad", provider+" did not accept it"+after
		m.Text = web.Sentence(t.Reason.Words()) + status
	}
}

// event describes an event.
func (m *moment) event(t *models.Moment, provider string) {
	m.Text = web.Sentence(t.Reason.Words())
	if t.Enhanced != "" {
		m.Text += " (" + t.Enhanced + ")"
	}
	if t.Bounce != "" {
		m.Text += " " + provider + " calls this “" + t.Bounce + "”."
	}
	switch t.Event {
	case models.Processed:
		m.Icon, m.Title = "info", provider+" started delivery"
	case models.Delivered:
		m.Icon, m.Tone, m.Title, m.Text = "check", "good", "Delivered by "+provider, "The receiving server accepted it."
	case models.Deferred:
		m.Icon, m.Tone, m.Title = "clock", "warn", "Deferred: "+provider+" retries by itself"
	case models.Bounced:
		m.Icon, m.Tone, m.Title = "cross", "bad", "Bounced"
	case models.Dropped:
		m.Icon, m.Tone, m.Title = "cross", "bad", provider+" dropped it without an attempt"
	case models.Blocked:
		m.Icon, m.Tone, m.Title = "cross", "bad", "Blocked by the receiving server (through "+provider+")"
	case models.Rejected:
		m.Icon, m.Tone, m.Title = "cross", "bad", provider+" rejected it after accepting it"
	case models.Complained:
		m.Icon, m.Tone, m.Title, m.Text = "alert", "warn", "Marked as spam by the recipient", ""
	case models.Unsubscribed:
		m.Icon, m.Title, m.Text = "info", "The recipient unsubscribed", ""
	case models.Opened:
		m.Icon, m.Title, m.Text = "eye", "Opened", ""
	case models.Clicked:
		m.Icon, m.Title, m.Text = "eye", "Link clicked", ""
	default:
		m.Icon, m.Title = "info", web.Sentence(string(t.Event))
	}
	if t.Async {
		m.Text += " It bounced after the receiving server had accepted it."
	}
	if t.Guess {
		m.Text += " This is a guess: " + provider + " named only the address, and this is the only recent mail to it."
	}
}

// quietLogs is how often a chunk is read if its counts do not change: for opens, clicks and late bounces.
const quietLogs = 10 * time.Second

// chunks has a reader for each chunk that has logs open. A timeline needs the whole chunk, so all open logs of a chunk
// share a reader.
type chunks struct {
	mail *mail.Reader

	mu      sync.Mutex
	readers map[string]*chunkReader
}

// of returns the reader for a log of a caller, and drops readers that have been idle.
func (c *chunks) of(who service.Caller, log models.ID) *chunkReader {
	now := time.Now()
	key := web.EventsKey(who.User, " ", who.Operator, " ", log.ChunkID())
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, r := range c.readers {
		if k != key && r.idle(now) {
			delete(c.readers, k)
		}
	}
	r := c.readers[key]
	if r == nil {
		r = &chunkReader{mail: c.mail, who: who, log: log}
		c.readers[key] = r
	}
	return r
}

// chunkReader reads one chunk for all pages that show its logs.
type chunkReader struct {
	mail *mail.Reader
	who  service.Caller
	log  models.ID // any log of the chunk

	mu      sync.Mutex
	asked   time.Time // when the counts were last read
	read    time.Time // when the chunk was last read
	listed  mail.BatchView
	stories *mail.Stories
}

func (r *chunkReader) idle(now time.Time) bool {
	if !r.mu.TryLock() {
		return false // a read is running
	}
	defer r.mu.Unlock()
	return !r.asked.IsZero() && now.Sub(r.asked) > 3*quietLogs
}

// batch returns the batch as it was when the timelines were read.
func (r *chunkReader) batch() mail.BatchView {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.listed
}

// now returns the timelines of the chunk, at most liveEvery old. The pointer stays the same while nothing changes.
func (r *chunkReader) now(ctx context.Context) (*mail.Stories, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if r.stories != nil && now.Sub(r.asked) < web.LiveEvery {
		return r.stories, nil
	}
	b, err := r.mail.ListedBatch(ctx, r.who, r.log.Batch().String())
	if err != nil {
		return nil, err
	}
	if r.stories == nil || now.Sub(r.read) >= quietLogs || !reflect.DeepEqual(b, r.listed) {
		if r.stories, err = r.mail.Stories(ctx, r.who, r.log); err != nil {
			return nil, err
		}
		r.read, r.listed = now, b
	}
	r.asked = now
	return r.stories, nil
}

// roughly returns the time from acceptance to an event whose time is known only to the second. It is a whole number of
// seconds, and at least the time to the event before.
func roughly(d, before time.Duration) time.Duration {
	return max(d+time.Second/2, before, 0).Round(time.Second)
}

// tookRoughly formats the result of roughly.
func tookRoughly(d time.Duration) string {
	switch {
	case d < time.Second:
		return "less than 1 s"
	case d < 2*time.Minute:
		return fmt.Sprintf("about %d s", d/time.Second)
	}
	return "about " + web.Took(d)
}
