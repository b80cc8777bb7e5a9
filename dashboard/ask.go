package dashboard

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/commands"
	"github.com/safedelivr/safedelivr/service/mail"
)

// askView is the confirmation before an action: what the action does, to how many
// messages, and what cannot be undone.
type askView struct {
	Title string
	Text  []string
	Do    string // on the button
	Grave bool   // the action cannot be undone, or mail may arrive twice
	To    string // path that the form posts to
	Back  string
	Once  string // idempotency key: a second press changes nothing

	IDs []string // of the selected entries

	Times *timesForm // fields for the times of a batch; nil: there are none
}

// ask shows a confirmation: in the page's dialog if htmx asked for it, else as a
// page of its own.
func (d *Dashboard) ask(w http.ResponseWriter, r *http.Request, v *visitor, active string, q *askView) error {
	q.Once, q.To = newSecret(), r.URL.EscapedPath()
	if list := r.URL.Query().Get("list"); list != "" { // of suppressions
		q.To += "?list=" + url.QueryEscape(list)
	}
	if r.Header.Get("Hx-Request") == "" {
		status := http.StatusOK
		if q.Times != nil && len(q.Times.Wrong) > 0 {
			status = http.StatusUnprocessableEntity
		}
		d.render(w, r, v, status, "ask", page{Title: q.Title, Active: active, Data: q})
		return nil
	}
	ps, err := d.pages.parts("ask", q, "ask")
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(ps["ask"]) // the browser may be gone
	return nil
}

// answered reads the form of a confirmation.
func answered(w http.ResponseWriter, r *http.Request) (why string, repeat service.Repeat) {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	why = strings.TrimSpace(r.PostFormValue("why"))
	repeat = service.Repeat{Route: "POST " + r.URL.Path, Hash: hashOf(why)}
	if once := r.PostFormValue("once"); len(once) == secretLength {
		repeat.Key = once + repeat.Hash
	}
	return why, repeat
}

// batchActions maps the last part of a path to the command for a batch.
var batchActions = map[string]models.CommandKind{
	"stop":    models.StopBatch,
	"resume":  models.ResumeBatch,
	"cancel":  models.CancelBatch,
	"try":     models.TryBatch,
	"retry":   models.RetryBatch,
	"release": models.ReleaseBatch,
}

// retryable counts failed messages: free can be sent again without the risk of a
// double, held have an unknown outcome.
func retryable(c *client.Counts) (free, held int64) {
	for name, n := range c.FailedReasons {
		switch r := models.Reason(name); {
		case r == models.OutcomeUnknown, r == models.NoFinalEvent:
			held += n
		case !r.Hard():
			free += n
		}
	}
	return free, held
}

// actionLink is a button for a command that can be given now.
type actionLink struct{ Do, Text string }

// movable reports whether the times of a batch may be changed.
func movable(b *mail.BatchView) bool {
	return b.State == models.BatchScheduled && (b.OwnTimes == nil || b.OwnTimes.Recipients < b.Recipients)
}

// triable reports whether mail waits for another attempt.
func triable(w *models.Wait) bool {
	return w != nil && (w.Code == models.WaitRetry || w.Code == models.WaitProviderSuspend)
}

// actionsOf returns the commands that have an effect on the batch now and that the
// caller may give.
func actionsOf(b *mail.BatchView, who service.Caller) []actionLink {
	var out []actionLink
	free, held := retryable(&b.Counts)
	switch {
	case b.Cancelled:
		return nil
	case b.Stopped && mail.MayResume(who, b):
		out = append(out, actionLink{"resume", "Resume"})
	case b.Stopped: // by an operator
	case b.Counts.Open() > 0:
		out = append(out, actionLink{"stop", "Stop"})
	}
	if triable(b.Waits) {
		out = append(out, actionLink{"try", "Try now"})
	}
	if movable(b) {
		out = append(out, actionLink{"reschedule", "Change time"})
	}
	if b.Counts.Open() > 0 {
		out = append(out, actionLink{"cancel", "Cancel"})
	}
	if free > 0 {
		out = append(out, actionLink{"retry", "Retry failed"})
	}
	if held > 0 {
		out = append(out, actionLink{"release", "Release held"})
	}
	return out
}

