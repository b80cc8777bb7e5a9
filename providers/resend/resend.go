// Package resend is the adapter for Resend: emails and batches of them, webhooks and suppressions.
//
// A batch is validated mail by mail, and its answer says for each mail whether it was accepted. Resend drops the
// attachments of a batch, so that a mail with attachments goes alone. The header Idempotency-Key makes a repeated call
// harmless for a day, and so settles unknown outcomes. There is no look-up: emails cannot be found by tags, and the log
// of API calls has neither the times of events nor all of them.
package resend

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/message"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
	"github.com/safedelivr/safedelivr/providers/internal/transport"
)

// limits are documented for a mail ("Attachments"). For a batch none is, so that it is taken for that of a mail.
var limits = kind.Limits{Title: "Resend", Mail: 40_000_000, Request: 40_000_000}

// Spec describes Resend. Tags have only letters, digits, '_' and '-', so that those of messages are left out. Events of
// one mail to several do not say which recipient they are about, so that it is not used for such mail.
var Spec = kind.Spec[[]byte]{
	Name:       "resend",
	Short:      "rs",
	Title:      "Resend",
	URL:        "https://api.resend.com",
	Recipients: 100,
	Webhook:    1 << 20,
	Events:     events,
	Suppress:   lists,
	KnowsKeys:  24 * time.Hour, // "Idempotency Keys"
	Key:        kind.SvixKey,
	Authorize:  kind.Bearer,
	Header:     kind.SvixHeader,
	Verify:     kind.Svix,
	Carries: models.Capabilities{
		Attachments: true,
		Inline:      true,
		InlineNames: true,
		Size:        int64(limits.Mail),
		Base64:      true,
		OwnTracking: true,
		Names:       true,
		Variables:   true,
		Metadata:    true,
		Headers:     true,
		HeaderNames: true,
	},
}

// An Adapter is one provider of the kind Resend.
type Adapter struct{ kind.Keyed[[]byte] }

// New returns the adapter for a provider. The error names all mistakes in its settings.
var New = kind.New[[]byte, Adapter](&Spec)

// Send implements models.Adapter. The key of a call is made from its chunk and its attempt, so that another process
// makes the same.
func (p *Adapter) Send(ctx context.Context, c *models.Call) []models.Part {
	h := kind.CallKey(http.Header{"X-Batch-Validation": {"permissive"}}, c)
	do := func(ctx context.Context, r models.Request) error { return p.Post(ctx, r, h) }
	return kind.Send(ctx, &p.Base, c, p.Compose, do, p.classify)
}

// Compose implements models.Composer.
func (p *Adapter) Compose(c *models.Call) (r models.Request, refused []models.Part) {
	r = p.Request("/emails/batch", nil)
	refused = message.Check(c, Spec.Recipients)
	switch {
	case refused != nil:
		return r, refused
	case c.Together():
		return r, message.Refuse(c.Numbers(), "", "Resend does not say which of several recipients an event is about")
	case c.Content.Subject == "":
		return r, message.Refuse(c.Numbers(), "", "Resend takes no message without a subject")
	case len(c.Files) > 0 && len(c.Recipients) > 1:
		refused = message.Refuse(c.Numbers(), "", "Resend takes a message with attachments only for one recipient a call")
		refused[0].Fewer = 1
		return r, refused
	}
	if r.Body, refused = kind.Batch(c, limits, write); refused == nil && len(c.Recipients) == 1 {
		r = p.Request("/emails", r.Body[1:len(r.Body)-1])
	}
	return r, refused
}

// write writes a mail.
func write(w *kind.Writer, m *kind.Mail) {
	c, to := m.Call, m.To
	w.Field("from", address(c.Content.From.Name, c.Content.From.Email))
	w.Key("to").Begin('[').String(address(to.Name, to.Email)).End(']')
	if len(c.Content.ReplyTo) > 0 {
		w.Key("reply_to").Begin('[')
		for _, a := range c.Content.ReplyTo {
			w.String(address(a.Name, a.Email))
		}
		w.End(']')
	}
	w.Field("subject", m.Subject)
	w.Optional("text", m.Text).Optional("html", m.HTML)
	if len(m.Headers) > 0 {
		w.Key("headers").Begin('{')
		for _, h := range m.Headers {
			w.Pair(h.Name, h.Value)
		}
		w.End('}')
	}
	w.Key("tags").Begin('[')
	w.Begin('{').Field("name", kind.LogKey).Field("value", to.Log.String()).End('}')
	w.Begin('{').Field("name", kind.AttemptKey).Field("value", strconv.Itoa(c.Attempt)).End('}')
	w.End(']')
	if len(c.Files) == 0 {
		return
	}
	w.Key("attachments").Begin('[')
	for i, data := range c.Files {
		a := &c.Content.Attachments[i]
		w.Begin('{').Base64("content", data).Field("filename", a.Filename).Field("content_type", a.Type)
		w.Optional("content_id", a.ContentID).End('}')
	}
	w.End(']')
}

