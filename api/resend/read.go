package resend

import (
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/api/dialect"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/commands"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/mail"
	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/service/problem"
)

// summary is an email in a list.
type summary struct {
	ID          string   `json:"id"`
	MessageID   *string  `json:"message_id"`
	To          []string `json:"to"`
	From        string   `json:"from"`
	CreatedAt   string   `json:"created_at"`
	Subject     string   `json:"subject"`
	BCC         []string `json:"bcc"`
	CC          []string `json:"cc"`
	ReplyTo     []string `json:"reply_to"`
	LastEvent   string   `json:"last_event"`
	ScheduledAt *string  `json:"scheduled_at"`
}

// email is an email as a whole.
type email struct {
	Object string `json:"object"`
	summary
	HTML *string             `json:"html"`
	Text *string             `json:"text"`
	Tags []map[string]string `json:"tags"`
}

// times is how Resend writes times.
const times = "2006-01-02 15:04:05.000000-07"

// get is GET /emails/{id}.
func get(r *dialect.Request) (dialect.Answer, error) {
	b, err := r.Service.Mail.Batch(r.Context(), r.Who, r.Param("id"))
	if err != nil {
		return dialect.Answer{}, err
	}
	out := email{Object: "email"}
	if out.summary, err = summaryOf(r, &b); err != nil {
		return dialect.Answer{}, err
	}
	m, err := r.Service.Mail.Mail(r.Context(), r.Who, b.ID.Log(1).String())
	if err != nil {
		return dialect.Answer{}, err
	}
	for text, into := range map[*string]**string{&m.HTML: &out.HTML, &m.Text: &out.Text} {
		if *text != "" {
			*into = text
		}
	}
	for name, value := range b.Metadata {
		out.Tags = append(out.Tags, map[string]string{"name": name, "value": value})
	}
	return dialect.Answer{Body: out}, nil
}

// summaryOf describes a batch by the mail to its first recipients.
func summaryOf(r *dialect.Request, b *mail.BatchView) (summary, error) {
	s := summary{ID: b.ID.String(), From: dialect.Written(b.From), Subject: b.Subject, CreatedAt: b.CreatedAt.UTC().Format(times)}
	if b.Rendered != "" {
		s.Subject = b.Rendered
	}
	for i := range b.ReplyTo {
		s.ReplyTo = append(s.ReplyTo, dialect.Written(b.ReplyTo[i]))
	}
	if b.DeliverAt.After(time.Now()) {
		at := b.DeliverAt.UTC().Format(times)
		s.ScheduledAt = &at
	}
	page, err := r.Service.Mail.Logs(r.Context(), r.Who, b.ID.String(), mail.LogFilter{}, operation.Page{Limit: maxShown})
	if err != nil {
		return s, err
	}
	for i := range page.Logs {
		l := &page.Logs[i]
		into := map[models.Role]*[]string{models.CC: &s.CC, models.BCC: &s.BCC}[l.Role]
		if into == nil {
			into = &s.To
		}
		*into = append(*into, l.Email)
		if l.RFCMessageID != "" {
			s.MessageID = &l.RFCMessageID
		}
		event := lastEvent(l, s.ScheduledAt != nil)
		if i > 0 && l.State == models.Success { // what happened to one says more than a delivery
			event = s.LastEvent
		} else if i == 0 {
			event, err = firstEvent(r, l, event)
		}
		if err != nil {
			return s, err
		}
		s.LastEvent = event
	}
	return s, nil
}

// maxShown is the number of addresses that an email may have.
const maxShown = 50

// lastEvent returns what Resend calls the state of a mail.
func lastEvent(l *mail.LogView, scheduled bool) string {
	switch {
	case l.State == models.Queued && scheduled:
		return "scheduled"
	case l.State == models.Queued:
		return "queued"
	case l.State == models.Success:
		return "delivered"
	case l.State == models.Cancelled:
		return "canceled"
	case l.State != models.Failed:
		return "sent"
	}
	switch l.Reason {
	case models.Suppressed, models.SuppressedBounce, models.SuppressedComplaint, models.SuppressedUnsubscribe:
		return "suppressed"
	case models.MailboxInvalid, models.MailboxFull, models.PolicyContent, models.PolicyReputation, models.BounceUnknown:
		return "bounced"
	}
	return "failed"
}