// askBatch is GET /batches/{id}/{do}.
func (d *Dashboard) askBatch(w http.ResponseWriter, r *http.Request, v *visitor) error {
	b, err := d.service.Mail.Batch(r.Context(), v.caller(), r.PathValue("id"))
	if err != nil {
		return err
	}
	do := r.PathValue("do")
	q := questionOf(do, &b)
	switch {
	case q == nil:
		return errNoPage
	case do == "resume" && !mail.MayResume(v.caller(), &b):
		return commands.StoppedByOperator()
	case do == "try" || do == "retry" || do == "release":
		q.addWaiting(d.waitingFor(r.Context(), v.caller(), &b))
	}
	q.Back = "/batches/" + b.ID.String()
	return d.ask(w, r, v, "batches", q)
}

// selectedActions maps the last part of a path to the command for selected messages.
var selectedActions = map[string]models.CommandKind{"retry": models.RetryBatch, "release": models.ReleaseBatch}

// sendSelected is POST /selected/{do}: it asks first what is to
// be done with the selected messages or batches, and does it when that was confirmed.
func (d *Dashboard) sendSelected(w http.ResponseWriter, r *http.Request, v *visitor) error {
	do := selectedActions[r.PathValue("do")]
	if do == "" {
		return errNoPage
	}
	why, repeat := answered(w, r)
	ids, err := selectedIDs(r)
	if err != nil {
		return err
	}
	if repeat.Key == "" {
		return d.askSelected(w, r, v, do, ids)
	}
	repeat.Hash = hashOf(why + strings.Join(r.PostForm["id"], " "))
	repeat.Key = r.PostFormValue("once") + repeat.Hash
	if _, _, err := d.service.Commands.SendSelected(r.Context(), v.caller(), do, ids, why, repeat); err != nil {
		return err
	}
	seeOther(w, r, localPath(r.PostFormValue("back")))
	return nil
}

