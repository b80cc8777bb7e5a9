package ses

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
	"github.com/safedelivr/safedelivr/providers/internal/sns"
)

// events are those of Amazon SES, with their names in event destinations and in the console. A bounce is refined by its
// types. A complaint about a mail that was never sent is a drop.
var events = kind.Events{
	kind.On("Send", "SEND", "Sends", models.Processed),
	kind.On("Delivery", "DELIVERY", "Deliveries", models.Delivered),
	kind.On("DeliveryDelay", "DELIVERY_DELAY", "Delivery delays", models.Deferred),
	kind.On("Bounce", "BOUNCE", "Hard bounces", models.Bounced, models.Blocked, models.Dropped),
	kind.On("Reject", "REJECT", "Rejects", models.Rejected),
	kind.On("Rendering Failure", "RENDERING_FAILURE", "Rendering failures", models.Rejected),
	kind.On("Complaint", "COMPLAINT", "Complaints", models.Complained, models.Dropped),
	kind.On("Open", "OPEN", "Opens", models.Opened),
	kind.On("Click", "CLICK", "Clicks", models.Clicked),
	kind.On("Subscription", "", "Subscriptions", models.Unsubscribed),
}

// delays maps the types of delays. For the others the server's reply decides.
var delays = map[parse.Str]models.Reason{
	"MailboxFull":                    models.MailboxFull,
	"SpamDetected":                   models.PolicyContent,
	"IPFailure":                      models.PolicyReputation,
	"RecipientServerError":           models.DNSOrConnect,
	"TransientCommunicationFailure":  models.DNSOrConnect,
	"BYOIPHostNameLookupUnavailable": models.DNSOrConnect,
}

// A report is an event of Amazon SES. What happened is in a member whose name is that of the event.
type report struct {
	Event        parse.Str `json:"eventType"`
	Notification parse.Str `json:"notificationType"` // of an identity, which has no tags
	Mail         struct {
		ID          parse.Str              `json:"messageId"`
		Timestamp   parse.Str              `json:"timestamp"`
		Destination []parse.Str            `json:"destination"`
		Tags        map[string][]parse.Str `json:"tags"`
	} `json:"mail"`
}

// What happened. Each kind of event has some of the members.
type what struct {
	Timestamp parse.Str
	Feedback  parse.Str `json:"feedbackId"`

	Recipients                                             []parse.Str // of a delivery
	BouncedRecipients, ComplainedRecipients                []recipient
	DelayedRecipients                                      []recipient
	BounceType, BounceSubType, ComplaintSubType, DelayType parse.Str
	ComplaintFeedbackType                                  parse.Str
	SMTPResponse                                           parse.Str
	Reason, ErrorMessage                                   parse.Str
	Link                                                   parse.Str
	New                                                    struct{ UnsubscribeAll bool } `json:"newTopicPreferences"`
}

// A recipient is one of an event.
type recipient struct {
	Email      parse.Str `json:"emailAddress"`
	Status     parse.Str
	Diagnostic parse.Str `json:"diagnosticCode"`
}

// Parse implements models.Adapter. An event about several recipients is one for each. An event of one mail to several
// that does not say which of them it is about is skipped, but for those that are about all.
func (p *Adapter) Parse(body []byte) (out models.Parsed) {
	var post sns.Post // with an event of Amazon SES, as JSON in a text
	var in report
	var parts map[string]json.RawMessage
	var of what
	parse.Into(body, &post)
	parse.Into([]byte(post.Message), &in)
	parse.Into([]byte(post.Message), &parts)
	name := string(cmp.Or(in.Event, in.Notification))
	if name == "" {
		out.Skipped = []string{"event 1: " + parse.Word(parse.Str(post.Type)) + ": not an event of Amazon SES"}
		return out
	}
	parse.Into(parts[member(name)], &of)
	to := of.recipients(events.Kind(name), in.Mail.Destination)
	several := len(to) > 1 || len(in.Mail.Destination) > 1
	for _, one := range to {
		r := kind.Report{
			Name:      parse.Str(strings.ReplaceAll(name, " ", "")),
			Ours:      kind.Ours{Log: first(in.Mail.Tags[kind.LogKey]), Attempt: first(in.Mail.Tags[kind.AttemptKey])},
			MessageID: string(in.Mail.ID),
			Address:   string(one.Email),
			Same:      []string{name, string(in.Mail.ID), string(of.Feedback), string(of.Timestamp), string(of.Link)},
		}
		if len(in.Mail.Tags) == 0 {
			r.Lost = "not a mail of ours (it has no tags)"
		}
		r.Kind = events.Kind(name)
		r.At, _ = parse.Time(cmp.Or(of.Timestamp, in.Mail.Timestamp))
		if of.explain(&r.Event, one, several); several && one.Email == "" {
			r.Kind = ""
		}
		r.AddTo(&out, 1)
	}
	return out
}

// member returns the name of the member that says what happened.
func member(event string) string {
	switch event {
	case "DeliveryDelay":
		return "deliveryDelay"
	case "Rendering Failure":
		return "failure"
	}
	return strings.ToLower(event)
}

// recipients returns whom an event of a mail to all is about. An event of some kinds names them; if it does not, there
// is one without an address, or with the only address of the mail.
func (w *what) recipients(kind models.EventKind, all []parse.Str) []recipient {
	list := slices.Concat(w.BouncedRecipients, w.ComplainedRecipients, w.DelayedRecipients)
	addresses := w.Recipients
	switch kind {
	case models.Delivered, models.Deferred, models.Bounced, models.Complained:
	default:
		addresses = all
	}
	for _, address := range addresses {
		list = append(list, recipient{Email: address})
	}
	switch {
	case len(list) > 0:
		return list
	case len(all) == 1:
		return []recipient{{Email: all[0]}}
	}
	return []recipient{{}}
}

// explain sets kind and reason of an event of a mail, which may be one to several. It is of no kind if it does not say
// which of them it is about, or if it is no complaint.
func (w *what) explain(ev *models.Event, to recipient, several bool) {
	b := kind.Bounce{Type: w.BounceType, SubType: w.BounceSubType, Status: to.Status, Server: to.Diagnostic}
	switch ev.Kind {
	case models.Bounced:
		b.Explain(ev, "", models.BounceUnknown)
	case models.Deferred:
		b.Explain(ev, delays[w.DelayType], "")
		ev.Kind, ev.BounceClass = models.Deferred, parse.Text(string(w.DelayType))
	case models.Delivered:
		ev.Text = parse.Text(string(w.SMTPResponse))
	case models.Rejected:
		ev.Reason, ev.Text = models.Virus, parse.Text(string(w.Reason))
		if w.ErrorMessage != "" {
			ev.Reason, ev.Text = models.InvalidRequest, parse.Text(string(w.ErrorMessage))
		}
	case models.Complained:
		ev.BounceClass = parse.Text(strings.TrimSpace(string(w.ComplaintFeedbackType + " " + w.ComplaintSubType)))
		switch {
		case w.ComplaintSubType == "OnAccountSuppressionList":
			ev.Kind, ev.Reason = models.Dropped, models.SuppressedComplaint
		case w.ComplaintFeedbackType == "not-spam" || w.ComplaintFeedbackType == "auth-failure":
			ev.Kind = ""
		}
	case models.Opened, models.Clicked, models.Unsubscribed:
		if several || ev.Kind == models.Unsubscribed && !w.New.UnsubscribeAll {
			ev.Kind = ""
		}
	}
}

// first returns the first of some texts, or "".
func first(list []parse.Str) parse.Str { return append(list, "")[0] }
