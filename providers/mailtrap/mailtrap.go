// Package mailtrap is the adapter for the Email API of Mailtrap: batches of emails, webhooks, the email logs and the
// suppressions.
//
// Each mail of a batch has a result of its own, in words without codes. The category of a mail is its chunk, by which
// the logs are searched. Logs, suppressions, domains and webhooks have another host than the API that sends.
package mailtrap

import (
	"context"
	"encoding/hex"
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

// limits: that of a request is documented.
var limits = kind.Limits{Title: "Mailtrap", Mail: 10_000_000, Request: 50_000_000}

// Spec describes Mailtrap. How long it repeats webhooks is not documented, so that every outage is looked up.
var Spec = kind.Spec[[]byte]{
	Name:       "mailtrap",
	Short:      "mt",
	Title:      "Mailtrap",
	URL:        "https://send.api.mailtrap.io",
	Queries:    "https://mailtrap.io",
	Recipients: 500,
	Webhook:    4 << 20,
	Events:     events,
	Suppress:   lists,
	Lag:        10 * time.Minute, // none is documented
	Key:        webhookKey,
	Authorize:  kind.Bearer,
	Header:     signed,
	Verify:     verify,
	Carries: models.Capabilities{
		Attachments: true,
		Inline:      true,
		InlineNames: true,
		Size:        int64(limits.Mail),
		Base64:      true,
		Copies:      true,
		OwnTracking: true,
		Names:       true,
		NameMarks:   true,
		Variables:   true,
		Metadata:    true,
		Headers:     true,
		HeaderNames: true,
	},
}

// An Adapter is one provider of the kind Mailtrap: an account, and one of its streams.
type Adapter struct{ kind.Base[[]byte] }

// New returns the adapter for a provider. The error names all mistakes in its settings.
var New = kind.New[[]byte, Adapter](&Spec)

// Send implements models.Adapter.
func (p *Adapter) Send(ctx context.Context, c *models.Call) []models.Part {
	do := func(ctx context.Context, r models.Request) error { return p.Post(ctx, r, nil) }
	return kind.Send(ctx, &p.Base, c, p.Compose, do, p.classify)
}

// Compose implements models.Composer. A request of the batch has what differs from its base.
func (p *Adapter) Compose(c *models.Call) (r models.Request, refused []models.Part) {
	r = p.Request("/api/batch", nil)
	if refused = message.Check(c, Spec.Recipients); refused != nil {
		return r, refused
	}
	if c.Content.Subject == "" {
		return r, message.Refuse(c.Numbers(), "", "Mailtrap takes no message without a subject")
	}
	common := kind.Common(c)
	requests, refused := kind.Batch(c, limits, func(w *kind.Writer, m *kind.Mail) { write(w, m, &common) })
	if refused != nil {
		return r, refused
	}
	w := make(kind.Writer, 0, len(requests)+len(common.HTML)+len(common.Text)+4096)
	w.Begin('{').Key("base").Begin('{').Key("from").Person(message.Name(c.Content.From.Name), c.Content.From.Email)
	w.Field("subject", common.Subject).Optional("text", common.Text).Optional("html", common.HTML)
	w.Field("category", c.Recipients[0].Log.ChunkID().String())
	if len(c.Files) > 0 {
		w.Key("attachments").Begin('[')
		for i, data := range c.Files {
			a := &c.Content.Attachments[i]
			w.Begin('{').Base64("content", data).Field("filename", a.Filename).Field("type", a.Type)
			if a.ContentID != "" {
				w.Field("disposition", "inline").Field("content_id", a.ContentID)
			}
			w.End('}')
		}
		w.End(']')
	}
	w.End('}').Key("requests")
	w = append(w, requests...)
	r.Body, refused = limits.Whole(c, *w.End('}'))
	return r, refused
}

// write writes a mail. Reply-To is a header field, because reply_to takes one address (django-anymail).
func write(w *kind.Writer, m *kind.Mail, common *message.Filled) {
	for _, role := range [3]models.Role{models.To, models.CC, models.BCC} {
		kind.Some(w, string(role), '[', message.In(role, m.Call, m.To),
			func(r models.CallRecipient) { w.Person(message.Name(r.Name), r.Email) })
	}
	m.Own(w, common, "subject", "text", "html")
	w.Key("custom_variables").Begin('{').Field(kind.LogKey, m.To.Log.String())
	w.Field(kind.AttemptKey, strconv.Itoa(m.Attempt)).End('}')
	w.Key("headers").Begin('{').Optional("Reply-To", message.Replies(m.Call.Content))
	for _, h := range m.Headers {
		w.Pair(h.Name, h.Value)
	}
	w.End('}')
}

// rules are the meanings of words, because there are no codes. What they do not say is refused only here, unless a
// whole call is: then Mailtrap says that it is wrong.
var rules = []kind.Rule{
	{Words: regexp.MustCompile(`(?i)'from'|\bsender\b|domain[^.]* not (verified|allowed|permitted)|not verified`),
		Class: models.AccountClass, Reason: models.SenderNotVerified},
	{Words: regexp.MustCompile(`(?i)\b(limit|quota|billing|plan|suspended|credits)\b`), Class: models.AccountClass},
	{Words: regexp.MustCompile(`(?i)'\w+' is required|must specify`), Class: models.RejectedRequest,
		Reason: models.InvalidRequest},
	{Words: regexp.MustCompile(`(?i)('(to|b?cc)'|\brecipient\b)[^;]*(invalid|not valid)|(invalid|not valid) recipient`),
		Class: models.Split},
	{Words: regexp.MustCompile(`(?i)attachment|too large|\bsize\b|file`), Class: models.RejectedHereClass},
	{Status: http.StatusOK, Class: models.RejectedHereClass},
	{Status: http.StatusBadRequest, Class: models.RejectedRequest, Reason: models.InvalidRequest},
}

// A result is the answer about a mail, or about a call.
type result struct {
	Success   bool        `json:"success"`
	IDs       []parse.Str `json:"message_ids"`
	Errors    []parse.Str `json:"errors"`
	Responses []result    `json:"responses"`
}

// words returns the errors in one line.
func (r *result) words() string {
	var list []string
	for _, e := range r.Errors {
		list = append(list, string(e))
	}
	return strings.Join(list, "; ")
}

// classify returns what an answer means for the recipients of the call.
func (p *Adapter) classify(c *models.Call, x transport.Answer, now time.Time) []models.Part {
	var in result
	err := json.Unmarshal(x.Body, &in)
	a := p.Answer(c, x, in.words(), now)
	var own []kind.Rule
	switch worded := len(in.Errors) > 0; {
	case a.OK():
		return p.results(a, &in, err)
	case worded && a.Status == http.StatusBadRequest:
		own = rules // other answers 400 may be of a proxy
	case worded && a.Status == http.StatusForbidden:
		own = rules[:1] // the sender, or the account
	}
	return a.By(own)
}

// results reads a 2xx, which has a result for each mail, in order. If their number is not that of the mails, it is not
// known which were accepted.
func (p *Adapter) results(a *kind.Answer, in *result, err error) (parts []models.Part) {
	mails := a.Mails()
	if err != nil || len(in.Responses) != len(mails) {
		return a.Whole(models.Unknown, "")
	}
	for i, mail := range mails {
		r := &in.Responses[i]
		own := p.About(a, "", r.words())
		switch {
		case r.Success && len(r.Errors) == 0:
			parts = append(parts, own.Accepted(mail, append(r.IDs, "")[0]))
		case r.Success, len(r.IDs) > 0, len(r.Errors) == 0: // it says both, or nothing
			parts = append(parts, own.Part(models.Unknown, "", mail))
		default:
			parts = append(parts, own.Refused(mail, rules))
		}
	}
	return parts
}

// signature is the header field that has the HMAC-SHA256 of a webhook's body, in hexadecimal.
const signature = "Mailtrap-Signature"

// webhookKey reads the secret of a webhook.
func webhookKey(text string) ([]byte, error) {
	key, err := kind.SecretKey(text)
	return []byte(key), err
}

// signed refuses a webhook whose header has no signature.
func signed(_ [][]byte, w *models.Webhook) error {
	if mac, err := hex.DecodeString(w.Header.Get(signature)); err != nil || len(mac) == 0 {
		return kind.Forged("the post is not signed")
	}
	return nil
}

// verify verifies a webhook. The signature has no time, so that repeats are recognised by their events.
func verify(_ context.Context, keys [][]byte, w *models.Webhook) (v models.Verified, err error) {
	mac, _ := hex.DecodeString(w.Header.Get(signature))
	if !kind.Signed(keys, mac, string(w.Body)) {
		return v, kind.Forged("the signature does not fit")
	}
	return v, nil
}
