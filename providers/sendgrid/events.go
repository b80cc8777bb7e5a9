package sendgrid

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
)

// events are SendGrid's. bounce is refined by its type. group_resubscribe and account events do not concern a log and
// are skipped.
var events = kind.Events{
	kind.On("processed", "processed", "Processed", models.Processed),
	kind.On("dropped", "dropped", "Dropped", models.Dropped),
	kind.On("deferred", "deferred", "Deferred", models.Deferred),
	kind.On("delivered", "delivered", "Delivered", models.Delivered),
	kind.On("bounce", "bounce", "Bounced", models.Bounced, models.Blocked),
	kind.On("blocked", "", "", models.Blocked), // seen as an event name in old samples
	kind.On("open", "open", "Opened", models.Opened),
	kind.On("click", "click", "Clicked", models.Clicked),
	kind.On("spamreport", "spam_report", "Spam Reports", models.Complained),
	kind.On("unsubscribe", "unsubscribe", "Unsubscribes and Group Unsubscribes", models.Unsubscribed),
	kind.On("group_unsubscribe", "group_unsubscribe", "", models.Unsubscribed),
}

// dropReasons maps the beginning of the reason or the type of a dropped event, in lower case. The first one counts.
var dropReasons = []struct {
	prefix string
	reason models.Reason
}{
	{"bounced address", models.SuppressedBounce},
	{"spam reporting address", models.SuppressedComplaint},
	{"unsubscribed address", models.SuppressedUnsubscribe},
	{"invalid smtpapi header", models.InvalidRequest},
	{"invalid", models.MailboxInvalid},
	{"spam content", models.PolicyContent},
	{"recipient list over package quota", models.ProviderAccount},
}

// bounceReasons maps SendGrid's bounce classification, in lower case. For Technical Failure,
// Unclassified and unknown ones the server's reply decides.
var bounceReasons = map[string]models.Reason{
	"invalid address":              models.MailboxInvalid,
	"mailbox unavailable":          models.MailboxFull,
	"content":                      models.PolicyContent,
	"reputation":                   models.PolicyReputation,
	"frequency or volume too high": models.RateLimited,
}

// expired matches the reason of a mail that SendGrid gave up after 72 hours.
var expired = regexp.MustCompile(`(?i)^\s*bounced\W+expired`)

// An event is an element of a post. Any field but email, timestamp and event may be missing,
// and types vary.
type event struct {
	Event          parse.Str `json:"event"`
	Timestamp      parse.Str `json:"timestamp"`
	Email          parse.Str `json:"email"`
	ID             parse.Str `json:"sg_event_id"`
	MessageID      parse.Str `json:"sg_message_id"`
	SMTPID         parse.Str `json:"smtp-id"`
	Reason         parse.Str `json:"reason"`
	Response       parse.Str `json:"response"`
	Status         parse.Str `json:"status"`
	Type           parse.Str `json:"type"`
	Classification parse.Str `json:"bounce_classification"`
	Try            parse.Str `json:"attempt"`
	URL            parse.Str `json:"url"`
	kind.Ours

	Args json.RawMessage `json:"custom_args"` // where the Email Logs API has the arguments
}

// Parse implements models.Adapter. It splits the array before it reads the elements, so that
// a broken element loses only itself.
func (p *Adapter) Parse(body []byte) (out models.Parsed) {
	n := 0
	skip := func(why string) { out.Skipped = append(out.Skipped, fmt.Sprintf("event %d: %s", n, why)) }
	whole := elements(body, func(raw []byte) {
		n++
		var e event
		if json.Unmarshal(raw, &e) != nil {
			skip("not a JSON object that can be read")
			return
		}
		r := e.report()
		r.AddTo(&out, n)
	})
	if !whole {
		n++
		skip("the post is no complete JSON array")
	}
	return out
}