// address returns an address with a name. Resend refuses quoted names, and encoded ones in from (django-anymail,
// backends/resend.py), so that marks with a meaning in header fields become spaces.
func address(name, email string) string {
	if name = message.Unmarked(message.Name(name), `,;:<>()[]@"\`); name == "" {
		return email
	}
	return name + " <" + email + ">"
}

var aboutTo = regexp.MustCompile("(?i)\\bto\\b[`'\"]? (field|address)|(field|address)[^.]{0,20}[`'\"]to[`'\"]")

// rules are the meanings of answers besides 2xx. A 409 says that the key was used before. The first call may have been
// accepted, so a 409 with any text proves nothing.
var rules = []kind.Rule{
	{Status: http.StatusConflict, Class: models.Unknown},
	{Status: http.StatusForbidden, Code: "validation_error", Class: models.AccountClass, Reason: models.SenderNotVerified},
	{Status: http.StatusBadRequest, Code: "validation_error", Words: regexp.MustCompile(`(?i)API key`),
		Class: models.AccountClass},
	{Status: http.StatusBadRequest, Words: aboutTo, Class: models.Split},
	{Status: http.StatusBadRequest, Code: "validation_error", Class: models.RejectedRequest,
		Reason: models.InvalidRequest},
	{Status: http.StatusBadRequest, Class: models.RejectedHereClass},
	{Status: http.StatusUnprocessableEntity, Code: "none", Class: models.RejectedHereClass}, // perhaps of a proxy
	{Status: http.StatusUnprocessableEntity, Words: aboutTo, Class: models.Split},
	{Status: http.StatusUnprocessableEntity, Code: "invalid_attachment", Class: models.RejectedHereClass},
	{Status: http.StatusUnprocessableEntity, Class: models.RejectedRequest, Reason: models.InvalidRequest},
	{Status: http.StatusTooManyRequests, Code: "daily_quota_exceeded", Class: models.AccountClass},
	{Status: http.StatusTooManyRequests, Code: "monthly_quota_exceeded", Class: models.AccountClass},
}

// classify returns what an answer means for the recipients of the call.
func (p *Adapter) classify(c *models.Call, x transport.Answer, now time.Time) []models.Part {
	var in struct {
		Name    parse.Str `json:"name"`
		Message parse.Str `json:"message"`
	}
	parse.Into(x.Body, &in)
	a := p.Answer(c, x, string(in.Message), now)
	a.Code = string(cmp.Or(in.Name, "none"))
	if a.OK() {
		return p.accepted(a)
	}
	return a.By(rules)
}

// accepted reads a 2xx: the ids of the accepted mails in order, and the index and the message of each other one. If
// their number is not that of the mails, it is not known which were accepted.
func (p *Adapter) accepted(a *kind.Answer) (parts []models.Part) {
	type id struct{ ID parse.Str }
	var in struct {
		id
		Data   []id
		Errors []struct {
			Index   int
			Message parse.Str
		}
	}
	mails := a.Mails()
	err := json.Unmarshal(a.Body, &in)
	if len(mails) == 1 && in.ID != "" {
		in.Data = []id{in.id}
	}
	if err != nil || len(in.Data)+len(in.Errors) != len(mails) {
		return a.Whole(models.Unknown, "")
	}
	for _, e := range in.Errors {
		if e.Index < 0 || e.Index >= len(mails) || mails[e.Index].Empty() {
			return a.Whole(models.Unknown, "")
		}
		bad := p.About(a, "", string(e.Message))
		class, reason := models.RejectedRequest, models.InvalidRequest
		if aboutTo.MatchString(bad.Said) {
			class, reason = models.RejectedRecipient, models.MailboxInvalid
		}
		parts = append(parts, bad.Part(class, reason, mails[e.Index]))
		mails[e.Index] = models.Set{}
	}
	mails = slices.DeleteFunc(mails, models.Set.Empty)
	for i, mail := range mails {
		parts = append(parts, a.Accepted(mail, in.Data[i].ID))
	}
	return parts
}
