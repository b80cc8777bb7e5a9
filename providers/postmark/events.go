package postmark

import (
	"cmp"
	"encoding/json"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
)

// taken says that Postmark has a message. It is not in webhooks, and LookUp posts it.
const taken = "Sent"

// events are Postmark's. Bounce is refined by its type, SubscriptionChange by its reason.
var events = kind.Events{
	kind.On(taken, "", "", models.Processed),
	kind.On("Delivery", "Delivery", "Delivery", models.Delivered),
	kind.On("Bounce", "Bounce", "Bounce", models.Bounced, models.Blocked, models.Dropped, models.Rejected,
		models.Deferred),
	kind.On("SpamComplaint", "SpamComplaint", "Spam Complaint", models.Complained),
	kind.On("Open", "Open", "Open", models.Opened),
	kind.On("Click", "Click", "Link Click", models.Clicked),
	kind.On("SubscriptionChange", "SubscriptionChange", "Subscription Change", models.Unsubscribed),
}

// bounces maps the types of bounces. Others (Subscribe, AutoResponder, AddressChange, ChallengeVerification, Unknown)
// do not concern a log. For those without a reason the server's reply decides.
var bounces = map[string]models.Event{
	"HardBounce":              {Kind: models.Bounced, Reason: models.MailboxInvalid},
	"BadEmailAddress":         {Kind: models.Bounced, Reason: models.MailboxInvalid},
	"SoftBounce":              {Kind: models.Bounced},
	"Unconfirmed":             {Kind: models.Bounced},
	"VirusNotification":       {Kind: models.Bounced, Reason: models.Virus},
	"Transient":               {Kind: models.Deferred},
	"DnsError":                {Kind: models.Deferred, Reason: models.DNSOrConnect},
	"OpenRelayTest":           {Kind: models.Deferred},
	"Blocked":                 {Kind: models.Blocked, Reason: models.PolicyReputation},
	"DMARCPolicy":             {Kind: models.Blocked, Reason: models.PolicyReputation},
	"ManuallyDeactivated":     {Kind: models.Dropped, Reason: models.SuppressedBounce},
	"SMTPApiError":            {Kind: models.Rejected, Reason: models.InvalidRequest},
	"TemplateRenderingFailed": {Kind: models.Rejected, Reason: models.InvalidRequest},
	"SpamNotification":        {Kind: models.Complained},
	"SpamComplaint":           {Kind: models.Complained},
	"Unsubscribe":             {Kind: models.Unsubscribed},
	"ManualSuppression":       {Kind: models.Unsubscribed},
}

// A post is a webhook, with one event. Each kind has its own times.
type post struct {
	Record      parse.Str       `json:"RecordType"`
	ID          parse.Str       `json:"ID"` // of bounces and complaints
	Type        parse.Str       `json:"Type"`
	MessageID   parse.Str       `json:"MessageID"`
	Recipient   parse.Str       `json:"Recipient"`
	Email       parse.Str       `json:"Email"`
	Metadata    json.RawMessage `json:"Metadata"`
	Details     parse.Str       `json:"Details"` // the server's words
	Description parse.Str       `json:"Description"`
	Link        parse.Str       `json:"OriginalLink"`
	Delivered   parse.Str       `json:"DeliveredAt"`
	Bounced     parse.Str       `json:"BouncedAt"`
	Received    parse.Str       `json:"ReceivedAt"`
	Changed     parse.Str       `json:"ChangedAt"`
	Suppress    parse.Str       `json:"SuppressSending"`
	Why         parse.Str       `json:"SuppressionReason"`
	Origin      parse.Str       `json:"Origin"`
}

// Parse implements models.Adapter.
func (p *Adapter) Parse(body []byte) (out models.Parsed) {
	var in post
	if json.Unmarshal(body, &in) != nil && in.Record == "" {
		out.Skipped = []string{"event 1: the post is not a JSON object that can be read"}
		return out
	}
	var ours kind.Ours
	parse.Into(in.Metadata, &ours)
	at := cmp.Or(in.Delivered, in.Bounced, in.Received, in.Changed)
	address := cmp.Or(in.Recipient, in.Email)
	r := kind.Report{
		Name:      in.Record,
		Ours:      ours,
		MessageID: string(in.MessageID),
		Address:   string(address),
		Same:      []string{string(in.Record), string(in.Type), string(in.MessageID), string(at), string(in.Link)},
	}
	if ours == (kind.Ours{}) && len(in.Metadata) < len(`{"a":0}`) {
		r.Lost = "not a mail of ours (it has no metadata)"
	}
	r.Event = models.Event{Kind: events.Kind(string(in.Record))}
	r.At, _ = parse.Time(at)
	if r.Kind == models.Bounced || r.Kind == models.Complained {
		r.ID = string(in.ID)
	}
	switch r.Kind {
	case models.Bounced:
		in.bounce(&r.Event)
	case models.Delivered:
		r.Text = parse.Text(string(in.Details))
	case models.Unsubscribed:
		r.Kind = in.change()
	}
	r.AddTo(&out, 1)
	return out
}

// bounce sets kind and reason of a bounce. Only a type says that the mailbox is invalid.
func (in *post) bounce(ev *models.Event) {
	text := strings.TrimSpace(strings.TrimPrefix(string(in.Details), "smtp;"))
	reply := parse.NewReply("", "", text)
	ev.Status, ev.Enhanced, ev.Text = reply.Code, reply.Enhanced, parse.Text(cmp.Or(text, string(in.Description)))
	ev.BounceClass = parse.Text(string(in.Type))
	known := bounces[string(in.Type)]
	ev.Kind, ev.Reason = known.Kind, known.Reason
	if said := reply.Reason(); ev.Reason == "" && said != models.MailboxInvalid && !ev.Kind.OptsOut() {
		ev.Reason = said
	}
	if ev.Kind.Failure() {
		ev.Reason = cmp.Or(ev.Reason, models.BounceUnknown)
	}
}

// change returns the kind of a change of the suppressions. A bounce has an event of its own. A suppression that the
// customer added holds only at Postmark.
func (in *post) change() models.EventKind {
	switch {
	case in.Suppress != "true":
	case in.Why == "SpamComplaint":
		return models.Complained
	case in.Why == "ManualSuppression" && in.Origin == "Recipient":
		return models.Unsubscribed
	}
	return ""
}