// elements calls each for every element of a JSON array and reports whether it was complete. It looks only at brackets
// and quotes, so that an element that is no JSON does not hide the next one.
func elements(body []byte, each func([]byte)) (whole bool) {
	body, ok := bytes.CutPrefix(bytes.TrimSpace(body), []byte("["))
	if !ok {
		return false
	}
	from, depth, quoted := 0, 0, false
	give := func(to int) {
		if s := bytes.TrimSpace(body[from:to]); len(s) > 0 {
			each(s)
		}
		from = to + 1
	}
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
		case (c == '}' || c == ']') && depth > 0:
			depth--
		case c == ']':
			give(i)
			return from == len(body)
		case c == ',' && depth == 0:
			give(i)
		}
	}
	return false
}

// report translates e. An asynchronous bounce may come without custom arguments (sendgrid/docs #5177).
func (e *event) report() kind.Report {
	parse.Into(e.Args, &e.Ours)
	r := kind.Report{
		Name:      e.Event,
		Ours:      e.Ours,
		MessageID: e.requestID(),
		Address:   string(e.Email),
		Same: []string{string(e.Event), string(e.Timestamp), string(e.Try), string(e.URL), string(e.Reason),
			string(e.Response), string(e.Status)},
	}
	if e.Ours == (kind.Ours{}) {
		r.Lost = "not a mail of ours (no sd_log)"
	}
	text := string(cmp.Or(e.Reason, e.Response))
	at, _ := parse.Time(e.Timestamp)
	r.Event = models.Event{ID: string(e.ID), Kind: events.Kind(string(e.Event)), At: at, Text: parse.Text(text)}
	switch r.Kind {
	case models.Opened, models.Clicked, models.Processed, "":
		return r
	}
	reply := parse.NewReply("", string(e.Status), text)
	r.Status, r.Enhanced = reply.Code, reply.Enhanced
	switch r.Kind {
	case models.Bounced, models.Blocked:
		e.bounce(&r.Event, reply)
	case models.Dropped:
		r.Reason = e.dropped(&r.Event)
	case models.Deferred:
		r.Reason = reply.Reason()
	}
	return r
}

// requestID returns the X-Message-Id of a mail: sg_message_id up to the first dot, or the local part of smtp-id.
func (e *event) requestID() string {
	if id, _, _ := strings.Cut(string(e.MessageID), "."); id != "" {
		return id
	}
	id, _, _ := strings.Cut(strings.TrimPrefix(string(e.SMTPID), "<"), "@")
	return id
}

// bounce sets kind and reason of a bounce.
//
//	type     kind     reason
//	bounce   bounced  5.1.x: mailbox_invalid; by classification; by reply
//	blocked  blocked  by classification, by reply; never mailbox_invalid: the address is not on SendGrid's list
//	expired  bounced  delivery_timeout
func (e *event) bounce(ev *models.Event, reply parse.Reply) {
	ev.BounceClass = parse.Text(string(e.Classification))
	ev.Async = e.MessageID == "" && e.SMTPID == ""
	said, reason := reply.Reason(), bounceReasons[strings.ToLower(string(e.Classification))]
	switch kind := strings.ToLower(string(e.Type)); {
	case kind == "expired" || expired.MatchString(string(e.Reason)):
		ev.Reason = models.DeliveryTimeout
	case kind == "blocked" || ev.Kind == models.Blocked:
		ev.Kind = models.Blocked
		if reason == models.MailboxInvalid {
			reason = ""
		}
		if said == models.MailboxInvalid {
			said = ""
		}
		ev.Reason = cmp.Or(reason, said, models.PolicyReputation)
	case said == models.MailboxInvalid && strings.HasPrefix(reply.Enhanced, "5.1."):
		ev.Reason = models.MailboxInvalid
	default:
		ev.Reason = cmp.Or(reason, said, models.BounceUnknown)
	}
}

// dropped returns the reason of a dropped event and sets its text.
func (e *event) dropped(ev *models.Event) models.Reason {
	for _, s := range [2]parse.Str{e.Reason, e.Type} {
		text := strings.ToLower(strings.TrimSpace(string(s)))
		for _, d := range dropReasons {
			if strings.HasPrefix(text, d.prefix) {
				ev.Text = cmp.Or(ev.Text, parse.Text(string(s)))
				return d.reason
			}
		}
	}
	ev.Text = cmp.Or(ev.Text, parse.Text(string(e.Type)))
	return models.ProviderDropped
}