// firstEvent returns what the recipient of a mail did, if that is more than that it was delivered.
func firstEvent(r *dialect.Request, l *mail.LogView, event string) (string, error) {
	if event != "delivered" && event != "sent" {
		return event, nil
	}
	story, err := r.Service.Mail.Log(r.Context(), r.Who, l.ID.String())
	if err != nil {
		return event, err
	}
	for _, m := range story.Timeline {
		switch kind := m.Event; {
		case kind == models.Complained, kind == models.Clicked && event != "complained",
			kind == models.Opened && event == "delivered":
			event = string(kind)
		case kind == models.Deferred && event == "sent":
			event = "delivery_delayed"
		}
	}
	return event, nil
}

// list is GET /emails: the newest first. A page begins after an id.
func list(r *dialect.Request) (dialect.Answer, error) {
	values := r.URL.Query()
	if values.Get("before") != "" {
		return dialect.Answer{}, invalid("before", "Emails are read from the newest on: use `after`.")
	}
	limit, f := 20, mail.BatchFilter{}
	if text := values.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > 100 {
			return dialect.Answer{}, invalid("limit", "It must be a number from 1 to 100.")
		}
		limit = n
	}
	p := operation.Page{Limit: operation.MaxPage}
	after, err := models.ParseBatchID(values.Get("after"))
	if text := values.Get("after"); text != "" && err != nil {
		return dialect.Answer{}, invalid("after", "It must be the id of an email.")
	} else if text != "" {
		f.Logs.To = after.Time().Add(time.Millisecond)
	}
	out := []summary{}
	for {
		page, err := r.Service.Mail.FindBatches(r.Context(), r.Who, f, p)
		if err != nil {
			return dialect.Answer{}, err
		}
		for i := range page.Batches {
			b := &page.Batches[i]
			if !after.IsZero() && strings.Compare(b.ID.String(), after.String()) >= 0 {
				continue
			}
			if len(out) == limit {
				return dialect.Answer{Body: map[string]any{"object": "list", "has_more": true, "data": out}}, nil
			}
			s, err := summaryOf(r, b)
			if err != nil {
				return dialect.Answer{}, err
			}
			out = append(out, s)
		}
		if p.Cursor = page.Next; p.Cursor == "" {
			return dialect.Answer{Body: map[string]any{"object": "list", "has_more": false, "data": out}}, nil
		}
	}
}

// changed is the answer to a change of an email.
type changed struct {
	Object string `json:"object"`
	ID     string `json:"id"`
}

// reschedule is PATCH /emails/{id}.
func reschedule(r *dialect.Request) (dialect.Answer, error) {
	var in dialect.Object
	if err := dialect.ReadJSON(r, 1<<16, &in); err != nil {
		return dialect.Answer{}, err
	}
	at, err := timeOf(in.Text("scheduled_at", "scheduledAt"))
	if err != nil {
		return dialect.Answer{}, err
	}
	c := commands.Reschedule{Batch: r.Param("id"), Times: intake.Times{DeliverAt: at}}
	_, _, err = r.Service.Commands.Reschedule(r.Context(), r.Who, c, service.Repeat{})
	return dialect.Answer{Body: changed{"email", r.Param("id")}}, err
}

// cancel is POST /emails/{id}/cancel.
func cancel(r *dialect.Request) (dialect.Answer, error) {
	out, _, err := r.Service.Commands.Batch(r.Context(), r.Who, models.CancelBatch, r.Param("id"), "", service.Repeat{})
	none := out.Recipients != nil && *out.Recipients == 0
	if err == nil && (!out.Changed && !out.Cancelled || out.Changed && none) {
		err = problem.New(problem.Conflict, "already_sent", "Email can't be canceled because it was sent already.")
	}
	return dialect.Answer{Body: changed{"email", r.Param("id")}}, err
}
