// Package brevo is the adapter for Brevo: batches of message versions, webhooks, the log of events and the blocked
// contacts.
//
// A call is accepted or refused as a whole. Events bring back the header X-Mailin-custom of their mail. It is not
// documented that those of a batch do, so that a tag names chunk and attempt, and the address of an event its
// recipient.
// A key in the body makes a repeated call harmless, and so settles unknown outcomes.
//
// Webhooks are not signed: a secret in their header proves who sent them. Brevo repeats them only after 429, and
// discards them after every other refusal.
package brevo

import (
	"context"
	"crypto/sha256"
	"mime"
	"net/http"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/message"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
)

// limits are not documented. Larger ones could refuse a whole call.
var limits = kind.Limits{Title: "Brevo", Mail: 10_000_000, Request: 20_000_000}

// Spec describes Brevo. It knows a key for 30 minutes by its guide, and for 15 by its changelog. Header fields of a
// batch are the same for all. Brevo gets no mail with Cc and Bcc: it does not document events for each of its
// recipients.
var Spec = kind.Spec[string]{
	Name:       "brevo",
	Short:      "br",
	Title:      "Brevo",
	URL:        "https://api.brevo.com",
	Recipients: 1000,
	Webhook:    4 << 20, // up to 500 events
	OnlyAfter:  http.StatusTooManyRequests,
	Events:     events,
	Suppress:   lists,
	Lag:        10 * time.Minute, // none is documented
	KnowsKeys:  15 * time.Minute,
	Key:        kind.SecretKey,
	Header:     kind.Secret,
	Authorize:  func(h http.Header, key string) { h.Set("api-key", key) },
	Carries: models.Capabilities{
		Tags:        9,
		Attachments: true,
		Size:        int64(limits.Mail),
		Base64:      true,
		OneReply:    true,
		OwnTracking: true,
		Names:       true,
		NameMarks:   true,
		Variables:   true,
		Metadata:    true,
	},
}

// An Adapter is one provider of the kind Brevo.
type Adapter struct{ kind.Keyed[string] }

// New returns the adapter for a provider. The error names all mistakes in its settings.
var New = kind.New[string, Adapter](&Spec)

// Send implements models.Adapter.
func (p *Adapter) Send(ctx context.Context, c *models.Call) []models.Part {
	do := func(ctx context.Context, r models.Request) error { return p.Post(ctx, r, nil) }
	return kind.Send(ctx, &p.Base, c, p.Compose, do, p.classify)
}

// The names in the object of header fields that Brevo reads itself. It drops mail with the sandbox field.
const (
	customKey = "X-Mailin-custom"
	keyKey    = "idempotencyKey"
)

var taken = []string{customKey, keyKey, "X-Sib-Sandbox", "X-Mailin-Tag", "sender.ip"}

// extensions are those of attachments that Brevo takes.
const extensions = " xlsx xls ods docx docm doc csv pdf txt gif jpg jpeg png tif tiff rtf bmp cgm css shtml html htm" +
	" zip xml ppt pptx tar ez ics mobi msg pub eps odt mp3 m4a m4v wma ogg flac wav aif aifc aiff mp4 mov avi mkv mpeg" +
	" mpg wmv pkpass xlsm "

// unfit says why Brevo does not take a message, or "".
func unfit(c *models.Call) string {
	switch {
	case c.Together():
		return "Brevo does not say whether it reports on each of several recipients"
	case c.Content.Subject == "":
		return "Brevo takes no message without a subject"
	case len(c.Content.ReplyTo) > 1:
		return "Brevo takes one reply-to address"
	case message.Personal(c):
		return "Brevo takes no header fields of recipients"
	}
	for _, h := range c.Content.Headers {
		for _, name := range taken {
			if strings.EqualFold(h.Name, name) {
				return "Brevo reads the header field " + name + " itself"
			}
		}
		if !models.ASCII(h.Value) {
			return "Brevo sends header fields with characters beyond ASCII as they are"
		}
	}
	for i := range c.Content.Attachments {
		a := &c.Content.Attachments[i]
		extension := strings.ToLower(strings.TrimPrefix(path.Ext(a.Filename), "."))
		switch {
		case a.ContentID != "":
			return "Brevo takes no inline images"
		case extension == "" || !strings.Contains(extensions, " "+extension+" "):
			return "Brevo takes no attachments with this extension"
		}
	}
	return ""
}

