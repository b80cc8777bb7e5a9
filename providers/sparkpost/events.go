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

// classes maps the classes of bounces ("Bounce Classification Codes"). Those without a kind are answers that do not
// concern a log. For those without a reason the server's reply decides.
var classes = map[parse.Str]models.Event{
	"1":   {Kind: models.Bounced},
	"10":  {Kind: models.Bounced, Reason: models.MailboxInvalid},
	"20":  {Kind: models.Bounced},
	"21":  {Kind: models.Bounced, Reason: models.DNSOrConnect},
	"22":  {Kind: models.Bounced, Reason: models.MailboxFull},
	"23":  {Kind: models.Bounced, Reason: models.TooLarge},
	"24":  {Kind: models.Bounced, Reason: models.DeliveryTimeout},
	"25":  {Kind: models.Dropped, Reason: models.ProviderDropped},
	"30":  {Kind: models.Bounced, Reason: models.MailboxInvalid},
	"40":  {Kind: models.Bounced},
	"50":  {Kind: models.Blocked, Reason: models.PolicyReputation},
	"51":  {Kind: models.Blocked, Reason: models.PolicyReputation},
	"52":  {Kind: models.Blocked, Reason: models.PolicyContent},
	"53":  {Kind: models.Blocked, Reason: models.PolicyContent},
	"54":  {Kind: models.Blocked, Reason: models.PolicyReputation},
	"60":  {},
	"70":  {Kind: models.Bounced},
	"80":  {},
	"90":  {Kind: models.Unsubscribed},
	"100": {},
}

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
	known, ok := classes[in.Class]
	switch {
	case ev.Kind == models.Bounced && ok:
		ev.Kind, ev.Reason = known.Kind, known.Reason
	case ev.Kind == models.Deferred && known.Kind.Failure():
		ev.Reason = known.Reason
	}
	said := reply.Reason()
	temporary := reply.Code/100 == 4 || strings.HasPrefix(reply.Enhanced, "4.")
	if ev.Kind == models.Deferred || temporary || ev.Kind == models.Dropped {
		if ev.Reason == models.MailboxInvalid {
			ev.Reason = ""
		}
		if said == models.MailboxInvalid {
			said = ""
		}
	}
	switch {
	case (ev.Kind == models.Dropped || ev.Kind == models.Bounced) && strings.Contains(text, "suppressed due to customer"):
		ev.Kind, ev.Reason = models.Dropped, models.SuppressedBounce
	case ev.Kind == models.Dropped, ev.Kind == models.Rejected:
		ev.Reason = models.ProviderDropped
	case ev.Kind.Failure():
		ev.Reason = cmp.Or(ev.Reason, said, models.BounceUnknown)
	case ev.Kind == models.Deferred:
		ev.Reason = cmp.Or(ev.Reason, said)
	}
}
