package resend

import (
	"bytes"
	"cmp"
	"encoding/json"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
)

// events are Resend's. bounced is refined by its type. email.scheduled, email.received and those about contacts and
// domains do not concern a log and are skipped.
var events = kind.Events{
	kind.On("email.sent", "email.sent", "email.sent", models.Processed),
	kind.On("email.delivered", "email.delivered", "email.delivered", models.Delivered),
	kind.On("email.delivery_delayed", "email.delivery_delayed", "email.delivery_delayed", models.Deferred),
	kind.On("email.bounced", "email.bounced", "email.bounced", models.Bounced, models.Blocked),
	kind.On("email.suppressed", "email.suppressed", "email.suppressed", models.Dropped),
	kind.On("email.failed", "email.failed", "email.failed", models.Rejected),
	kind.On("email.opened", "email.opened", "email.opened", models.Opened),
	kind.On("email.clicked", "email.clicked", "email.clicked", models.Clicked),
	kind.On("email.complained", "email.complained", "email.complained", models.Complained),
}

// reasons maps the sub types of bounces, which are those of Amazon SES. For General and Undetermined the server's reply
// decides.
var reasons = map[string]models.Reason{
	"noemail":                  models.MailboxInvalid,
	"mailboxfull":              models.MailboxFull,
	"messagetoolarge":          models.TooLarge,
	"contentrejected":          models.PolicyContent,
	"attachmentrejected":       models.PolicyContent,
	"suppressed":               models.SuppressedBounce,
	"onaccountsuppressionlist": models.SuppressedBounce,
	"unsubscribedrecipient":    models.SuppressedUnsubscribe,
	"customtimeoutexceeded":    models.DeliveryTimeout,
	"previous_bounce":          models.SuppressedBounce,
	"previous_complaint":       models.SuppressedComplaint,
}

// A post is a webhook, with one event.
type post struct {
	Type    parse.Str `json:"type"`
	Created parse.Str `json:"created_at"`
	Data    struct {
		ID         parse.Str       `json:"email_id"`
		To         json.RawMessage `json:"to"`   // a list, or one address
		Tags       json.RawMessage `json:"tags"` // an object; once a list
		Bounce     trouble         `json:"bounce"`
		Suppressed trouble         `json:"suppressed"`
		Failed     trouble         `json:"failed"`
		Click      struct {
			Link parse.Str `json:"link"`
			At   parse.Str `json:"timestamp"`
		} `json:"click"`
	} `json:"data"`
}

// A trouble is why a mail was not delivered.
type trouble struct {
	Type       parse.Str       `json:"type"`
	SubType    parse.Str       `json:"subType"`
	Reason     parse.Str       `json:"reason"`
	Message    parse.Str       `json:"message"`
	Diagnostic json.RawMessage `json:"diagnosticCode"` // a list
}

// Parse implements models.Adapter.
func (p *Adapter) Parse(body []byte) (out models.Parsed) {
	var in post
	if json.Unmarshal(body, &in) != nil && in.Type == "" {
		out.Skipped = []string{"event 1: the post is not a JSON object that can be read"}
		return out
	}
	d, tags := &in.Data, tagsOf(in.Data.Tags)
	r := kind.Report{
		Name:      in.Type[strings.LastIndexByte(string(in.Type), '.')+1:],
		Log:       tags[kind.LogKey],
		Attempt:   tags[kind.AttemptKey],
		MessageID: string(d.ID),
		Address:   first(d.To),
		Same:      []string{string(in.Type), string(d.ID), string(in.Created), string(d.Click.Link), string(d.Click.At)},
	}
	if len(tags) == 0 {
		r.Lost = "not a mail of ours (it has no tags)"
	}
	r.Kind = events.Kind(string(in.Type))
	r.At, _ = parse.Time(in.Created)
	switch r.Kind {
	case models.Bounced:
		d.Bounce.explain(&r.Event)
	case models.Dropped:
		d.Suppressed.explain(&r.Event)
		if r.Reason == models.BounceUnknown {
			r.Reason = models.ProviderDropped
		}
	case models.Rejected:
		r.Text, r.Reason = parse.Text(string(d.Failed.Reason)), models.ProviderDropped
		if strings.Contains(string(d.Failed.Reason), "quota") {
			r.Reason = models.ProviderAccount
		}
	}
	r.AddTo(&out, 1)
	return out
}

// explain sets kind and reason of an event that says that a mail was not delivered. Only a permanent one may say that
// the mailbox is invalid.
func (t *trouble) explain(ev *models.Event) {
	text := strings.TrimSpace(strings.TrimPrefix(first(t.Diagnostic), "smtp;"))
	reply := parse.NewReply("", "", text)
	ev.Status, ev.Enhanced, ev.Text = reply.Code, reply.Enhanced, parse.Text(cmp.Or(text, string(t.Message)))
	ev.BounceClass = parse.Text(strings.TrimSpace(string(t.Type + " " + t.SubType)))
	said := reply.Reason()
	if strings.Contains(string(t.Message), "suppressed sending") { // all that old posts say
		said = models.SuppressedBounce
	}
	permanent := strings.EqualFold(string(t.Type), "Permanent")
	if said == models.MailboxInvalid && !permanent {
		said = ""
	}
	ev.Reason = cmp.Or(reasons[strings.ToLower(string(cmp.Or(t.Reason, t.SubType)))], said)
	if ev.Reason == "" && permanent {
		ev.Reason = models.MailboxInvalid
	}
	switch ev.Reason {
	case models.SuppressedBounce, models.SuppressedComplaint, models.SuppressedUnsubscribe:
		ev.Kind = models.Dropped
	case models.PolicyContent, models.PolicyReputation:
		ev.Kind = models.Blocked
	case "":
		ev.Reason = models.BounceUnknown
	}
}

// tagsOf returns tags by name, from an object or a list of names and values.
func tagsOf(raw json.RawMessage) map[string]parse.Str {
	out := map[string]parse.Str{}
	var list []struct {
		Name  string    `json:"name"`
		Value parse.Str `json:"value"`
	}
	if bytes.HasPrefix(raw, []byte("[")) {
		parse.Into(raw, &list)
	} else {
		parse.Into(raw, &out)
	}
	for _, tag := range list {
		out[tag.Name] = tag.Value
	}
	return out
}

// first returns the first text of a list, or the only one. Of an address with a name it is the address.
func first(raw json.RawMessage) (text string) {
	var list []parse.Str
	if bytes.HasPrefix(raw, []byte("[")) {
		parse.Into(raw, &list)
	} else {
		var one parse.Str
		parse.Into(raw, &one)
		list = append(list, one)
	}
	if len(list) > 0 {
		text = string(list[0])
	}
	if _, address, ok := strings.Cut(strings.TrimSuffix(text, ">"), " <"); ok && strings.HasSuffix(text, ">") {
		return address
	}
	return text
}
