// Package smtp2go is the adapter for the API of SMTP2GO: emails, webhooks, the activity and the suppressions.
//
// One mail goes to /email/send, whose answer says whether it was taken, and several go to /email/batch. Header fields
// name the log and the attempt of a mail, and come back in its events. A secret in the header of webhooks proves who
// sent them.
package smtp2go

import (
	"cmp"
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/message"
)

// limits are documented, for a mail with all that it has, and for a request.
var limits = kind.Limits{Title: "SMTP2GO", Mail: 50_000_000, Request: 50_000_000}

// Spec describes SMTP2GO. A mail has up to 100 addresses. The size of a batch is not documented: 100 are taken, too.
var Spec = kind.Spec[string]{
	Name:       "smtp2go",
	Short:      "s2g",
	Title:      "SMTP2GO",
	URL:        "https://api.smtp2go.com",
	Recipients: 100,
	Webhook:    1 << 20,
	Events:     events,
	Suppress:   lists,
	Lag:        10 * time.Minute, // none is documented
	Repeat:     48 * time.Hour,
	Key:        kind.SecretKey,
	Header:     kind.Secret,
	Authorize:  func(h http.Header, key string) { h.Set("X-Smtp2go-Api-Key", key) },
	Carries: models.Capabilities{
		Attachments: true,
		Inline:      true,
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

// The header fields that name the log and the attempt of a mail.
const (
	logField     = "X-Sd-Log"
	attemptField = "X-Sd-Attempt"
)

// An Adapter is one provider of the kind SMTP2GO: an API key of an account.
type Adapter struct{ kind.Base[string] }

// New returns the adapter for a provider. The error names all mistakes in its settings.
var New = kind.New[string, Adapter](&Spec)

// Send implements models.Adapter.
func (p *Adapter) Send(ctx context.Context, c *models.Call) []models.Part {
	do := func(ctx context.Context, r models.Request) error { return p.Post(ctx, r, nil) }
	return kind.Send(ctx, &p.Base, c, p.Compose, do, p.classify)
}

// single reports whether a call has one mail.
func single(c *models.Call) bool { return len(message.Mails(c)) == 1 }

// Compose implements models.Composer.
func (p *Adapter) Compose(c *models.Call) (r models.Request, refused []models.Part) {
	most := limits
	if r = p.Request("/v3/email/send", nil); !single(c) {
		r, most.Member = p.Request("/v3/email/batch", nil), "emails"
	}
	if refused = message.Check(c, Spec.Recipients); refused != nil {
		return r, refused
	}
	if r.Body, refused = kind.Batch(c, most, write); refused == nil && single(c) {
		r.Body = r.Body[1 : len(r.Body)-1] // without the list
	}
	return r, refused
}

// write writes a mail. HTML finds an inline file by its name. After fastaccept no answer says whether a mail was taken.
func write(w *kind.Writer, m *kind.Mail) {
	c := m.Call
	w.Field("sender", message.Named(c.Content.From.Name, c.Content.From.Email))
	for _, role := range [3]models.Role{models.To, models.CC, models.BCC} {
		kind.Some(w, string(role), '[', message.In(role, c, m.To),
			func(r models.CallRecipient) { w.String(message.Named(r.Name, r.Email)) })
	}
	w.Field("subject", m.Subject).Optional("text_body", m.Text).Optional("html_body", m.HTML)
	headers := append(m.Headers, models.Header{Name: logField, Value: m.To.Log.String()},
		models.Header{Name: attemptField, Value: strconv.Itoa(c.Attempt)})
	if len(c.Content.ReplyTo) > 0 {
		headers = append(headers, models.Header{Name: "Reply-To", Value: message.Replies(c.Content)})
	}
	kind.Some(w, "custom_headers", '[', headers,
		func(h models.Header) { w.Begin('{').Field("header", h.Name).Field("value", h.Value).End('}') })
	var files [2][]int
	for i := range c.Files {
		inline := min(len(c.Content.Attachments[i].ContentID), 1)
		files[inline] = append(files[inline], i)
	}
	for inline, of := range files {
		kind.Some(w, [2]string{"attachments", "inlines"}[inline], '[', of, func(i int) {
			a := &c.Content.Attachments[i]
			w.Begin('{').Field("filename", cmp.Or(a.ContentID, a.Filename)).Base64("fileblob", c.Files[i])
			w.Optional("mimetype", a.Type).End('}')
		})
	}
	if single(c) {
		w.Bool("fastaccept", false)
	}
}
