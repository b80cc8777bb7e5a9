package mailgun

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
)

// kinds maps Mailgun's events. failed is refined by failure. stored (inbound mail) and the
// list_ kinds do not concern a log and are skipped.
var kinds = map[string]models.EventKind{
	"accepted":     models.Processed,
	"delivered":    models.Delivered,
	"failed":       models.Bounced,
	"rejected":     models.Rejected,
	"opened":       models.Opened,
	"clicked":      models.Clicked,
	"unsubscribed": models.Unsubscribed,
	"complained":   models.Complained,
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

// The codes of Mailgun for a server that it cannot reach: no MX record, no connection.
const (
	codeNoMX      = "498"
	codeNoConnect = "499"
)

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
	Message   json.RawMessage `json:"message"`
	Variables json.RawMessage `json:"user-variables"`  // an object; also [], null or a sentence
	Status    json.RawMessage `json:"delivery-status"` // an object or null
	Flags     json.RawMessage `json:"flags"`
	Reject    json.RawMessage `json:"reject"`
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
func (p *Adapter) Parse(body []byte) models.Parsed {
	var e event
	in, err := readPost(body)
	if err != nil {
		return skipped("event 1: " + err.Error())
	}
	if err := json.Unmarshal(in.Event, &e); err != nil {
		return skipped("event 1: there is no event-data that can be read")
	}
	var s signature
	parse.Into(in.Signature, &s)
	if u, ok := e.unnamed(s); ok {
		return models.Parsed{Unnamed: []models.UnnamedEvent{u}}
	}
	ev, why := e.normalise(s)
	if why != "" {
		return skipped("event 1: " + parse.Word(e.Event) + ": " + why)
	}
	return models.Parsed{Events: []models.ParsedEvent{ev}}
}

func skipped(line string) models.Parsed { return models.Parsed{Skipped: []string{line}} }

// normalise translates e. why is not empty if e is not an event of a log.
func (e *event) normalise(sig signature) (models.ParsedEvent, string) {
	kind, ok := kinds[strings.ToLower(string(e.Event))]
	if !ok {
		return models.ParsedEvent{}, "not a kind of event that concerns a log"
	}
	var vars struct {
		Log     parse.Str `json:"sd_log"`
		Attempt parse.Str `json:"sd_attempt"`
	}
	variables, why := e.variables()
	parse.Into(variables, &vars)
	if vars.Log == "" && why != "" {
		return models.ParsedEvent{}, why
	}
	log, attempt, why := parse.Ours(vars.Log, vars.Attempt)
	if why != "" {
		return models.ParsedEvent{}, why
	}
	at, ok := e.at(sig)
	if !ok {
		at = log.Time() // never later than the event
	}
	address := string(e.Recipient)
	ev := e.translate(kind, at, string(vars.Log), string(vars.Attempt), strings.ToLower(address))
	ev.Attempt = attempt
	return models.ParsedEvent{Log: log, Address: address, Event: ev}, ""
}

// unnamed translates an event whose user-variables Mailgun did not send or lost. ok is false
// if e has variables, or no message-id or recipient.
func (e *event) unnamed(sig signature) (u models.UnnamedEvent, ok bool) {
	kind, known := kinds[strings.ToLower(string(e.Event))]
	at, dated := e.at(sig)
	if _, why := e.variables(); !known || !dated || why == "" {
		return u, false
	}
	var m struct {
		Headers struct {
			ID parse.Str `json:"message-id"`
		} `json:"headers"`
	}
	parse.Into(e.Message, &m)
	u.MessageID, u.Address = strings.Trim(string(m.Headers.ID), "<>"), string(e.Recipient)
	u.Event = e.translate(kind, at, u.MessageID, strings.ToLower(u.Address))
	return u, u.MessageID != "" && u.Address != ""
}

// translate returns e without its attempt. mail says which mail it is about.
func (e *event) translate(kind models.EventKind, at time.Time, mail ...string) models.Event {
	ev := models.Event{Kind: kind, At: at}
	var st status
	parse.Into(e.Status, &st)
	if e.ID != "" && len(e.ID) <= 100 {
		ev.ID = string(e.ID) + "@" + ev.At.Format(time.DateOnly)
	} else {
		ev.ID = parse.Hash(append(mail, strings.ToLower(string(e.Event)), string(e.Timestamp), string(e.Severity),
			string(e.Reason), string(e.URL), string(st.Code), string(st.Attempt), string(st.Message),
			string(st.Description))...)
	}
	switch kind {
	case models.Bounced:
		e.failure(&ev, st)
	case models.Rejected:
		e.rejection(&ev)
	case models.Delivered:
		reply := st.reply()
		ev.Status, ev.Enhanced, ev.Text = reply.Code, reply.Enhanced, parse.Text(reply.Text)
	}
	return ev
}

// variables returns the user-variables as an object. They may be an object in a string. If Mailgun
// did not send them, why says how, and the event could only be matched by its message-id.
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

// at returns the time of an event. ok is false if neither the event nor the post has one.
func (e *event) at(sig signature) (t time.Time, ok bool) {
	if t, ok = parse.Time(e.Timestamp); ok {
		return t, true
	}
	if t, err := time.Parse(time.RFC3339Nano, string(e.LoggedAt)); err == nil {
		return t.UTC(), true
	}
	return parse.Time(sig.Timestamp)
}

func (s *status) reply() parse.Reply {
	enhanced, text := string(s.Enhanced), string(s.Message)
	if enhanced == "" {
		enhanced = string(s.Bounce)
	}
	if text == "" {
		text = string(s.Description)
	}
	return parse.NewReply(string(s.Code), enhanced, text)
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
// The last event of a mail that Mailgun gave up was seen with severity temporary, so "old"
// counts with any severity. A delayed bounce is final.
func (e *event) failure(ev *models.Event, st status) {
	var flags struct {
		Delayed parse.Flag `json:"is-delayed-bounce"`
	}
	parse.Into(e.Flags, &flags)
	reply := st.reply()
	ev.Status, ev.Enhanced, ev.Text = reply.Code, reply.Enhanced, parse.Text(reply.Text)
	ev.BounceClass, ev.Async = parse.Text(string(e.Reason)), bool(flags.Delayed)
	why, severity := strings.ToLower(string(e.Reason)), strings.ToLower(string(e.Severity))
	reason, suppressed := suppressions[why]
	if !suppressed {
		reason, suppressed = suppressions[string(st.Code)]
	}
	said := reply.Reason()
	switch {
	case suppressed:
		ev.Kind, ev.Reason = models.Dropped, reason
	case why == "old":
		ev.Reason = models.DeliveryTimeout
		if st.Code == codeNoMX || st.Code == codeNoConnect {
			ev.Reason = models.DNSOrConnect
		}
	case severity == "temporary" && !ev.Async ||
		severity != "permanent" && !ev.Async && !reply.Permanent() && why != "bounce":
		ev.Kind, ev.Reason = models.Deferred, said
		switch {
		case why == "greylisted":
			ev.Reason = models.Greylisted
		case said == "" && (st.Code == codeNoMX || st.Code == codeNoConnect):
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

// rejection sets the reason of a message that Mailgun refused after it had accepted it. It is
// about the provider's account, unless it mentions the content.
func (e *event) rejection(ev *models.Event) {
	var reject struct {
		Reason      parse.Str `json:"reason"`
		Description parse.Str `json:"description"`
	}
	parse.Into(e.Reject, &reject)
	text := strings.TrimSpace(string(reject.Reason) + " " + string(reject.Description))
	if text == "" {
		text = string(e.Reason)
	}
	ev.Text, ev.Reason = parse.Text(text), models.ProviderAccount
	reply := parse.Reply{Code: 550, Text: text}
	if said := reply.Reason(); said == models.PolicyContent || said == models.Virus {
		ev.Reason = said
	}
}
