package postmark

import (
	"net/http"
	"time"

	"github.com/safedelivr/safedelivr/api/dialect"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/mail"
	"github.com/safedelivr/safedelivr/service/problem"
)

// mailbox is an address as Postmark writes it.
type mailbox struct {
	Email string
	Name  string
}

// event is what happened to the mail to a recipient.
type event struct {
	Recipient, Type, ReceivedAt string
	Details                     map[string]string
}

// details is a message with its events.
type details struct {
	MessageID, Tag, From, Subject, Status, ReceivedAt string
	MessageStream                                     string
	To, Cc, Bcc                                       []mailbox
	Recipients, Attachments                           []string
	Metadata                                          map[string]string
	TextBody, HtmlBody, Body                          string
	Sandboxed                                         bool
	MessageEvents                                     []event
}

const noMessage = 701

// get is GET /messages/outbound/{id}/details.
func get(r *dialect.Request) (dialect.Answer, error) {
	b, err := r.Service.Mail.Batch(r.Context(), r.Who, r.Param("id"))
	if err != nil {
		return dialect.Answer{}, err
	}
	m, err := r.Service.Mail.Mail(r.Context(), r.Who, b.ID.Log(1).String())
	if err != nil {
		return dialect.Answer{}, err
	}
	stories, err := r.Service.Mail.Stories(r.Context(), r.Who, b.ID.Log(1))
	if err != nil {
		return dialect.Answer{}, err
	}
	out := details{
		MessageID: b.ID.String(), From: dialect.Written(b.From), Subject: m.Subject, Status: "Queued", ReceivedAt: timeOf(b.CreatedAt),
		MessageStream: streamOf(b.Lane), To: []mailbox{}, Cc: []mailbox{}, Bcc: []mailbox{}, Recipients: []string{},
		Attachments: []string{}, Metadata: b.Metadata, TextBody: m.Text, HtmlBody: m.HTML, MessageEvents: []event{},
	}
	if len(b.Tags) > 0 {
		out.Tag = b.Tags[0]
	}
	for _, a := range m.Attachments {
		out.Attachments = append(out.Attachments, a.Filename)
	}
	if out.Metadata == nil {
		out.Metadata = map[string]string{}
	}
	for n := 1; n <= maxAddresses; n++ {
		story, err := stories.Log(b.ID.Log(n))
		if problem.IsNotFound(err) {
			break
		}
		if err != nil {
			return dialect.Answer{}, err
		}
		out.add(&story)
	}
	return dialect.Answer{Body: out}, nil
}

// add adds what is known of a recipient.
func (d *details) add(l *mail.LogStory) {
	into := map[models.Role]*[]mailbox{models.CC: &d.Cc, models.BCC: &d.Bcc}[l.Role]
	if into == nil {
		into = &d.To
	}
	*into = append(*into, mailbox{l.Email, l.Name})
	d.Recipients = append(d.Recipients, l.Email)
	if l.State != models.Queued {
		d.Status = "Sent"
	}
	last := -1 // the failure that ended it
	for i := range l.Timeline {
		if l.State == models.Failed && l.Timeline[i].Event.Failure() {
			last = i
		}
	}
	for i := range l.Timeline {
		if e := eventOf(&l.Timeline[i], i == last); e.Type != "" {
			e.Recipient = l.Email
			d.MessageEvents = append(d.MessageEvents, e)
		}
	}
	if n := len(l.Timeline); l.State == models.Failed && last < 0 && n > 0 {
		d.MessageEvents = append(d.MessageEvents, event{
			l.Email, "Bounced", timeOf(l.Timeline[n-1].At), map[string]string{"Summary": l.ReasonText},
		})
	}
}

// eventOf returns a moment as an event; without a type it is none. A failure is final, or another provider has the mail.
func eventOf(m *models.Moment, final bool) event {
	e := event{ReceivedAt: timeOf(m.At)}
	delivery := map[string]string{"DeliveryMessage": m.Text, "DestinationServer": "", "DestinationIP": ""}
	summary := map[string]string{"Summary": m.Text}
	switch {
	case m.Event == models.Delivered:
		e.Type, e.Details = "Delivered", delivery
	case m.Event.Failure() && final:
		e.Type, e.Details = "Bounced", summary
	case m.Event.Failure(), m.Event == models.Deferred:
		e.Type, e.Details = "Transient", delivery
	case m.Event == models.Opened:
		e.Type, e.Details = "Opened", summary
	case m.Event == models.Clicked:
		e.Type, e.Details = "LinkClicked", summary
	case m.Event.OptsOut():
		e.Type, e.Details = "SubscriptionChanged", map[string]string{"Origin": "Recipient", "SuppressSending": "True"}
	}
	return e
}

func timeOf(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// streamOf returns the stream of mail in a lane.
func streamOf(lane models.Lane) string {
	if lane == models.Bulk {
		return "broadcast"
	}
	return "outbound"
}

// missing returns a handler whose answer for what does not exist is Postmark's.
func missing(handle func(*dialect.Request) (dialect.Answer, error)) func(*dialect.Request) (dialect.Answer, error) {
	return func(r *dialect.Request) (dialect.Answer, error) {
		a, err := handle(r)
		if problem.IsNotFound(err) {
			err = nil
			a = dialect.Answer{Status: http.StatusUnprocessableEntity, Body: result{
				ErrorCode: noMessage, Message: "This message was not found.",
			}}
		}
		return a, err
	}
}
