package sendgrid

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
)

// kinds maps SendGrid's events. bounce is refined by its type. group_resubscribe and account
// events do not concern a log and are skipped.
var kinds = map[string]models.EventKind{
	"processed":         models.Processed,
	"delivered":         models.Delivered,
	"deferred":          models.Deferred,
	"bounce":            models.Bounced,
	"blocked":           models.Blocked, // seen as an event name in old samples
	"dropped":           models.Dropped,
	"open":              models.Opened,
	"click":             models.Clicked,
	"spamreport":        models.Complained,
	"unsubscribe":       models.Unsubscribed,
	"group_unsubscribe": models.Unsubscribed,
}

// dropReasons maps the reason of a dropped event, in lower case. The first prefix of the
// text counts. The text may be in reason or in type.
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
	Attempt        parse.Str `json:"attempt"`
	URL            parse.Str `json:"url"`
	Log            parse.Str `json:"sd_log"`
	SDAttempt      parse.Str `json:"sd_attempt"`
}

// Parse implements models.Adapter. It splits the array before it reads the elements, so that
// a broken element loses only itself.
//
// An asynchronous bounce may come without custom arguments (sendgrid/docs #5177).
func (p *Adapter) Parse(body []byte) models.Parsed {
	var out models.Parsed
	i := 0
	skip := func(format string, args ...any) {
		out.Skipped = append(out.Skipped, fmt.Sprintf("event %d: ", i)+fmt.Sprintf(format, args...))
	}
	whole := elements(body, func(raw []byte) {
		i++
		var e event
		if err := json.Unmarshal(raw, &e); err != nil {
			skip("not a JSON object that can be read")
			return
		}
		if u, ok := e.unnamed(); ok {
			out.Unnamed = append(out.Unnamed, u)
			return
		}
		ev, why := e.normalise()
		if why != "" {
			skip("%s: %s", parse.Word(e.Event), why)
			return
		}
		out.Events = append(out.Events, ev)
	})
	if !whole {
		i++
		skip("the post is no complete JSON array")
	}
	return out
}

// elements calls each for every element of a JSON array and reports whether the array was
// complete. It looks only at brackets and quotes, so that an element that is no JSON does not
// hide the next one.
func elements(body []byte, each func([]byte)) (whole bool) {
	n := 0
	for n < len(body) && space(body[n]) {
		n++
	}
	if n == len(body) || body[n] != '[' {
		return false
	}
	from, depth, quoted := n+1, 0, false
	give := func(to int) {
		if s := trim(body[from:to]); len(s) > 0 {
			each(s)
		}
		from = to + 1
	}
	for i := n + 1; i < len(body); i++ {
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
			return len(trim(body[from:])) == 0
		case c == ',' && depth == 0:
			give(i)
		}
	}
	return false
}

func space(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' }

func trim(b []byte) []byte {
	for len(b) > 0 && space(b[0]) {
		b = b[1:]
	}
	for len(b) > 0 && space(b[len(b)-1]) {
		b = b[:len(b)-1]
	}
	return b
}

// normalise translates e. why is not empty if e is not an event of a log.
func (e *event) normalise() (models.ParsedEvent, string) {
	kind, ok := kinds[strings.ToLower(string(e.Event))]
	if !ok {
		return models.ParsedEvent{}, "not a kind of event that concerns a log"
	}
	log, attempt, why := parse.Ours(e.Log, e.SDAttempt)
	if why != "" {
		return models.ParsedEvent{}, why
	}
	ev := e.translate(kind)
	ev.Attempt = attempt
	if ev.At.IsZero() {
		ev.At = log.Time() // never later than the event
	}
	return models.ParsedEvent{Log: log, Address: string(e.Email), Event: ev}, ""
}

// unnamed translates an event without our custom arguments. ok is false if e has them, or
// nothing else that says which mail it is about.
func (e *event) unnamed() (u models.UnnamedEvent, ok bool) {
	kind, ok := kinds[strings.ToLower(string(e.Event))]
	if !ok || e.Log != "" || e.SDAttempt != "" {
		return u, false
	}
	id := e.requestID()
	if e.Email == "" || id == "" && kind != models.Bounced && kind != models.Blocked {
		return u, false
	}
	u = models.UnnamedEvent{MessageID: id, Address: string(e.Email), Event: e.translate(kind)}
	return u, !u.Event.At.IsZero()
}

// requestID returns the X-Message-Id of the request that a mail was sent with: sg_message_id
// up to the first dot, or the local part of smtp-id.
func (e *event) requestID() string {
	if id, _, _ := strings.Cut(string(e.MessageID), "."); id != "" {
		return id
	}
	id, _, _ := strings.Cut(strings.TrimPrefix(string(e.SMTPID), "<"), "@")
	return id
}

// translate returns e without its attempt. The time is zero if e has none.
func (e *event) translate(kind models.EventKind) models.Event {
	at, _ := parse.Time(e.Timestamp)
	ev := models.Event{
		ID:   string(e.ID),
		Kind: kind,
		At:   at,
	}
	if ev.ID == "" || len(ev.ID) > 100 {
		mail := []string{string(e.Log), string(e.SDAttempt), strings.ToLower(string(e.Email))}
		if e.Log == "" {
			mail = []string{e.requestID(), strings.ToLower(string(e.Email))}
		}
		ev.ID = parse.Hash(append(mail, string(e.Event), string(e.Timestamp), string(e.Attempt), string(e.URL),
			string(e.Reason), string(e.Response), string(e.Status))...)
	}
	text := string(e.Reason)
	if text == "" {
		text = string(e.Response)
	}
	ev.Text = parse.Text(text)
	if kind == models.Opened || kind == models.Clicked || kind == models.Processed {
		return ev
	}
	reply := parse.NewReply("", string(e.Status), text)
	ev.Status, ev.Enhanced = reply.Code, reply.Enhanced
	switch kind {
	case models.Bounced, models.Blocked:
		e.bounce(&ev, reply)
	case models.Dropped:
		ev.Reason = e.dropped(&ev)
	case models.Deferred:
		ev.Reason = reply.Reason()
	}
	return ev
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
	kind := strings.ToLower(string(e.Type))
	said := reply.Reason()
	reason, known := bounceReasons[strings.ToLower(string(e.Classification))]
	switch {
	case kind == "expired" || expired.MatchString(string(e.Reason)):
		ev.Reason = models.DeliveryTimeout
	case kind == "blocked" || ev.Kind == models.Blocked:
		ev.Kind = models.Blocked
		switch {
		case known && reason != models.MailboxInvalid:
			ev.Reason = reason
		case said != "" && said != models.MailboxInvalid:
			ev.Reason = said
		default:
			ev.Reason = models.PolicyReputation
		}
	case said == models.MailboxInvalid && strings.HasPrefix(reply.Enhanced, "5.1."):
		ev.Reason = models.MailboxInvalid
	case known:
		ev.Reason = reason
	case said != "":
		ev.Reason = said
	default:
		ev.Reason = models.BounceUnknown
	}
}

// dropped returns the reason of a dropped event and sets its text.
func (e *event) dropped(ev *models.Event) models.Reason {
	for _, s := range [2]parse.Str{e.Reason, e.Type} {
		text := strings.ToLower(strings.TrimSpace(string(s)))
		for _, d := range dropReasons {
			if strings.HasPrefix(text, d.prefix) {
				if ev.Text == "" {
					ev.Text = parse.Text(string(s))
				}
				return d.reason
			}
		}
	}
	if ev.Text == "" {
		ev.Text = parse.Text(string(e.Type))
	}
	return models.ProviderDropped
}
