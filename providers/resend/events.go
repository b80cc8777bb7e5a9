package resend

import (
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

// suppressed maps the reasons of suppressions.
var suppressed = map[parse.Str]models.Reason{
	"previous_bounce":    models.SuppressedBounce,
	"previous_complaint": models.SuppressedComplaint,
}

// A post is a webhook, with one event.
type post struct {
	Type    parse.Str `json:"type"`
	Created parse.Str `json:"created_at"`
	Data    struct {
		ID         parse.Str            `json:"email_id"`
		To         []parse.Str          `json:"to"`
		Tags       map[string]parse.Str `json:"tags"`
		Bounce     trouble              `json:"bounce"`
		Suppressed trouble              `json:"suppressed"`
		Failed     trouble              `json:"failed"`
		Click      struct{ Link, Timestamp parse.Str }
	} `json:"data"`
}

// A trouble is why a mail was not delivered.
type trouble struct {
	Type, SubType, Reason, Message parse.Str
	DiagnosticCode                 []parse.Str
}

// Parse implements models.Adapter.
func (p *Adapter) Parse(body []byte) (out models.Parsed) {
	var in post
	if json.Unmarshal(body, &in) != nil && in.Type == "" {
		out.Skipped = []string{"event 1: the post is not a JSON object that can be read"}
		return out
	}
	d := &in.Data
	r := kind.Report{
		Name:      in.Type[strings.LastIndexByte(string(in.Type), '.')+1:],
		Ours:      kind.Ours{Log: d.Tags[kind.LogKey], Attempt: d.Tags[kind.AttemptKey]},
		MessageID: string(d.ID),
		Address:   first(d.To),
		Same:      []string{string(in.Type), string(d.ID), string(in.Created), string(d.Click.Link + d.Click.Timestamp)},
	}
	if len(d.Tags) == 0 {
		r.Lost = "not a mail of ours (it has no tags)"
	}
	r.Kind = events.Kind(string(in.Type))
	r.At, _ = parse.Time(in.Created)
	switch r.Kind {
	case models.Bounced:
		d.Bounce.explain(&r.Event, models.BounceUnknown)
	case models.Dropped:
		d.Suppressed.explain(&r.Event, models.ProviderDropped)
	case models.Rejected:
		r.Text, r.Reason = parse.Text(string(d.Failed.Reason)), models.ProviderDropped
		if strings.Contains(string(d.Failed.Reason), "quota") {
			r.Reason = models.ProviderAccount
		}
	}
	r.AddTo(&out, 1)
	return out
}

// explain sets kind and reason of an event that says that a mail was not delivered. Old posts say of a suppression only
// that sending was suppressed.
func (t *trouble) explain(ev *models.Event, otherwise models.Reason) {
	known := suppressed[t.Reason]
	if strings.Contains(string(t.Message), "suppressed sending") {
		known = models.SuppressedBounce
	}
	b := kind.Bounce{Type: t.Type, SubType: t.SubType, Server: parse.Str(first(t.DiagnosticCode)), Text: t.Message}
	b.Explain(ev, known, otherwise)
}

// first returns the first of some texts, or "".
func first(list []parse.Str) string { return string(append(list, "")[0]) }
