// Package postmark is the adapter for Postmark: batches of emails, webhooks, messages, bounces and suppressions of the
// stream "outbound".
//
// Each mail of a batch has a result of its own. Webhooks are not signed: a secret in their header proves who sent them.
// Nothing says when, so repeats are recognised by the ID or the content of the event.
package postmark

import (
	"context"
	"encoding/json"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/message"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
	"github.com/safedelivr/safedelivr/providers/internal/transport"
)

// The sizes that Postmark takes ("What are the attachment and email size limits?").
const maxBody = 5_000_000 // bytes of text, and of HTML

var limits = kind.Limits{Title: "Postmark", Mail: 10_000_000, Request: 50_000_000}

// stream is the one that mail goes through if it names none.
const stream = "outbound"

// Spec describes Postmark.
var Spec = kind.Spec[string]{
	Name:       "postmark",
	Short:      "pm",
	Title:      "Postmark",
	URL:        "https://api.postmarkapp.com",
	Recipients: 500,
	Webhook:    1 << 20,
	Events:     events,
	Suppress:   lists,
	Lag:        10 * time.Minute, // none is documented
	Repeat:     20 * time.Minute, // bounces for ten hours, all others after 1, 5 and 15 minutes
	Key:        kind.SecretKey,
	Header:     kind.Secret,
	Authorize:  func(h http.Header, key string) { h.Set("X-Postmark-Server-Token", key) },
	Carries: models.Capabilities{
		Tags:        1,
		Attachments: true,
		Inline:      true,
		InlineNames: true,
		Size:        int64(limits.Mail),
		Base64:      true,
		Copies:      true,
		Tracking:    true,
		Names:       true,
		NameMarks:   true,
		Variables:   true,
		Metadata:    true,
		Headers:     true,
		HeaderNames: true,
	},
}

// An Adapter is one provider of the kind Postmark: a server.
type Adapter struct{ kind.Base[string] }

// New returns the adapter for a provider. The error names all mistakes in its settings.
var New = kind.New[string, Adapter](&Spec)

// Send implements models.Adapter.
func (p *Adapter) Send(ctx context.Context, c *models.Call) []models.Part {
	do := func(ctx context.Context, r models.Request) error { return p.Post(ctx, r, nil) }
	return kind.Send(ctx, &p.Base, c, p.Compose, do, p.classify)
}

// Compose implements models.Composer.
func (p *Adapter) Compose(c *models.Call) (r models.Request, refused []models.Part) {
	r = p.Request("/email/batch", nil)
	if refused = message.Check(c, Spec.Recipients); refused != nil {
		return r, refused
	}
	if max(len(c.Content.Text), len(c.Content.HTML)) > maxBody {
		return r, message.Refuse(c.Numbers(), models.TooLarge, "text or HTML is larger than the 5 MB that Postmark takes")
	}
	r.Body, refused = kind.Batch(c, limits, write)
	return r, refused
}

// write writes a mail.
func write(w *kind.Writer, m *kind.Mail) {
	c, to := m.Call, m.To
	w.Field("From", message.Named(c.Content.From.Name, c.Content.From.Email))
	for i, role := range [3]models.Role{models.To, models.CC, models.BCC} {
		w.Optional([3]string{"To", "Cc", "Bcc"}[i], message.List(message.In(role, c, to), message.Name))
	}
	var replies []string
	for _, a := range c.Content.ReplyTo {
		replies = append(replies, message.Named(a.Name, a.Email))
	}
	w.Optional("ReplyTo", strings.Join(replies, ", ")).Field("Subject", m.Subject)
	w.Optional("TextBody", m.Text).Optional("HtmlBody", m.HTML)
	w.Key("Headers").Begin('[')
	for _, h := range m.Headers {
		w.Begin('{').Field("Name", h.Name).Field("Value", h.Value).End('}')
	}
	w.End(']').Optional("Tag", strings.Join(c.Content.Slugs(1), ""))
	w.Key("Metadata").Begin('{').Field(kind.LogKey, to.Log.String())
	w.Field(kind.AttemptKey, strconv.Itoa(c.Attempt)).End('}')
	w.Bool("TrackOpens", c.Content.TrackOpens)
	w.Field("TrackLinks", map[bool]string{true: "HtmlOnly", false: "None"}[c.Content.TrackClicks])
	w.Key("Attachments").Begin('[')
	for i, data := range c.Files {
		a := &c.Content.Attachments[i]
		w.Begin('{').Field("Name", a.Filename).Base64("Content", data).Field("ContentType", a.Type)
		if a.ContentID != "" {
			w.Field("ContentID", "cid:"+a.ContentID)
		}
		w.End('}')
	}
	w.End(']')
}

// rules are the meanings of Postmark's own error codes. 406 does not say whether the address bounced or its owner
// complained. Complaints are read from the list, too. A code without a rule refuses the mail only here.
var rules = []kind.Rule{
	{Code: "10", Class: models.AccountClass},
	{Code: "100", Class: models.Unavailable},
	{Code: "300", Words: regexp.MustCompile(`(?i)'(to|cc|bcc)'`), Class: models.Split},
	{Code: "300", Words: regexp.MustCompile(`(?i)'from'`), Class: models.AccountClass, Reason: models.SenderNotVerified},
	{Code: "300", Class: models.RejectedRequest, Reason: models.InvalidRequest},
	{Code: "400", Class: models.AccountClass, Reason: models.SenderNotVerified},
	{Code: "401", Class: models.AccountClass, Reason: models.SenderNotVerified},
	{Code: "402", Class: models.RejectedRequest, Reason: models.InvalidRequest},
	{Code: "403", Class: models.RejectedRequest, Reason: models.InvalidRequest},
	{Code: "405", Class: models.AccountClass},
	{Code: "406", Class: models.RejectedHereClass, Reason: models.SuppressedBounce},
	{Code: "409", Class: models.RejectedRequest, Reason: models.InvalidRequest},
	{Code: "412", Class: models.AccountClass},
	{Code: "413", Class: models.AccountClass},
	{Code: "429", Class: models.Throttled},
	{Status: http.StatusOK, Class: models.RejectedHereClass},
}

// A result is the answer about a mail, or about a call that was refused as a whole.
type result struct {
	Code      parse.Str `json:"ErrorCode"`
	Message   parse.Str `json:"Message"`
	MessageID parse.Str `json:"MessageID"`
}

// classify returns what an answer means for the recipients of the call.
func (p *Adapter) classify(c *models.Call, x transport.Answer, now time.Time) []models.Part {
	var in result
	parse.Into(x.Body, &in)
	a := p.Answer(c, x, string(in.Message), now)
	if a.OK() {
		return p.results(a)
	}
	if in.Code != "0" {
		a.Code = string(in.Code)
	}
	return a.By(rules)
}

// results reads a 2xx, which has a result for each mail, in order. If their number is not that of the mails, it is not
// known which were accepted. An accepted mail has an id, and may have no code if it is delayed.
func (p *Adapter) results(a *kind.Answer) (parts []models.Part) {
	var in []result
	mails := a.Mails()
	if json.Unmarshal(a.Body, &in) != nil || len(in) != len(mails) {
		return a.Whole(models.Unknown, "")
	}
	for i, mail := range mails {
		own := p.About(a, string(in[i].Code), string(in[i].Message))
		switch refused := own.Code != "" && own.Code != "0"; {
		case refused:
			parts = append(parts, own.Refused(mail, rules))
		case in[i].MessageID != "":
			parts = append(parts, own.Accepted(mail, in[i].MessageID))
		default:
			parts = append(parts, own.Part(models.Unknown, "", mail))
		}
	}
	return parts
}
