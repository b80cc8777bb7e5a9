package dashboard

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// askView is the question before something is done: what it will do, to how
// many, and what cannot be undone.
type askView struct {
	Title string
	Text  []string
	Do    string // on the button
	Grave bool   // it cannot be undone, or mail may arrive twice
	To    string // where the answer is posted
	Back  string
	Once  string // so that a second press changes nothing
}

// ask shows a question: in the page's dialog where a script asked for it, else
// as a page of its own.
func (d *Dashboard) ask(w http.ResponseWriter, r *http.Request, v *visitor, active string, q *askView) error {
	q.Once, q.To = newSecret(), r.URL.Path
	if r.Header.Get("Hx-Request") == "" {
		d.render(w, r, v, http.StatusOK, "ask", page{Title: q.Title, Active: active, Data: q})
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

// answered reads the form of a question.
func answered(w http.ResponseWriter, r *http.Request) (why string, repeat service.Repeat) {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	why = strings.TrimSpace(r.PostFormValue("why"))
	repeat = service.Repeat{Route: "POST " + r.URL.Path, Hash: hashOf(why)}
	if once := r.PostFormValue("once"); len(once) == secretLength {
		repeat.Key = once + repeat.Hash
	}
	return why, repeat
}

// batchActions are the orders about a batch by their word in addresses.
var batchActions = map[string]models.CommandKind{
	"stop":    models.StopBatch,
	"resume":  models.ResumeBatch,
	"cancel":  models.CancelBatch,
	"retry":   models.RetryBatch,
	"release": models.ReleaseBatch,
}

// retryable counts the failed mails that can go out again without risk, and held
// those of which nobody knows whether they went out.
func retryable(c *service.Counts) (free, held int64) {
	for r, n := range c.Reasons {
		switch {
		case r == models.OutcomeUnknown, r == models.NoFinalEvent:
			held += n
		case !r.Hard():
			free += n
		}
	}
	return free, held
}

// actionLink is an order that makes sense now.
type actionLink struct{ Do, Text string }

// actionsOf lists the orders about a batch that make sense, and that somebody may
// give.
func actionsOf(b *service.BatchView, who service.Caller) []actionLink {
	var out []actionLink
	free, held := retryable(&b.Counts)
	switch {
	case b.Cancelled:
		return nil
	case b.Stopped && who.MayResume(b):
		out = append(out, actionLink{"resume", "Resume"})
	case b.Stopped: // by an operator
	case b.Counts.Queued > 0:
		out = append(out, actionLink{"stop", "Stop"})
	}
	if b.Counts.Queued > 0 {
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
	b, err := d.service.Batch(r.Context(), v.caller(), r.PathValue("id"))
	if err != nil {
		return err
	}
	do := r.PathValue("do")
	q := questionOf(do, &b)
	switch {
	case q == nil:
		return errNoPage
	case do == "resume" && !v.caller().MayResume(&b):
		return service.StoppedByOperator()
	case do == "retry" || do == "release":
		q.addKept(d.keptBy(r.Context(), v.caller(), &b))
	}
	q.Back = "/batches/" + b.ID.String()
	return d.ask(w, r, v, "batches", q)
}

// addKept says that what is let go does not go out yet, and what keeps it.
func (q *askView) addKept(kept string) {
	if kept != "" {
		q.Text = append(q.Text, "Nothing of it goes out before that is over: "+kept+".")
	}
}

func mails(n int64) string { return num(n) + " " + plural(n, "mail", "mails") }

// questionOf says what an order about a batch will do, and to how many.
func questionOf(do string, b *service.BatchView) *askView {
	free, held := retryable(&b.Counts)
	switch do {
	case "stop":
		return &askView{Title: "Stop this batch?", Do: "Stop", Text: []string{
			fmt.Sprintf(
				"%s not finished yet. One second from now no new call to a provider starts for them; they wait until you resume the batch.",
				are(b.Counts.Queued),
			),
			"Calls that have begun cannot be called back. What providers have taken already is still delivered."}}
	case "resume":
		return &askView{Title: "Resume this batch?", Do: "Resume", Text: []string{
			fmt.Sprintf(
				"%s not finished yet. Those that were not handed over go out now; nothing goes out a second time.",
				are(b.Counts.Queued),
			)}}
	case "cancel":
		return &askView{Title: "Cancel this batch for ever?", Do: "Cancel the batch", Grave: true, Text: []string{
			fmt.Sprintf(
				"%s not finished yet. All of them that no provider has taken are cancelled. This cannot be undone.",
				are(b.Counts.Queued),
			),
			fmt.Sprintf("The %s delivered already stay delivered.", num(b.Counts.Success))}}
	case "retry":
		return &askView{Title: "Retry what failed?", Do: "Retry " + mails(free), Text: []string{
			fmt.Sprintf(
				"%s of %s failed ones go out again, through any provider that may take them.",
				mails(free),
				num(b.Counts.Failed),
			),
			"Left out are addresses that were refused for good, and mail of which nobody knows whether it went out: nothing arrives twice."}}
	case "release":
		return &askView{Title: "Release what is held?", Do: "Release " + mails(held), Grave: true, Text: []string{
			fmt.Sprintf(
				"Of %s nobody knows whether a provider took them. They go out again, and may arrive twice.",
				mails(held),
			)}}
	}
	return nil
}

func are(n int64) string { return mails(n) + " " + plural(n, "is", "are") }

// steerBatch is POST /batches/{id}/{do}.
func (d *Dashboard) steerBatch(w http.ResponseWriter, r *http.Request, v *visitor) error {
	do, ok := batchActions[r.PathValue("do")]
	if !ok {
		return errNoPage
	}
	why, repeat := answered(w, r)
	done, _, err := d.service.Steer(r.Context(), v.caller(), do, r.PathValue("id"), why, repeat)
	if err != nil {
		return err
	}
	flying := uncounted
	if done.InFlight != nil {
		flying = strconv.Itoa(*done.InFlight)
	}
	to := fmt.Sprintf("/batches/%s?did=%s&flying=%s", done.BatchID, r.PathValue("do"), flying)
	if done.Late {
		to += "&late=yes"
	}
	if done.Waits {
		to += "&waits=yes"
	}
	seeOther(w, r, to)
	return nil
}

// askLog is GET /logs/{id}/release.
func (d *Dashboard) askLog(w http.ResponseWriter, r *http.Request, v *visitor) error {
	l, err := d.service.Log(r.Context(), v.caller(), r.PathValue("id"))
	if err != nil {
		return err
	}
	q := &askView{Title: "Send this mail again?", Do: "Send again", Back: "/logs/" + l.ID.String(), Text: []string{
		l.Email + " gets it through any provider that may take it."}}
	if l.Reason == models.OutcomeUnknown || l.Reason == models.NoFinalEvent {
		q.Grave = true
		q.Text = append(q.Text, "Nobody knows whether it went out before: it may arrive twice.")
	}
	b, err := d.service.Batch(r.Context(), v.caller(), l.BatchID.String())
	if err != nil {
		return err
	}
	q.addKept(d.keptBy(r.Context(), v.caller(), &b))
	return d.ask(w, r, v, "batches", q)
}

// releaseLog is POST /logs/{id}/release.
func (d *Dashboard) releaseLog(w http.ResponseWriter, r *http.Request, v *visitor) error {
	why, repeat := answered(w, r)
	done, _, err := d.service.ReleaseLog(r.Context(), v.caller(), r.PathValue("id"), why, repeat)
	if err != nil {
		return err
	}
	seeOther(w, r, "/logs/"+done.LogID.String())
	return nil
}

// providerActions are the switches of a provider by their word in addresses.
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
			"One second from now no new call goes to it, for anybody's mail. What it has taken is still followed.",
			"Mail that may go through this provider alone waits until it is online again, or until its deadline."}},
		"drain": {Title: "Drain " + provider + "?", Do: "Drain", Text: []string{
			"New mail goes through the other providers. Only mail that no other provider may take still goes through this one."}},
		"online": {
			Title: "Bring " + provider + " online?",
			Do:    "Bring online",
			Text:  []string{"It takes its share of all mail again."},
		},
		"probe": {Title: "Try " + provider + " now?", Do: "Try it now", Text: []string{
			"What is held against it is forgotten, as after its key was renewed. One mail shows how it is: if that fails, mail keeps away again.",
			"Where nobody knows what became of such a mail, it may be held."}},
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

// askHolds is GET /operations/holds/lift, for operators.
func (d *Dashboard) askHolds(w http.ResponseWriter, r *http.Request, v *visitor) error {
	holds, err := d.service.Holds(r.Context(), v.caller())
	if err != nil {
		return err
	}
	if len(holds) == 0 {
		return service.Fail(service.Conflict, "nothing_held", "Nothing is held any more.")
	}
	return d.ask(
		w,
		r,
		v,
		"operations",
		&askView{
			Title: "Let go of what is held since the restore?",
			Do:    "Let it go",
			Grave: true,
			Back:  "/operations#holds",
			Text: []string{
				"All mail that was accepted before " + holds[len(holds)-1].Before.UTC().Format(
					"2 Jan 2006, 15:04:05 UTC",
				) + " and is not finished goes out.",
				"The backup does not know what went out after it was made: such mail may arrive twice. Cancel the batches that must not go out before."},
		},
	)
}

// liftHolds is POST /operations/holds/lift, for operators.
func (d *Dashboard) liftHolds(w http.ResponseWriter, r *http.Request, v *visitor) error {
	why, repeat := answered(w, r)
	if _, _, err := d.service.LiftHolds(r.Context(), v.caller(), why, repeat); err != nil {
		return err
	}
	seeOther(w, r, "/operations")
	return nil
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
		_, _, err = d.service.SwitchProvider(r.Context(), v.caller(), do, name, why, repeat)
	} else {
		_, _, err = d.service.ProbeProvider(r.Context(), v.caller(), name, why, repeat)
	}
	if err != nil {
		return err
	}
	seeOther(w, r, "/providers")
	return nil
}
