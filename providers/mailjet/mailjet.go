// Package mailjet is the adapter for Mailjet: Send API v3.1, events, and the log of messages.
//
// Each mail of a call has a result of its own, also in an answer 4xx: then some mails may have been accepted. Webhooks
// are not signed: a secret in their URL proves who sent them, and nothing says when, so that repeats are recognised by
// the content of the event. The log has no payload of a message, so that the custom ID names the log and the attempt.
package mailjet

import (
	"context"
	"encoding/json"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/message"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
	"github.com/safedelivr/safedelivr/providers/internal/transport"
)

// limits are documented for the attachments of a mail ("Send API JSON properties"). For a call none is, so that it is
// taken to be little more.
var limits = kind.Limits{Title: "Mailjet", Member: "Messages", Mail: 15_000_000, Request: 20_000_000}

const maxSubject = 255 // characters

// Spec describes Mailjet. Its tag is a campaign of letters, digits, spaces, '-' and '_', so that those of messages are
// left out.
var Spec = kind.Spec[string]{
	Name:       "mailjet",
	Short:      "mj",
	Title:      "Mailjet",
	URL:        "https://api.mailjet.com",
	Recipients: 50,
	Webhook:    4 << 20,
	Pair:       true,
	Events:     events,
	Lag:        10 * time.Minute, // none is documented
	Repeat:     23 * time.Hour,   // every 30 seconds, for 24 hours
	Key:        kind.SecretKey,
	Header:     kind.Secret,
	Authorize:  kind.Basic,
	Carries: models.Capabilities{
		Attachments: true,
		Inline:      true,
		InlineNames: true,
		Size:        int64(limits.Mail),
		Base64:      true,
		Copies:      true,
		OneReply:    true,
		Tracking:    true,
		Names:       true,
		NameMarks:   true,
		Variables:   true,
		Metadata:    true,
		Headers:     true,
		HeaderNames: true,
	},
}

// An Adapter is one provider of the kind Mailjet.
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
	r = p.Request("/v3.1/send", nil)
	refused = message.Check(c, Spec.Recipients)
	switch {
	case refused != nil:
		return r, refused
	case len(c.Content.ReplyTo) > 1:
		return r, message.Refuse(c.Numbers(), "", "Mailjet takes one reply-to address")
	}
	r.Body, refused = kind.Batch(c, limits, write)
	return r, refused
}

// code matches what Mailjet replaces in bodies even if its template language is off ("Personalization").
var code = regexp.MustCompile(`(?i)\[\[\s*(var|data)\s*:`)

// forbidden matches the names of header fields that Mailjet refuses ("Add Email Headers").
var forbidden = regexp.MustCompile(`(?i)^(from|sender|subject|to|cc|bcc|reply-to|return-path|delivered-to|` +
	`dkim-signature|domainkey-status|received-spf|authentication-results|received|user-agent|x-mailer|x-mailjet-.*|` +
	`x-mj-.*|x-feedback-id|list-id|date|x-csa-complaints|message-id)$`)

// unfit returns why Mailjet cannot take a mail, or "".
func unfit(m *message.Rendered) string {
	if utf8.RuneCountInString(m.Subject) > maxSubject {
		return "the subject has more than the 255 characters that Mailjet takes"
	}
	if code.MatchString(m.Text) || code.MatchString(m.HTML) {
		return "Mailjet would replace [[var:…]] or [[data:…]] in the message"
	}
	for _, h := range m.Headers {
		if forbidden.MatchString(h.Name) {
			return "Mailjet does not take the header field " + h.Name
		}
	}
	return ""
}

// write writes a mail. Tracking can be set only for HTML.
func write(w *kind.Writer, m *kind.Mail) {
	c := m.Call
	m.Unfit = unfit(&m.Rendered)
	address(w.Key("From"), c.Content.From)
	for i, role := range [3]models.Role{models.To, models.CC, models.BCC} {
		kind.Some(w, [3]string{"To", "Cc", "Bcc"}[i], '[', message.In(role, c, m.To),
			func(r models.CallRecipient) { address(w, models.Address{Email: r.Email, Name: r.Name}) })
	}
	for _, a := range c.Content.ReplyTo {
		address(w.Key("ReplyTo"), a)
	}
	w.Optional("Subject", m.Subject).Optional("TextPart", m.Text).Optional("HTMLPart", m.HTML)
	if m.HTML != "" {
		able := map[bool]string{true: "enabled", false: "disabled"}
		w.Field("TrackOpens", able[c.Content.TrackOpens]).Field("TrackClicks", able[c.Content.TrackClicks])
	}
	w.Field("CustomID", m.To.Log.String()+"."+strconv.Itoa(c.Attempt))
	kind.Some(w, "Headers", '{', m.Headers, func(h models.Header) { w.Pair(h.Name, h.Value) })
	var files [2][]int // indexes of files, and of inline ones
	for i := range c.Files {
		inline := map[bool]int{true: 1}[c.Content.Attachments[i].ContentID != ""]
		files[inline] = append(files[inline], i)
	}
	for inline, name := range [2]string{"Attachments", "InlinedAttachments"} {
		kind.Some(w, name, '[', files[inline], func(i int) {
			a := &c.Content.Attachments[i]
			w.Begin('{').Field("ContentType", a.Type).Field("Filename", a.Filename).Optional("ContentID", a.ContentID)
			w.Base64("Base64Content", c.Files[i]).End('}')
		})
	}
}

