package smtp2go

import (
	"bytes"
	"cmp"
	"encoding/json"
	"net/url"
	"strconv"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
)

// events are SMTP2GO's. It reports no deferral, and each bounce is final. resubscribe concerns no log.
var events = kind.Events{
	kind.On("processed", "processed", "Processed", models.Processed),
	kind.On("delivered", "delivered", "Delivered", models.Delivered),
	kind.On("bounce", "bounce", "Bounce", models.Bounced, models.Blocked),
	kind.On("reject", "reject", "Reject", models.Dropped),
	kind.On("spam", "spam", "Spam", models.Complained),
	kind.On("unsubscribe", "unsubscribe", "Unsubscribe", models.Unsubscribed),
	kind.On("open", "open", "Open", models.Opened),
	kind.On("click", "click", "Click", models.Clicked),
}

// others are the names of events in the activity, and names that were seen in webhooks.
var others = map[parse.Str]parse.Str{"soft-bounced": "bounce", "hard-bounced": "bounce", "rejected": "reject",
	"spam_complaint": "spam", "unsubscribed": "unsubscribe", "opened": "open", "clicked": "click"}

// types are those of bounces in the words of Amazon SES.
var types = map[parse.Str]parse.Str{"hard": "Permanent", "soft": "Transient"}

// A post is a webhook, with one event. The case of names does not matter.
type post struct {
	Event      parse.Str
	Time       parse.Str
	To         parse.Str       `json:"rcpt"`
	Recipients json.RawMessage // if it is about all: one, or a list
	ID         parse.Str       `json:"email_id"`
	Bounce     parse.Str
	Message    parse.Str
	Context    parse.Str
	fields
}

// fields are our header fields, as they come back.
type fields struct {
	Log     parse.Str `json:"X-Sd-Log"`
	Attempt parse.Str `json:"X-Sd-Attempt"`
}

// Parse implements models.Adapter. A webhook is a form, or a JSON object.
func (p *Adapter) Parse(body []byte) (out models.Parsed) {
	if !bytes.HasPrefix(bytes.TrimSpace(body), []byte("{")) {
		form, _ := url.ParseQuery(string(body)) // as far as it can be read
		out := map[string]any{}
		for name, values := range form {
			out[name] = values[0]
		}
		out["recipients"] = form["recipients"]
		body, _ = kind.JSON(out)
	}
	var in post
	if json.Unmarshal(body, &in) != nil && in.Event == "" || in.Event == "" {
		out.Skipped = []string{"event 1: the post is neither a form nor a JSON object with an event"}
		return out
	}
	list := []parse.Str{in.To}
	if in.To == "" {
		parse.Into(in.Recipients, &list[0])
		parse.Into(in.Recipients, &list)
	}
	for _, to := range list {
		r := in.report(string(to))
		r.AddTo(&out, 1)
	}
	return out
}

// report returns the event of a recipient. Its ID is made of what webhooks and the activity have in common.
func (in *post) report(to string) kind.Report {
	name := cmp.Or(others[in.Event], in.Event)
	r := kind.Report{Name: name, Ours: kind.Ours{Log: in.Log, Attempt: in.Attempt}, MessageID: string(in.ID), Address: to}
	if r.Ours == (kind.Ours{}) {
		r.Lost = "not a mail of ours (it has no field " + logField + ")"
	}
	r.Kind = events.Kind(string(name))
	r.At, _ = parse.Time(in.Time)
	r.Same = []string{string(name), string(types[in.Bounce]), strconv.FormatInt(r.At.Unix(), 10)}
	text := strings.TrimSpace(string(cmp.Or(in.Message, in.Context)))
	switch r.Kind {
	case models.Bounced:
		b := kind.Bounce{Type: types[in.Bounce], Server: parse.Str(text)}
		if reply := parse.NewReply("", "", text); reply.Code/100 == 4 || strings.HasPrefix(reply.Enhanced, "4.") {
			b.Type = types["soft"] // a temporary reply says nothing about the mailbox
		}
		b.Explain(&r.Event, "", models.BounceUnknown)
		r.BounceClass = parse.Text(string(in.Bounce))
	case models.Dropped:
		r.Reason, r.Text = kind.Dropped(string(in.Message+" "+in.Context)), parse.Text(text)
	case models.Delivered:
		r.Text = parse.Text(text)
	}
	return r
}
