package mailtrap

import (
	"cmp"
	"encoding/json"
	"regexp"
	"strconv"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
)

// events are Mailtrap's. Webhooks write the names with spaces, settings and logs with '_'. A complaint is also called
// spam_complaint. enqueued is a status in the logs, which proves that Mailtrap has the mail.
var events = kind.Events{
	kind.On("enqueued", "", "", models.Processed),
	kind.On("delivery", "delivery", "Delivery", models.Delivered),
	kind.On("soft_bounce", "soft_bounce", "Soft bounce", models.Deferred),
	kind.On("bounce", "bounce", "Bounce", models.Bounced, models.Blocked),
	kind.On("suspension", "suspension", "Suspension", models.Deferred),
	kind.On("reject", "reject", "Reject", models.Dropped),
	kind.On("spam", "spam_complaint", "Spam complaint", models.Complained),
	kind.On("unsubscribe", "unsubscribe", "Unsubscribe", models.Unsubscribed),
	kind.On("open", "open", "Open", models.Opened),
	kind.On("click", "click", "Click", models.Clicked),
}

// An event is one in a webhook.
type event struct {
	Event     parse.Str       `json:"event"`
	MessageID parse.Str       `json:"message_id"`
	Email     parse.Str       `json:"email"`
	Timestamp parse.Str       `json:"timestamp"`
	Variables json.RawMessage `json:"custom_variables"`
	Category  parse.Str       `json:"bounce_category"`
	Response  parse.Str       `json:"response"`
	Code      parse.Str       `json:"response_code"`
	Reason    parse.Str       `json:"reason"`
}

// Parse implements models.Adapter.
func (p *Adapter) Parse(body []byte) (out models.Parsed) {
	var in struct{ Events []json.RawMessage }
	if json.Unmarshal(body, &in) != nil && in.Events == nil {
		out.Skipped = []string{"event 1: the post is not JSON with a list of events"}
	}
	for i, raw := range in.Events {
		var e event
		if json.Unmarshal(raw, &e) != nil && e.Event == "" {
			out.Skipped = append(out.Skipped, "event "+strconv.Itoa(i+1)+": not a JSON object that can be read")
			continue
		}
		r := e.report()
		r.AddTo(&out, i+1)
	}
	return out
}

// report returns the event. Its ID is made from what webhooks and logs have in common: the logs do not have event_id.
func (e *event) report() kind.Report {
	name := strings.TrimSuffix(strings.ReplaceAll(strings.ToLower(string(e.Event)), " ", "_"), "_complaint")
	r := kind.Report{Name: parse.Str(name), MessageID: string(e.MessageID), Address: string(e.Email)}
	r.Kind = events.Kind(name)
	r.At, _ = parse.Time(e.Timestamp)
	r.ID = parse.Hash(r.MessageID, strings.ToLower(r.Address), name, strconv.FormatInt(r.At.Unix(), 10))
	parse.Into(e.Variables, &r.Ours)
	if len(e.Variables) < len(`{"a":0}`) {
		r.Lost = "not a mail of ours (it has no custom variables)"
	}
	switch {
	case name == "suspension":
		r.Reason, r.Text = models.ProviderAccount, parse.Text(string(e.Reason))
	case r.Kind == models.Dropped:
		r.Reason, r.Text = kind.Dropped(string(e.Reason)), parse.Text(string(e.Reason))
	case r.Kind == models.Bounced || r.Kind == models.Deferred:
		e.bounce(&r.Event)
	}
	return r
}

var wrapped = regexp.MustCompile(`^(soft )?bounced? \((.*)\)$`)

// bounce sets kind and reason of a bounce. A soft one is tried again.
func (e *event) bounce(ev *models.Event) {
	text := strings.TrimSpace(string(e.Response))
	if m := wrapped.FindStringSubmatch(text); m != nil {
		text = m[2]
	}
	reply := parse.NewReply(string(e.Code), "", text)
	ev.Status, ev.Enhanced, ev.Text = reply.Code, reply.Enhanced, parse.Text(text)
	ev.BounceClass = parse.Text(string(e.Category))
	said := reply.Reason()
	if temporary := reply.Code/100 == 4 || strings.HasPrefix(reply.Enhanced, "4."); said == "" && !temporary &&
		e.Category == "invalid_recipient" {
		said = models.MailboxInvalid
	}
	switch ev.Reason = said; {
	case ev.Kind == models.Deferred && said == models.MailboxInvalid:
		ev.Reason = ""
	case ev.Kind == models.Bounced:
		ev.Reason = cmp.Or(said, models.BounceUnknown)
		if said == models.PolicyContent || said == models.PolicyReputation {
			ev.Kind = models.Blocked
		}
	}
}