// address writes an address.
func address(w *kind.Writer, a models.Address) {
	w.Begin('{').Field("Email", a.Email).Optional("Name", message.Name(a.Name)).End('}')
}

// rules are the meanings of error codes. Most others are limits of Mailjet, or mistakes of this adapter: they refuse
// the mail only here.
var rules = []kind.Rule{
	{Code: "mj-0001", Class: models.AccountClass},
	{Code: "mj-0013", Words: regexp.MustCompile(`^(To|Cc|Bcc)\b`), Class: models.Split},
	{Code: "mj-0013", Words: regexp.MustCompile(`^(From|ReplyTo)\b`), Class: models.RejectedRequest,
		Reason: models.InvalidRequest},
	{Code: "mj-0011", Class: models.RejectedHereClass, Reason: models.TooLarge},
	{Code: "mj-0015", Class: models.AccountClass},
	{Code: "send-0003", Class: models.RejectedRequest, Reason: models.InvalidRequest},
	{Code: "send-0006", Class: models.AccountClass, Reason: models.SenderNotVerified},
	{Code: "send-0007", Class: models.AccountClass, Reason: models.SenderNotVerified},
	{Code: "send-0008", Class: models.AccountClass, Reason: models.SenderNotVerified},
	{Status: http.StatusOK, Class: models.RejectedHereClass},
}

// A fault is an error of a mail, or of a call that was refused as a whole.
type fault struct {
	Code    parse.Str   `json:"ErrorCode"`
	Message parse.Str   `json:"ErrorMessage"`
	About   []parse.Str `json:"ErrorRelatedTo"`
}

// words returns what the error is about, and its text.
func (f *fault) words() string {
	if len(f.About) == 0 {
		return string(f.Message)
	}
	return string(f.About[0] + ": " + f.Message)
}

// A result is the answer about a mail.
type result struct {
	Status parse.Str
	Errors []fault
	To     []struct{ MessageID parse.Str }
}

// prefix begins an answer with results.
const prefix = `{"Messages"`

// classify returns what an answer means for the recipients of the call. A list of results says it of each mail, unless
// the status is that of a failure of the server. A list that broke off may have had acceptances.
func (p *Adapter) classify(c *models.Call, x transport.Answer, now time.Time) []models.Part {
	var in struct {
		fault
		Messages json.RawMessage
	}
	parse.Into(x.Body, &in)
	a := p.Answer(c, x, in.words(), now)
	a.Code = string(in.Code)
	begun := strings.Join(strings.Fields(string(x.Body)), "")
	broken := x.Cut && x.Status < 500 && strings.HasPrefix(prefix, begun)
	listed := len(in.Messages) > 0 || strings.HasPrefix(begun, prefix)
	switch {
	case broken, listed && x.Status >= 500:
		return a.Whole(models.Unknown, "")
	case a.OK(), listed:
		return p.results(a, in.Messages)
	}
	return a.By(rules)
}

// results reads the results of the mails, in order. If their number is not that of the mails, it is not known which
// were accepted.
func (p *Adapter) results(a *kind.Answer, list json.RawMessage) (parts []models.Part) {
	var in []result
	mails := a.Mails()
	if json.Unmarshal(list, &in) != nil || len(in) != len(mails) {
		return a.Whole(models.Unknown, "")
	}
	for i, mail := range mails {
		switch r := &in[i]; {
		case r.Status == "success" && len(r.To) > 0:
			parts = append(parts, a.Accepted(mail, r.To[0].MessageID))
		case r.Status == "error" && len(r.Errors) > 0:
			parts = append(parts, p.About(a, string(r.Errors[0].Code), r.Errors[0].words()).Refused(mail, rules))
		default:
			parts = append(parts, a.Part(models.Unknown, "", mail))
		}
	}
	return parts
}
