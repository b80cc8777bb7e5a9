package mailjet

import (
	"cmp"
	"encoding/json"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
)

// queued says that Mailjet has a message. It is not in webhooks, only in the log.
const queued = "queued"

// events are Mailjet's. bounce and blocked are refined by their errors.
var events = kind.Events{
	kind.On(queued, "", "", models.Processed),
	kind.On("sent", "sent", "Sent", models.Delivered),
	kind.On("bounce", "bounce", "Bounce", models.Bounced, models.Blocked, models.Deferred),
	kind.On("blocked", "blocked", "Blocked", models.Dropped),
	kind.On("open", "open", "Open", models.Opened),
	kind.On("click", "click", "Click", models.Clicked),
	kind.On("spam", "spam", "Spam", models.Complained),
	kind.On("unsub", "unsub", "Unsub", models.Unsubscribed),
}

// reasons maps the errors of bounces and of blocked mail ("Possible values for errors"). For others the server's reply
// decides. The template language is never on, so that its errors say nothing of the message.
var reasons = map[parse.Str]models.Reason{
	"user unknown":          models.MailboxInvalid,
	"mailbox inactive":      models.MailboxInvalid,
	"invalid domain":        models.MailboxInvalid,
	"typofix":               models.MailboxInvalid,
	"quota exceeded":        models.MailboxFull,
	"no mail host":          models.DNSOrConnect,
	"connection issue":      models.DNSOrConnect,
	"greylisted":            models.Greylisted,
	"relay/access denied":   models.PolicyReputation,
	"sender blocked":        models.PolicyReputation,
	"policy issue":          models.PolicyReputation,
	"content blocked":       models.PolicyContent,
	"blacklisted":           models.SuppressedBounce,
	"preblocked":            models.SuppressedBounce,
	"spam reporter":         models.SuppressedComplaint,
	"duplicate in campaign": models.ProviderDropped,
}

// An event is one of a webhook. A message ID is a number above 2^53.
type event struct {
	Event     parse.Str `json:"event"`
	Time      parse.Str `json:"time"`
	MessageID parse.Str `json:"MessageID"`
	Email     parse.Str `json:"email"`
	CustomID  parse.Str `json:"CustomID"`
	Reply     parse.Str `json:"smtp_reply"`
	Hard      parse.Str `json:"hard_bounce"`
	Error     parse.Str `json:"error"`
	Comment   parse.Str `json:"comment"`
}

// Parse implements models.Adapter. A webhook has a list of events, or one.
func (p *Adapter) Parse(body []byte) (out models.Parsed) {
	var list []json.RawMessage
	if json.Unmarshal(body, &list) != nil {
		list = []json.RawMessage{body}
	}
	for i, raw := range list {
		var in event
		if json.Unmarshal(raw, &in) != nil && in.Event == "" {
			out.Skipped = append(out.Skipped, "an event is not a JSON object that can be read")
			continue
		}
		in.report().AddTo(&out, i+1)
	}
	return out
}

// report returns the event as a report.
func (in *event) report() *kind.Report {
	log, attempt, _ := strings.Cut(string(in.CustomID), ".")
	r := &kind.Report{
		Name:      in.Event,
		Ours:      kind.Ours{Log: parse.Str(log), Attempt: parse.Str(attempt)},
		MessageID: string(in.MessageID),
		Address:   string(in.Email),
		Same:      []string{string(in.Event), string(in.MessageID), string(in.Time), string(in.Error)},
	}
	r.Kind = events.Kind(string(in.Event))
	r.At, _ = parse.Time(in.Time)
	switch r.Kind {
	case models.Delivered:
		r.Text = parse.Text(string(in.Reply))
	case models.Bounced, models.Dropped:
		in.explain(&r.Event)
	}
	return r
}

// explain sets kind and reason of a bounce, or of mail that Mailjet did not try to deliver. Only a hard bounce says
// that the mailbox is invalid.
func (in *event) explain(ev *models.Event) {
	reply := parse.NewReply("", "", string(in.Comment))
	ev.Status, ev.Enhanced, ev.Text = reply.Code, reply.Enhanced, parse.Text(cmp.Or(string(in.Comment), string(in.Error)))
	ev.BounceClass = parse.Text(string(in.Error))
	hard, said := in.Hard == "true", reply.Reason()
	if said == models.MailboxInvalid && !hard {
		said = ""
	}
	ev.Reason = cmp.Or(reasons[in.Error], said, models.BounceUnknown)
	switch dropped := ev.Kind == models.Dropped; {
	case dropped && ev.Reason == models.MailboxInvalid:
		ev.Reason = models.SuppressedBounce // it bounced before
	case dropped && ev.Reason == models.BounceUnknown:
		ev.Reason = models.ProviderDropped
	case ev.Reason == models.MailboxInvalid && !hard:
		ev.Reason = cmp.Or(said, models.BounceUnknown)
	case ev.Reason == models.Greylisted && !hard && !dropped:
		ev.Kind = models.Deferred // it is tried again
	case dropped:
	case ev.Reason == models.PolicyContent, ev.Reason == models.PolicyReputation:
		ev.Kind = models.Blocked
	case ev.Reason == models.SuppressedBounce, ev.Reason == models.SuppressedComplaint:
		ev.Kind = models.Dropped
	}
}
