package dashboard

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// logView is the story of one recipient.
type logView struct {
	service.LogStory
	Story []moment
	Took  time.Duration // from acceptance to the last thing that is known

	CanRelease bool // a person may send it again
}

// moment is a line of the story, in words.
type moment struct {
	At    time.Time
	After time.Duration // since acceptance; 0 where At is rough
	Rough bool          // At is known to the second only
	Icon  string
	Tone  string // good, bad, turn, warn or nothing
	Title string
	Text  string
	Quote string // the provider's or receiving server's own words
}

// logPage is GET /logs/{id}.
func (d *Dashboard) logPage(w http.ResponseWriter, r *http.Request, v *visitor) error {
	id := r.PathValue("id")
	view, err := d.readLog(r.Context(), v.caller(), id)
	if err != nil {
		return err
	}
	d.render(
		w,
		r,
		v,
		http.StatusOK,
		"log",
		page{Title: cmp.Or(view.Email, "Recipient"), Active: "batches", Live: "/live/logs/" + id, Data: view},
	)
	return nil
}

// logEvents is GET /live/logs/{id}.
func (d *Dashboard) logEvents(w http.ResponseWriter, r *http.Request, v *visitor) error {
	id, who := r.PathValue("id"), v.caller()
	log, err := models.ParseLogID(id)
	if err != nil {
		return errNoPage
	}
	if _, err := d.service.Log(r.Context(), who, id); err != nil {
		return err
	}
	return d.stream(
		w,
		r,
		v,
		eventsKey("log ", who.User, " ", who.Operator, " ", id),
		func() source { return d.logSource(who, log) },
	)
}

// logSource reads one log. One that has a final state is looked at now and then.
func (d *Dashboard) logSource(who service.Caller, log models.ID) source {
	var last *logView
	var from *service.Stories
	var read time.Time
	return source{
		read: func(ctx context.Context) (any, error) {
			if last != nil && last.State != models.Queued && time.Since(read) < quietLogs {
				return last, nil
			}
			now, err := d.chunks.of(who, log).now(ctx)
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
			last, from = d.viewOf(&l), now
			return last, nil
		},
		render: func(now any) (parts, error) { return d.pages.parts("log", now, "summary", "story") },
	}
}

func (d *Dashboard) readLog(ctx context.Context, who service.Caller, id string) (*logView, error) {
	l, err := d.service.Log(ctx, who, id)
	if err != nil {
		return nil, err
	}
	return d.viewOf(&l), nil
}

// viewOf puts a story into words.
func (d *Dashboard) viewOf(l *service.LogStory) *logView {
	inOrder(l.Timeline)
	v := &logView{LogStory: *l, CanRelease: l.State == models.Failed && !l.Reason.Hard()}
	for i := range l.Timeline {
		m := d.momentOf(&l.Timeline[i], l.Timeline[:i])
		if m.Rough = l.Timeline[i].What == "event" && m.At.Nanosecond() == 0; !m.Rough {
			m.After = max(0, m.At.Sub(l.CreatedAt))
		}
		v.Took = max(v.Took, m.After)
		v.Story = append(v.Story, m)
	}
	return v
}

// inOrder sorts a timeline as it must have happened. Some providers stamp events
// in whole seconds, which would put them before the answer that they follow.
func inOrder(ms []models.Moment) {
	answered := map[int]time.Time{} // attempt -> when
	for i := range ms {
		if ms[i].What == "answer" {
			answered[ms[i].Attempt] = ms[i].At
		}
	}
	when := func(m *models.Moment) time.Time {
		if at := answered[m.Attempt]; m.What == "event" && m.At.Nanosecond() == 0 && m.At.Equal(at.Truncate(time.Second)) {
			return at
		}
		return m.At
	}
	rank := func(m *models.Moment) int {
		switch {
		case m.What != "event":
			return 0
		case m.Event == models.Processed:
			return 1
		}
		return 2
	}
	slices.SortStableFunc(ms, func(a, b models.Moment) int {
		return cmp.Or(when(&a).Compare(when(&b)), cmp.Compare(rank(&a), rank(&b)))
	})
}