// Compose implements models.Composer.
func (p *Adapter) Compose(c *models.Call) (r models.Request, refused []models.Part) {
	r = p.Request("/v3/smtp/email", nil)
	if refused = message.Check(c, Spec.Recipients); refused != nil {
		return r, refused
	}
	if why := unfit(c); why != "" {
		return r, message.Refuse(c.Numbers(), "", why)
	}
	// A version has what differs from the mail of the call, which Brevo never sends if there are versions.
	common := kind.Common(c)
	common.HTML = literal(common.HTML)
	alone := len(c.Recipients) == 1
	versions, refused := kind.Batch(c, limits, func(w *kind.Writer, m *kind.Mail) {
		if m.HTML = literal(m.HTML); code.MatchString(m.Subject) || code.MatchString(m.Text) {
			m.Unfit = "Brevo would read a part of the subject or of the text as template code"
		}
		if alone {
			common.Subject, common.Text, common.HTML = m.Subject, m.Text, m.HTML
		}
		w.Key("to").Begin('[').Person(name(m.To.Name), m.To.Email).End(']')
		m.Own(w, &common, "subject", "textContent", "htmlContent")
		if !alone {
			w.Key("headers").Begin('{').Field(customKey, custom(m.To.Log, c.Attempt)).End('}')
		}
	})
	if refused != nil {
		return r, refused
	}
	w := make(kind.Writer, 0, len(versions)+len(common.HTML)+len(common.Text)+4096)
	write(&w, c, &common)
	if alone { // the header field of the call itself is documented
		w = append(append(w, ','), versions[2:len(versions)-2]...)
	} else {
		w.Key("messageVersions")
		w = append(w, versions...)
	}
	r.Body, refused = limits.Whole(c, *w.End('}'))
	return r, refused
}

// write writes what the mails of a call have in common.
func write(w *kind.Writer, c *models.Call, m *message.Filled) {
	w.Begin('{').Key("sender").Person(name(c.Content.From.Name), c.Content.From.Email)
	for _, reply := range c.Content.ReplyTo {
		if !models.ASCII(reply.Name) {
			reply.Name = "" // it would be sent as it is
		}
		w.Key("replyTo").Person(name(reply.Name), reply.Email)
	}
	w.Field("subject", m.Subject).Optional("textContent", m.Text).Optional("htmlContent", m.HTML)
	first := &c.Recipients[0]
	w.Key("tags").Begin('[').String(kind.Tag(first.Log.ChunkID(), c.Attempt))
	for _, tag := range c.Content.Slugs(Spec.Carries.Tags) {
		if ourTag(parse.Str(tag), nil) == "" { // events would seem to be of another mail
			w.String(tag)
		}
	}
	w.End(']').Key("headers").Begin('{').Field(keyKey, key(first.Log.ChunkID(), c.Attempt))
	for i := range c.Content.Headers {
		value, _ := message.Header(&c.Content.Headers[i], &first.Recipient)
		w.Pair(c.Content.Headers[i].Name, value)
	}
	if len(c.Recipients) == 1 {
		w.Field(customKey, custom(first.Log, c.Attempt))
	}
	w.End('}')
	if len(c.Files) == 0 {
		return
	}
	w.Key("attachment").Begin('[')
	for i, data := range c.Files {
		w.Begin('{').Base64("content", data).Field("name", c.Content.Attachments[i].Filename).End('}')
	}
	w.End(']')
}

// custom returns the header field that comes back with the events of a mail.
func custom(log models.ID, attempt int) string {
	var w kind.Writer
	w.Begin('{').Field(kind.LogKey, log.String()).Field(kind.AttemptKey, strconv.Itoa(attempt))
	return string(*w.End('}'))
}

// key returns the idempotency key of a call, which must be a UUID.
func key(chunk models.ID, attempt int) string {
	sum := sha256.Sum256([]byte(kind.Tag(chunk, attempt)))
	id := models.ID(sum[:16])
	id[6], id[8] = 0x40|id[6]&0x0f, 0x80|id[8]&0x3f // version 4
	return id.String()
}

// code matches what Brevo's template language replaces in subjects, texts and HTML, also without a stored template.
var code = regexp.MustCompile(`\{[{%]|(?s:\{#.*?#\})`)

// literal returns HTML that looks the same and has no template code.
func literal(html string) string {
	return code.ReplaceAllStringFunc(html, func(s string) string { return strings.ReplaceAll(s, "{", "&#123;") })
}

// name returns a display name. Brevo drops one with characters beyond ASCII and marks, so that it is encoded here.
func name(s string) string {
	if s = message.Name(s); code.MatchString(s) {
		s = message.Unmarked(s, "{}")
	}
	if !models.ASCII(s) && strings.ContainsAny(s, `()<>@,:;.\"[]`) {
		return mime.QEncoding.Encode("utf-8", s)
	}
	return s
}
