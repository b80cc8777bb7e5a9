package mailgun

import (
	"bytes"
	"cmp"
	"encoding/json"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
)

// events are Mailgun's. failed is refined by failure. stored (inbound mail) and the list_ kinds do not concern a log.
var events = kind.Events{
	kind.On("accepted", "accepted", "Accepted", models.Processed),
	kind.On("clicked", "clicked", "Clicks", models.Clicked),
	kind.On("complained", "complained", "Spam Complaints", models.Complained),
	kind.On("delivered", "delivered", "Delivered Messages", models.Delivered),
	kind.On("opened", "opened", "Opened Messages", models.Opened),
	kind.On("failed", "permanent_fail", "Permanent Failure", models.Bounced, models.Blocked, models.Dropped),
	kind.On("", "temporary_fail", "Temporary Failure", models.Deferred),
	kind.On("unsubscribed", "unsubscribed", "Unsubscribes", models.Unsubscribed),
	kind.On("rejected", "", "", models.Rejected),
}

// suppressions maps the reasons of failures that Mailgun decides without an attempt, and their
// codes, in case the reason is another word.
var suppressions = map[string]models.Reason{
	"suppress-bounce":      models.SuppressedBounce,
	"suppress-complaint":   models.SuppressedComplaint,
	"suppress-unsubscribe": models.SuppressedUnsubscribe,
	"605":                  models.SuppressedBounce,
	"606":                  models.SuppressedUnsubscribe,
	"607":                  models.SuppressedComplaint,
}

// An event is the event-data of a post. Any field but event and timestamp may be missing, and
// types vary.
type event struct {
	Event     parse.Str       `json:"event"`
	ID        parse.Str       `json:"id"` // unique within a day
	Timestamp parse.Str       `json:"timestamp"`
	LoggedAt  parse.Str       `json:"@timestamp"` // RFC 3339; the Logs API has it instead of timestamp
	Severity  parse.Str       `json:"severity"`
	Reason    parse.Str       `json:"reason"`
	URL       parse.Str       `json:"url"`
	Recipient parse.Str       `json:"recipient"`
	Variables json.RawMessage `json:"user-variables"` // an object; also [], null or a sentence
	Status    status          `json:"delivery-status"`
	Message   struct {
		Headers struct {
			ID parse.Str `json:"message-id"`
		} `json:"headers"`
	} `json:"message"`
	Flags struct {
		Delayed parse.Str `json:"is-delayed-bounce"`
	} `json:"flags"`
	Reject struct {
		Reason      parse.Str `json:"reason"`
		Description parse.Str `json:"description"`
	} `json:"reject"`
}

type status struct {
	Code        parse.Str `json:"code"`
	Message     parse.Str `json:"message"`     // the receiving server's words
	Description parse.Str `json:"description"` // Mailgun's
	Attempt     parse.Str `json:"attempt-no"`
	Enhanced    parse.Str `json:"enhanced-code"`
	Bounce      parse.Str `json:"bounce-code"`
}

// Parse implements models.Adapter. A post holds one event.
func (p *Adapter) Parse(body []byte) (out models.Parsed) {
	e, s, err := readPost(body)
	if err != nil {
		out.Skipped = []string{"event 1: " + err.Error()}
		return out
	}
	r := e.report(s)
	r.AddTo(&out, 1)
	return out
}

// report translates e, an event of a post with a signature.
func (e *event) report(s signature) kind.Report {
	variables, why := e.variables()
	r := kind.Report{Name: e.Event, Lost: why, Address: string(e.Recipient), Daily: true}
	parse.Into(variables, &r.Ours)
	r.MessageID = strings.Trim(string(e.Message.Headers.ID), "<>")
	r.Same = []string{strings.ToLower(string(e.Event)), string(e.Timestamp), string(e.Severity), string(e.Reason),
		string(e.URL), string(e.Status.Code), string(e.Status.Attempt), string(e.Status.Message),
		string(e.Status.Description)}
	r.Event = models.Event{ID: string(e.ID), Kind: events.Kind(string(e.Event)), At: e.at(s)}
	switch r.Kind {
	case models.Bounced:
		e.failure(&r.Event)
	case models.Rejected:
		e.rejection(&r.Event)
	case models.Delivered:
		reply := e.Status.reply()
		r.Status, r.Enhanced, r.Text = reply.Code, reply.Enhanced, parse.Text(reply.Text)
	}
	return r
}