// selectedIDs returns the IDs of a form that was read.
func selectedIDs(r *http.Request) (ids []models.ID, err error) {
	for _, text := range r.PostForm["id"] {
		id, err := models.ParseID(text)
		if err != nil {
			return nil, errNoPage
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// backFrom returns the page of this site that a form was sent from.
func backFrom(r *http.Request) string {
	if from, err := url.Parse(r.Referer()); err == nil && from.Host == r.Host {
		return localPath(from.RequestURI())
	}
	return "/batches"
}

// askSelected asks for the confirmation of sendSelected.
func (d *Dashboard) askSelected(
	w http.ResponseWriter,
	r *http.Request,
	v *visitor,
	do models.CommandKind,
	ids []models.ID,
) error {
	reached, err := d.service.Commands.DryRunSelected(r.Context(), v.caller(), do, ids)
	if err != nil {
		return err
	}
	n := int64(reached.Recipients)
	q := &askView{Back: backFrom(r), Do: "Send " + messages(n) + " again", IDs: r.PostForm["id"]}
	switch {
	case n == 0:
		return service.Fail(service.Conflict, "nothing_selected",
			"None of what you selected can be sent again in this way. Retry sends messages that failed, unless the "+
				"failure is permanent; release sends those whose outcome is unknown.")
	case do == models.RetryBatch:
		q.Title = "Retry " + messages(n) + "?"
		q.Text = []string{"They are sent again through any provider that their batches may use. Nothing arrives twice."}
	default:
		q.Grave, q.Title = true, "Release "+messages(n)+" with unknown outcome?"
		q.Text = []string{"It is unknown whether a provider accepted them. They are sent again and may arrive twice."}
	}
	return d.ask(w, r, v, "batches", q)
}

// addWaiting adds that nothing is sent yet, and why. An empty kept adds nothing.
func (q *askView) addWaiting(kept string) {
	if kept != "" {
		q.Text = append(q.Text, "Nothing is sent until this is resolved: "+kept+".")
	}
}

// messages is a count of messages in words.
func messages(n int64) string { return num(n) + " " + plural(n, "message", "messages") }

// questionOf returns the confirmation of a command for a batch, or nil if there is
// no such command.
func questionOf(do string, b *mail.BatchView) *askView {
	free, held := retryable(&b.Counts)
	switch do {
	case "stop":
		return &askView{Title: "Stop this batch?", Do: "Stop", Text: []string{
			fmt.Sprintf(
				"%s not finished yet. Within one second no new provider call starts for them. "+
					"They wait until you resume the batch.",
				are(b.Counts.Open()),
			),
			"Calls that have started cannot be recalled. Messages that a provider has accepted are still delivered."}}
	case "resume":
		return &askView{Title: "Resume this batch?", Do: "Resume", Text: []string{
			fmt.Sprintf(
				"%s not finished yet. Those that no provider has accepted are sent now. Nothing is sent twice.",
				are(b.Counts.Open()),
			)}}
	case "cancel":
		return &askView{Title: "Cancel this batch permanently?", Do: "Cancel batch", Grave: true, Text: []string{
			fmt.Sprintf(
				"%s not finished yet. Those that no provider has accepted are cancelled. This cannot be undone.",
				are(b.Counts.Open()),
			),
			fmt.Sprintf("%s already delivered.", are(b.Counts.Delivered))}}
	case "try":
		return &askView{Title: "Try this batch now?", Do: "Try now", Text: []string{
			"Messages that wait for another attempt are tried at once, through any provider that takes mail.",
			"The limits of the providers still count, and a suspended provider waits until its suspension ends. " +
				"Nothing is sent twice."}}
	case "retry":
		title := fmt.Sprintf("Retry %s of %s failed messages?", num(free), num(b.Counts.Failed))
		return &askView{Title: title, Do: "Retry " + messages(free), Text: []string{
			"They are sent again through any provider that the batch may use.",
			"Addresses that were rejected permanently and messages with an unknown outcome are left out: " +
				"nothing arrives twice."}}
	case "release":
		title := fmt.Sprintf("Release %s with unknown outcome?", messages(held))
		return &askView{Title: title, Do: "Release " + messages(held), Grave: true, Text: []string{
			"It is unknown whether a provider accepted them. They are sent again and may arrive twice."}}
	}
	return nil
}

func are(n int64) string { return messages(n) + " " + plural(n, "is", "are") }

// controlBatch is POST /batches/{id}/{do}.
func (d *Dashboard) controlBatch(w http.ResponseWriter, r *http.Request, v *visitor) error {
	do, ok := batchActions[r.PathValue("do")]
	if !ok {
		return errNoPage
	}
	why, repeat := answered(w, r)
	done, _, err := d.service.Commands.Batch(r.Context(), v.caller(), do, r.PathValue("id"), why, repeat)
	if err != nil {
		return err
	}
	to := fmt.Sprintf("/batches/%s?did=%s&flying=%s&reached=%s",
		done.BatchID, r.PathValue("do"), counted(done.InFlight), counted(done.Recipients))
	if done.Late {
		to += "&late=yes"
	}
	if done.Waits {
		to += "&waits=yes"
	}
	seeOther(w, r, to)
	return nil
}

// counted returns a number for a URL.
func counted(n *int) string {
	if n == nil {
		return uncounted
	}
	return strconv.Itoa(*n)
}

// askLog is GET /logs/{id}/release.
func (d *Dashboard) askLog(w http.ResponseWriter, r *http.Request, v *visitor) error {
	l, err := d.service.Mail.Log(r.Context(), v.caller(), r.PathValue("id"))
	if err != nil {
		return err
	}
	q := &askView{Title: "Send this message again?", Do: "Send again", Back: "/logs/" + l.ID.String(), Text: []string{
		"It goes to " + l.Email + " through any provider that the batch may use."}}
	if l.Reason == models.OutcomeUnknown || l.Reason == models.NoFinalEvent {
		q.Grave = true
		q.Text = append(q.Text, "It is unknown whether it was sent before, so it may arrive twice.")
	}
	b, err := d.service.Mail.Batch(r.Context(), v.caller(), l.BatchID.String())
	if err != nil {
		return err
	}
	q.addWaiting(d.waitingFor(r.Context(), v.caller(), &b))
	return d.ask(w, r, v, "batches", q)
}

// releaseLog is POST /logs/{id}/release.
func (d *Dashboard) releaseLog(w http.ResponseWriter, r *http.Request, v *visitor) error {
	why, repeat := answered(w, r)
	done, _, err := d.service.Commands.ReleaseLog(r.Context(), v.caller(), r.PathValue("id"), why, repeat)
	if err != nil {
		return err
	}
	seeOther(w, r, "/logs/"+done.LogID.String()+"?did=sent")
	return nil
}

// providerActions maps the last part of a path to the command for a provider.
var providerActions = map[string]models.CommandKind{
	"offline": models.ProviderOffline,
	"drain":   models.ProviderDrain,
	"online":  models.ProviderOnline,
}

// askProvider is GET /providers/{name}/{do}, for operators.
func (d *Dashboard) askProvider(w http.ResponseWriter, r *http.Request, v *visitor) error {
	name := r.PathValue("name")
	provider := d.named(name)
	questions := map[string]*askView{
		"offline": {Title: "Take " + provider + " offline?", Do: "Take offline", Grave: true, Text: []string{
			"Within one second no new call goes to it, for any user. Messages that it has accepted are still tracked.",
			"Mail that may use only this provider waits until the provider is online again, or until it expires."}},
		"drain": {Title: "Drain " + provider + "?", Do: "Drain", Text: []string{
			"New mail goes through the other providers. Only mail that no other provider may send still goes " +
				"through this one."}},
		"online": {
			Title: "Bring " + provider + " online?",
			Do:    "Bring online",
			Text:  []string{"It gets its share of all mail again."},
		},
		"probe": {Title: "Test " + provider + " now?", Do: "Test now", Text: []string{
			"This clears its failures, for example after you renewed its key. One message tests it. If that " +
				"message fails, the provider is suspended again.",
			"Mail that waits for it is tried at once, urgent mail first.",
			"If the outcome of the test message is unknown, that message may be held for review."}},
	}
	q := questions[r.PathValue("do")]
	if q == nil || !d.hasProvider(name) {
		return errNoPage
	}
	q.Back = "/providers"
	return d.ask(w, r, v, "providers", q)
}

func (d *Dashboard) hasProvider(name string) bool {
	for i := range d.configured {
		if d.configured[i].Name == name {
			return true
		}
	}
	return false
}

// switchProvider is POST /providers/{name}/{do}, for operators.
func (d *Dashboard) switchProvider(w http.ResponseWriter, r *http.Request, v *visitor) error {
	word, name := r.PathValue("do"), r.PathValue("name")
	do, ok := providerActions[word]
	if !ok && word != "probe" {
		return errNoPage
	}
	why, repeat := answered(w, r)
	var err error
	if ok {
		_, _, err = d.service.Operate.ControlProvider(r.Context(), v.caller(), do, name, why, repeat)
	} else {
		_, _, err = d.service.Operate.ProbeProvider(r.Context(), v.caller(), name, why, repeat)
	}
	if err != nil {
		return err
	}
	d.tracker.refresh(r.Context()) // the next page shows it
	seeOther(w, r, "/providers")
	return nil
}
