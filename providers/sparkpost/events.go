package sparkpost

import (
	"cmp"
	"encoding/json"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
)

// on returns an event that has one name everywhere.
func on(name string, kinds ...models.EventKind) kind.Event {
	return kind.On(name, name, name, kinds...)
}

// events are SparkPost's. Bounces are refined by their class.
var events = kind.Events{
	on("injection", models.Processed),
	on("delivery", models.Delivered),
	on("delay", models.Deferred),
	on("bounce", models.Bounced, models.Blocked, models.Dropped),
	on("out_of_band", models.Bounced, models.Blocked, models.Dropped),
	on("policy_rejection", models.Dropped),
	on("generation_rejection", models.Dropped),
	on("generation_failure", models.Rejected),
	on("spam_complaint", models.Complained),
	on("list_unsubscribe", models.Unsubscribed),
	on("link_unsubscribe", models.Unsubscribed),
	on("open", models.Opened),
	on("click", models.Clicked),
	kind.On("initial_open", "", "", models.Opened),
	kind.On("amp_open", "", "", models.Opened),
	kind.On("amp_initial_open", "", "", models.Opened),
	kind.On("amp_click", "", "", models.Clicked),
}

// classes maps the classes of bounces ("Bounce Classification Codes") to their reasons. For the others the server's
// reply decides.
var classes = map[parse.Str]models.Reason{
	"10": models.MailboxInvalid,
	"21": models.DNSOrConnect,
	"22": models.MailboxFull,
	"23": models.TooLarge,
	"24": models.DeliveryTimeout,
	"30": models.MailboxInvalid,
	"50": models.PolicyReputation,
	"51": models.PolicyReputation,
	"52": models.PolicyContent,
	"53": models.PolicyContent,
	"54": models.PolicyReputation,
}

// adminFailure is the class of mail that the settings of the account refused.
const adminFailure = "25"

// others are the kinds of bounces that are none, by their class. Answers do not concern a log.
var others = map[parse.Str]models.EventKind{"60": "", "80": "", "90": models.Unsubscribed, "100": ""}

// An event is one of a webhook, or of the log.
type event struct {
	Type      parse.Str       `json:"type"`
	ID        parse.Str       `json:"event_id"`
	Time      parse.Str       `json:"timestamp"`
	Sent      parse.Str       `json:"transmission_id"`
	To        parse.Str       `json:"rcpt_to"`
	RawTo     parse.Str       `json:"raw_rcpt_to"`
	Metadata  json.RawMessage `json:"rcpt_meta"`
	Class     parse.Str       `json:"bounce_class"`
	Code      parse.Str       `json:"error_code"`
	Reason    parse.Str       `json:"reason"`
	RawReason parse.Str       `json:"raw_reason"`
}

// Parse implements models.Adapter. A webhook has a list of events, each under the name of its class. One without a
// class is a test.
func (p *Adapter) Parse(body []byte) (out models.Parsed) {
	var list []json.RawMessage
	if json.Unmarshal(body, &list) != nil {
		out.Skipped = []string{"the post is not a list that can be read"}
		return out
	}
	for i, raw := range list {
		var in struct{ Msys map[string]json.RawMessage }
		if json.Unmarshal(raw, &in) != nil || len(in.Msys) == 0 {
			out.Skipped = append(out.Skipped, "an event has no class: it is a test, or cannot be read")
		}
		for _, raw := range in.Msys {
			var e event
			parse.Into(raw, &e)
			e.report().AddTo(&out, i+1)
		}
	}
	return out
}

// report returns the event as a report.
func (in *event) report() *kind.Report {
	r := &kind.Report{
		Name:      in.Type,
		MessageID: string(in.Sent),
		Address:   string(cmp.Or(in.RawTo, in.To)),
		Same:      []string{string(in.Type), string(in.Sent), string(in.Time), string(in.Class)},
	}
	parse.Into(in.Metadata, &r.Ours)
	if r.Ours == (kind.Ours{}) && len(in.Metadata) < len(`{"a":0}`) {
		r.Lost = "not a mail of ours (it has no metadata)"
	}
	r.Event = models.Event{ID: string(in.ID), Kind: events.Kind(string(in.Type)), Async: in.Type == "out_of_band"}
	r.At, _ = parse.Time(in.Time)
	switch r.Kind {
	case models.Delivered, models.Processed, models.Opened, models.Clicked, models.Complained, models.Unsubscribed, "":
	default:
		in.explain(&r.Event)
	}
	return r
}

// explain sets kind and reason of an event that says that a mail was not delivered, or not yet. Only a permanent reply
// may say that the mailbox is invalid. Mail to a suppressed address does not say why that is suppressed: it counts as a
// bounce, and complaints are read from the list.
func (in *event) explain(ev *models.Event) {
	text := string(cmp.Or(in.RawReason, in.Reason))
	reply := parse.NewReply(string(in.Code), "", text)
	ev.Status, ev.Enhanced, ev.Text = reply.Code, reply.Enhanced, parse.Text(text)
	ev.BounceClass = parse.Text(string(in.Class))
	known := classes[in.Class]
	if known == models.MailboxInvalid && (reply.Code/100 == 4 || strings.HasPrefix(reply.Enhanced, "4.")) {
		known = ""
	}
	reason := cmp.Or(known, reply.Reason())
	switch kind, other := others[in.Class]; {
	case ev.Kind == models.Deferred && reason == models.MailboxInvalid:
	case ev.Kind == models.Deferred:
		ev.Reason = reason
	case ev.Kind == models.Bounced && other:
		ev.Kind = kind
	case ev.Kind == models.Rejected:
		ev.Reason = models.ProviderDropped
	case strings.Contains(text, "suppressed due to customer"):
		ev.Kind, ev.Reason = models.Dropped, models.SuppressedBounce
	case ev.Kind == models.Dropped, in.Class == adminFailure:
		ev.Kind, ev.Reason = models.Dropped, models.ProviderDropped
	case known == models.PolicyReputation, known == models.PolicyContent:
		ev.Kind, ev.Reason = models.Blocked, known
	default:
		ev.Reason = cmp.Or(reason, models.BounceUnknown)
	}
}