// variables returns the user-variables as an object, which may be in a string. If they are lost, why says how.
func (e *event) variables() (object json.RawMessage, why string) {
	raw := bytes.TrimSpace(e.Variables)
	if len(raw) > 0 && raw[0] == '"' {
		var text string
		if json.Unmarshal(raw, &text) == nil {
			raw = bytes.TrimSpace([]byte(text))
		}
		if !json.Valid(raw) {
			return nil, "Mailgun could not load its user-variables, so that its log is not known"
		}
	}
	if len(raw) > 2 && raw[0] == '{' {
		return raw, ""
	}
	return nil, "not a mail of ours, or Mailgun lost its user-variables (there are none)"
}

// at returns the time of an event; zero: neither the event nor the post has one.
func (e *event) at(s signature) (t time.Time) {
	for _, text := range [3]parse.Str{e.Timestamp, e.LoggedAt, s.Timestamp} {
		if t, ok := parse.Time(text); ok {
			return t
		}
	}
	return t
}

func (s *status) reply() parse.Reply {
	enhanced, text := cmp.Or(s.Enhanced, s.Bounce), cmp.Or(s.Message, s.Description)
	return parse.NewReply(string(s.Code), string(enhanced), string(text))
}

// failure sets kind and reason of a failure.
//
//	reason       severity   kind      reason
//	suppress-*   any        dropped   provider_suppressed_*
//	old          any        bounced   codes 498 and 499: dns_or_connect; else delivery_timeout
//	bounce       permanent  bounced   by reply; else mailbox_invalid
//	generic      permanent  bounced   by reply; else bounce_unknown
//	             permanent  blocked   if the reply is about policy
//	any          temporary  deferred  by reply
//
// "old" counts with any severity: it was seen as temporary at the end. A delayed bounce is final.
func (e *event) failure(ev *models.Event) {
	reply := e.Status.reply()
	ev.Status, ev.Enhanced, ev.Text = reply.Code, reply.Enhanced, parse.Text(reply.Text)
	ev.BounceClass, ev.Async = parse.Text(string(e.Reason)), e.Flags.Delayed == "true"
	why, severity := strings.ToLower(string(e.Reason)), strings.ToLower(string(e.Severity))
	reason, suppressed := suppressions[why]
	if !suppressed {
		reason, suppressed = suppressions[string(e.Status.Code)]
	}
	said, unreachable := reply.Reason(), e.Status.Code == "498" || e.Status.Code == "499" // no MX record, no connection
	switch {
	case suppressed:
		ev.Kind, ev.Reason = models.Dropped, reason
	case why == "old":
		ev.Reason = models.DeliveryTimeout
		if unreachable {
			ev.Reason = models.DNSOrConnect
		}
	case severity == "temporary" && !ev.Async ||
		severity != "permanent" && !ev.Async && !reply.Permanent() && why != "bounce":
		ev.Kind, ev.Reason = models.Deferred, said
		switch {
		case why == "greylisted":
			ev.Reason = models.Greylisted
		case said == "" && unreachable:
			ev.Reason = models.DNSOrConnect
		}
	case said == models.PolicyReputation || said == models.PolicyContent:
		ev.Kind, ev.Reason = models.Blocked, said
	case said != "":
		ev.Reason = said
	case why == "bounce":
		ev.Reason = models.MailboxInvalid
	default:
		ev.Reason = models.BounceUnknown
	}
}

// rejection sets the reason of a message that was refused later: the account, unless it mentions the content.
func (e *event) rejection(ev *models.Event) {
	text := cmp.Or(strings.TrimSpace(string(e.Reject.Reason+" "+e.Reject.Description)), string(e.Reason))
	ev.Text, ev.Reason = parse.Text(text), models.ProviderAccount
	reply := parse.Reply{Code: 550, Text: text}
	if said := reply.Reason(); said == models.PolicyContent || said == models.Virus {
		ev.Reason = said
	}
}
