package mail

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/commands"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/mail"
)

// commandPages are the pages on which commands about mail are confirmed and given.
type commandPages struct {
	web     *web.Frame
	pages   *Pages
	service *service.Service
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
func actionsOf(b *mail.BatchView, who service.Caller) []web.Action {
	var out []web.Action
	free, held := retryable(&b.Counts)
	switch {
	case b.Cancelled:
		return nil
	case b.Stopped && mail.MayResume(who, b):
		out = append(out, web.Action{Do: "resume", Text: "Resume"})
	case b.Stopped: // by an operator
	case b.Counts.Open() > 0:
		out = append(out, web.Action{Do: "stop", Text: "Stop"})
	}
	if triable(b.Waits) {
		out = append(out, web.Action{Do: "try", Text: "Try now"})
	}
	if movable(b) {
		out = append(out, web.Action{Do: "reschedule", Text: "Change time"})
	}
	if b.Counts.Open() > 0 {
		out = append(out, web.Action{Do: "cancel", Text: "Cancel"})
	}
	if free > 0 {
		out = append(out, web.Action{Do: "retry", Text: "Retry failed"})
	}
	if held > 0 {
		out = append(out, web.Action{Do: "release", Text: "Release held"})
	}
	return out
}

// askBatch is GET /batches/{id}/{do}.
func (c *commandPages) askBatch(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	b, err := c.service.Mail.Batch(r.Context(), v.Caller(), r.PathValue("id"))
	if err != nil {
		return err
	}
	do := r.PathValue("do")
	q := questionOf(do, &b)
	switch {
	case q == nil:
		return web.ErrNoPage
	case do == "resume" && !mail.MayResume(v.Caller(), &b):
		return commands.StoppedByOperator()
	case do == "try" || do == "retry" || do == "release":
		addWaiting(q, c.pages.waitingFor(r.Context(), v.Caller(), &b))
	}
	q.Back = "/batches/" + b.ID.String()
	return c.web.Ask(w, r, v, q)
}

// selectedActions maps the last part of a path to the command for selected messages.
var selectedActions = map[string]models.CommandKind{"retry": models.RetryBatch, "release": models.ReleaseBatch}

// sendSelected is POST /selected/{do}: it asks first what is to
// be done with the selected messages or batches, and does it when that was confirmed.
func (c *commandPages) sendSelected(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	do := selectedActions[r.PathValue("do")]
	if do == "" {
		return web.ErrNoPage
	}
	form, ids, err := web.ReadSelected(w, r)
	if err != nil {
		return err
	}
	repeat := form.Repeat(r)
	if repeat.Key == "" {
		return c.askSelected(w, r, v, do, ids)
	}
	_, _, err = c.service.Commands.SendSelected(r.Context(), v.Caller(), do, ids, form.Text("why"), repeat)
	if err != nil {
		return err
	}
	return web.SeeOther(w, r, web.LocalPath(form.Get("back")))
}

// askSelected asks for the confirmation of sendSelected.
func (c *commandPages) askSelected(
	w http.ResponseWriter, r *http.Request, v *web.Visitor, do models.CommandKind, ids []models.ID,
) error {
	reached, err := c.service.Commands.DryRunSelected(r.Context(), v.Caller(), do, ids)
	if err != nil {
		return err
	}
	n := int64(reached.Recipients)
	q := &web.Question{Back: web.BackFrom(r), Do: "Send " + web.Messages(n) + " again", IDs: r.PostForm["id"]}
	switch {
	case n == 0:
		return service.Fail(service.Conflict, "nothing_selected",
			"None of what you selected can be sent again in this way. Retry sends messages that failed, unless the "+
				"failure is permanent; release sends those whose outcome is unknown.")
	case do == models.RetryBatch:
		q.Title = "Retry " + web.Messages(n) + "?"
		q.Text = []string{"They are sent again through any provider that their batches may use. Nothing arrives twice."}
	default:
		q.Grave, q.Title = true, "Release "+web.Messages(n)+" with unknown outcome?"
		q.Text = []string{"It is unknown whether a provider accepted them. They are sent again and may arrive twice."}
	}
	return c.web.Ask(w, r, v, q)
}

// addWaiting adds to a question that nothing is sent yet, and why. An empty kept adds nothing.
func addWaiting(q *web.Question, kept string) {
	if kept != "" {
		q.Text = append(q.Text, "Nothing is sent until this is resolved: "+kept+".")
	}
}

// questionOf returns the confirmation of a command for a batch, or nil if there is
// no such command.
func questionOf(do string, b *mail.BatchView) *web.Question {
	free, held := retryable(&b.Counts)
	switch do {
	case "stop":
		return &web.Question{Title: "Stop this batch?", Do: "Stop", Text: []string{
			web.Are(b.Counts.Open()) + " not finished yet. Within one second no new provider call starts for them. " +
				"They wait until you resume the batch.",
			"Calls that have started cannot be recalled. Messages that a provider has accepted are still delivered."}}
	case "resume":
		return &web.Question{Title: "Resume this batch?", Do: "Resume", Text: []string{
			web.Are(b.Counts.Open()) + " not finished yet. Those that no provider has accepted are sent now. " +
				"Nothing is sent twice."}}
	case "cancel":
		return &web.Question{Title: "Cancel this batch permanently?", Do: "Cancel batch", Grave: true, Text: []string{
			web.Are(b.Counts.Open()) + " not finished yet. Those that no provider has accepted are cancelled. " +
				"This cannot be undone.",
			web.Are(b.Counts.Delivered) + " already delivered."}}
	case "try":
		return &web.Question{Title: "Try this batch now?", Do: "Try now", Text: []string{
			"Messages that wait for another attempt are tried at once, through any provider that takes mail.",
			"The limits of the providers still count, and a suspended provider waits until its suspension ends. " +
				"Nothing is sent twice."}}
	case "retry":
		title := fmt.Sprintf("Retry %s of %s failed messages?", web.Num(free), web.Num(b.Counts.Failed))
		return &web.Question{Title: title, Do: "Retry " + web.Messages(free), Text: []string{
			"They are sent again through any provider that the batch may use.",
			"Addresses that were rejected permanently and messages with an unknown outcome are left out: " +
				"nothing arrives twice."}}
	case "release":
		title := fmt.Sprintf("Release %s with unknown outcome?", web.Messages(held))
		return &web.Question{Title: title, Do: "Release " + web.Messages(held), Grave: true, Text: []string{
			"It is unknown whether a provider accepted them. They are sent again and may arrive twice."}}
	}
	return nil
}

// controlled leads to the page of a batch after a command.
func controlled(w http.ResponseWriter, r *http.Request, _ *web.Visitor, result *web.Result) error {
	done := result.Out.(commands.Result) //nolint:forcetypeassert // its answer
	to := fmt.Sprintf("/batches/%s?did=%s&flying=%s&reached=%s",
		done.BatchID, r.PathValue("do"), counted(done.InFlight), counted(done.Recipients))
	if done.Late {
		to += "&late=yes"
	}
	if done.Waits {
		to += "&waits=yes"
	}
	return web.SeeOther(w, r, to)
}

// counted returns a number for a URL.
func counted(n *int) string {
	if n == nil {
		return uncounted
	}
	return strconv.Itoa(*n)
}

// askLog is GET /logs/{id}/release.
func (c *commandPages) askLog(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	l, err := c.service.Mail.Log(r.Context(), v.Caller(), r.PathValue("id"))
	if err != nil {
		return err
	}
	q := &web.Question{Title: "Send this message again?", Do: "Send again", Back: "/logs/" + l.ID.String(), Text: []string{
		"It goes to " + l.Email + " through any provider that the batch may use."}}
	if l.Reason == models.OutcomeUnknown || l.Reason == models.NoFinalEvent {
		q.Grave = true
		q.Text = append(q.Text, "It is unknown whether it was sent before, so it may arrive twice.")
	}
	b, err := c.service.Mail.Batch(r.Context(), v.Caller(), l.BatchID.String())
	if err != nil {
		return err
	}
	addWaiting(q, c.pages.waitingFor(r.Context(), v.Caller(), &b))
	return c.web.Ask(w, r, v, q)
}

// timesForm has the fields in which the times of a batch are changed.
type timesForm struct {
	*web.Form
	Window *models.SendWindow // that the batch has
}

// askTimes is GET /batches/{id}/reschedule.
func (c *commandPages) askTimes(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	return c.showTimes(w, r, v, http.StatusOK, nil)
}

// showTimes shows the form in which the times of a batch are changed; typed is nil at first.
func (c *commandPages) showTimes(
	w http.ResponseWriter, r *http.Request, v *web.Visitor, status int, typed *web.Form,
) error {
	b, err := c.service.Mail.Batch(r.Context(), v.Caller(), r.PathValue("id"))
	if err != nil {
		return err
	}
	if typed == nil {
		defaults, err := c.service.People.Defaults(r.Context(), v.Caller(), v.User)
		zone, unknown := time.LoadLocation(defaults.Zone) // UTC if there is none
		if err != nil || unknown != nil {
			return cmp.Or(err, unknown)
		}
		typed = web.NewForm(url.Values{
			intake.DeliverAt: {b.DeliverAt.In(zone).Format("2006-01-02T15:04:05")}, intake.TimeZone: {zone.String()},
		})
	}
	who := web.Messages(b.Counts.Queued) + " " + web.Plural(b.Counts.Queued, "is", "are")
	if own := b.OwnTimes; own != nil {
		who = "All but " + web.Messages(int64(own.Recipients)) + " to recipients with times of their own, which stay, are"
	}
	return c.web.Ask(w, r, v, &web.Question{
		Title:  "Change the time of this batch?",
		Do:     "Change time",
		Back:   "/batches/" + b.ID.String(),
		Times:  timesForm{typed, b.Window},
		Status: status,
		Text: []string{
			who + " to be sent at " +
				b.DeliverAt.UTC().Format(time.RFC3339) + ". Nothing is sent before the new time.",
			"The expiry moves by the same amount.",
		},
	})
}

// reschedule is POST /batches/{id}/reschedule.
func (c *commandPages) reschedule(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	form, err := web.ReadForm(w, r, web.MaxForm, "now", "any_time")
	if err != nil {
		return err
	}
	change := commands.Reschedule{Batch: r.PathValue("id")}
	done, err := commands.Result{}, form.Read(&change)
	if form.Get("now") != "" {
		change.DeliverAt = time.Now().Format(time.RFC3339)
	}
	if form.Get("any_time") != "" {
		change.Window = &intake.Window{None: true}
	}
	if err == nil {
		done, _, err = c.service.Commands.Reschedule(r.Context(), v.Caller(), change, form.Repeat(r))
	}
	if err != nil {
		return form.Refused(err, func(status int) error { return c.showTimes(w, r, v, status, form) })
	}
	return web.SeeOther(w, r, "/batches/"+change.Batch+"?did=reschedule&reached="+counted(done.Recipients))
}