// momentOf puts one line of a timeline into words. before is what was told
// already.
func (d *Dashboard) momentOf(t *models.Moment, before []models.Moment) moment {
	m := moment{At: t.At, Quote: t.Text}
	provider := d.named(t.Provider)
	switch t.What {
	case "accepted":
		m.Icon, m.Title, m.Text = "inbox", "Accepted and stored", "From here on nothing loses it."
	case "attempt":
		m.Icon, m.Title = "send", "Handed to "+provider
		if t.Because != "" {
			m.Icon, m.Tone, m.Title, m.Text = "turn", "turn", "Routed to "+provider, "Because "+t.Because+"."
		}
		if spent := answerTime(before); t.Because != "" && spent > 0 {
			m.Text = "Because " + t.Because + ", after " + took(spent) + "."
		}
	case "answer":
		d.answer(&m, t, provider)
	case "event":
		d.event(&m, t, provider)
	case "end":
		m.Icon, m.Tone, m.Title, m.Text = "cross", "bad", "Ended: nothing more is tried", sentence(t.Because)
	case "cancel":
		m.Icon, m.Title, m.Text = "stop", "Cancelled", "It is not handed over any more."
	case "release":
		m.Icon, m.Tone, m.Title, m.Text = "turn", "warn", "Let go by hand", "A person decided that it may be sent again, though it may arrive twice."
	default:
		m.Icon, m.Title, m.Text = "info", sentence(t.What), sentence(t.Because)
	}
	return m
}

// answerTime is how long the newest answer took.
func answerTime(before []models.Moment) time.Duration {
	for i := len(before) - 1; i >= 0; i-- {
		if before[i].What == "answer" {
			return time.Duration(before[i].TookMS * float64(time.Millisecond))
		}
	}
	return 0
}

// answer tells what a provider said to a call.
func (d *Dashboard) answer(m *moment, t *models.Moment, provider string) {
	after := ""
	if t.TookMS > 0 {
		after = " after " + took(time.Duration(t.TookMS*float64(time.Millisecond)))
	}
	status := ""
	if t.Status > 0 {
		status = fmt.Sprintf(" It answered %d.", t.Status)
	}
	switch {
	case t.Class == models.Accepted:
		m.Icon, m.Title, m.Text = "check", provider+" took it"+after, "Now its events tell what becomes of it."
	case t.Class == models.Unknown:
		m.Icon, m.Tone, m.Title = "alert", "warn", "Nobody knows whether "+provider+" took it"
		m.Text = "The call was made and its answer is missing. It is not sent again until something proves what happened." + status
	default:
		m.Icon, m.Tone, m.Title, m.Text = "cross", "bad", provider+" did not take it"+after, sentence(t.Reason.Words())+status
	}
}

// event tells what a provider reported.
func (d *Dashboard) event(m *moment, t *models.Moment, provider string) {
	m.Text = sentence(t.Reason.Words())
	if t.Enhanced != "" {
		m.Text += " (" + t.Enhanced + ")"
	}
	if t.Bounce != "" {
		m.Text += " " + provider + " calls this “" + t.Bounce + "”."
	}
	switch t.Event {
	case models.Processed:
		m.Icon, m.Title = "info", provider+" began to deliver"
	case models.Delivered:
		m.Icon, m.Tone, m.Title, m.Text = "check", "good", "Delivered by "+provider, "The receiving server took it."
	case models.Deferred:
		m.Icon, m.Tone, m.Title = "clock", "warn", "Deferred: "+provider+" tries again by itself"
	case models.Bounced:
		m.Icon, m.Tone, m.Title = "cross", "bad", "Bounced"
	case models.Dropped:
		m.Icon, m.Tone, m.Title = "cross", "bad", provider+" dropped it without trying"
	case models.Blocked:
		m.Icon, m.Tone, m.Title = "cross", "bad", "Blocked on its way through "+provider
	case models.Rejected:
		m.Icon, m.Tone, m.Title = "cross", "bad", provider+" rejected it afterwards"
	case models.Complained:
		m.Icon, m.Tone, m.Title, m.Text = "alert", "warn", "The recipient called it spam", ""
	case models.Unsubscribed:
		m.Icon, m.Title, m.Text = "info", "The recipient unsubscribed", ""
	case models.Opened:
		m.Icon, m.Title, m.Text = "eye", "Opened", ""
	case models.Clicked:
		m.Icon, m.Title, m.Text = "eye", "A link was clicked", ""
	default:
		m.Icon, m.Title = "info", sentence(string(t.Event))
	}
	if t.Async {
		m.Text += " It came back after it had been taken."
	}
}

// named is a provider as a person reads it.
func (d *Dashboard) named(provider string) string {
	if title := d.info(provider).Title; title != provider {
		return title + " (" + provider + ")"
	}
	return provider
}
