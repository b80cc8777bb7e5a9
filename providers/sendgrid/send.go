package sendgrid

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/sendgrid/rest"
	sg "github.com/sendgrid/sendgrid-go"
	"github.com/sendgrid/sendgrid-go/helpers/mail"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/message"
)

const endpoint = "/v3/mail/send"

// Send implements models.Adapter with one request that has a personalization for each mail.
func (p *Adapter) Send(ctx context.Context, c *models.Call) []models.Part {
	return kind.Send(ctx, &p.Base, c, compose, func(ctx context.Context, body []byte) error {
		req := sg.GetRequest(p.Keys().API, endpoint, p.Root)
		req.Method, req.Body = "POST", body
		_, err := (&rest.Client{HTTPClient: p.Client.HTTP}).SendWithContext(ctx, req)
		return err
	}, p.classify)
}

// Compose implements models.Composer.
func (p *Adapter) Compose(c *models.Call) (models.Request, []models.Part) {
	body, refused := compose(c)
	return p.Request(endpoint, body), refused
}

// compose returns the body of the request, or the parts of a call that cannot be made. The head of the message is the
// SDK's mail.SGMailV3. Its type of personalizations has two maps for each recipient, which costs three times as much.
func compose(c *models.Call) ([]byte, []models.Part) {
	if refused := message.Check(c, Spec.Recipients); refused != nil {
		return nil, refused
	}
	prefix := tokenPrefix(c)
	f := message.Fill(c.Content, func(i int, v message.Var) string {
		return prefix + string(v.Form) + strconv.Itoa(i) + "-"
	}, nil)
	if f.Subject == "" {
		return nil, message.Refuse(c.Numbers(), "", "SendGrid takes no message without a subject")
	}
	m := &mail.SGMailV3{
		From:       address(c.Content.From),
		Subject:    f.Subject,
		CustomArgs: map[string]string{kind.AttemptKey: strconv.Itoa(c.Attempt)},
	}
	setOptions(m, c)
	for _, part := range [2]*mail.Content{{Type: "text/plain", Value: f.Text}, {Type: "text/html", Value: f.HTML}} {
		if part.Value != "" {
			m.Content = append(m.Content, part)
		}
	}
	head, err := kind.JSON(m)
	if err != nil {
		return nil, message.Refuse(c.Numbers(), "", "the message cannot be written as JSON")
	}
	body, refused := personalize(head, c, prefix, f.Vars)
	const tooLarge = "the request would be larger than the 30 MB that SendGrid takes"
	switch shared := len(head) + base64.StdEncoding.EncodedLen(int(c.Content.AttachmentSize())); {
	case refused != nil || len(body) <= maxBody:
		return body, refused
	case shared > maxBody:
		return nil, message.Refuse(c.Numbers(), models.TooLarge, tooLarge)
	}
	return nil, message.RefuseMany(c, tooLarge)
}

// setOptions sets what is in the content besides sender, subject and bodies. If header fields differ from recipient to
// recipient, all are left to personalize: it is not documented that both places are merged.
func setOptions(m *mail.SGMailV3, call *models.Call) {
	c := call.Content
	for _, a := range c.ReplyTo {
		m.ReplyToList = append(m.ReplyToList, address(a))
	}
	if len(m.ReplyToList) == 1 {
		m.ReplyTo, m.ReplyToList = m.ReplyToList[0], nil
	}
	if len(c.Headers) > 0 && !message.Personal(call) {
		m.Headers = make(map[string]string, len(c.Headers))
		for i := range c.Headers {
			m.Headers[c.Headers[i].Name], _ = message.Header(&c.Headers[i], nil)
		}
	}
	m.Categories = c.Slugs(Spec.Carries.Tags)
	m.TrackingSettings = &mail.TrackingSettings{
		ClickTracking: &mail.ClickTrackingSetting{Enable: &c.TrackClicks, EnableText: new(bool)},
		OpenTracking:  &mail.OpenTrackingSetting{Enable: &c.TrackOpens},
	}
}

// A personalizer writes the personalizations of a call.
type personalizer struct {
	*models.Call
	kind.Writer
	message.Flaws
	vars   []message.Var
	tokens []string // of vars
	own    bool     // the mails have header fields of their own
}

// personalize adds the attachments and a personalization for each mail to the JSON object head.
func personalize(head []byte, c *models.Call, prefix string, vars []message.Var) ([]byte, []models.Part) {
	encoded := 0
	for _, data := range c.Files {
		encoded += 1024 + base64.StdEncoding.EncodedLen(len(data))
	}
	b := make([]byte, 0, len(head)+encoded+len(c.Recipients)*(192+96*len(vars)))
	p := personalizer{Call: c, Writer: append(b, head[:len(head)-1]...), vars: vars, own: message.Personal(c)}
	p.files()
	for i, v := range vars {
		p.tokens = append(p.tokens, prefix+string(v.Form)+strconv.Itoa(i)+"-")
	}
	p.Key("personalizations").Begin('[')
	for i := range message.Mails(c) {
		p.mail(&c.Recipients[i])
	}
	p.End(']').End('}')
	return p.Writer, p.Parts(c, "the recipient's values are longer than the 10,000 bytes that SendGrid takes")
}

// mail writes the personalization of a mail.
func (p *personalizer) mail(r *models.CallRecipient) {
	p.Begin('{')
	for _, role := range [3]models.Role{models.To, models.CC, models.BCC} {
		kind.Some(&p.Writer, string(role), '[', message.In(role, p.Call, r), p.person)
	}
	p.Key("custom_args").Begin('{').Field(kind.LogKey, r.Log.String()).End('}')
	if headers := p.Content.HeadersOf(&r.Recipient); p.own && len(headers) > 0 {
		p.Key("headers").Begin('{')
		for k := range headers {
			value, missing := message.Header(&headers[k], &r.Recipient)
			if missing != "" {
				p.Lack(r, missing)
			}
			p.Pair(headers[k].Name, value)
		}
		p.End('}')
	}
	if len(p.vars) > 0 {
		p.Key("substitutions").Begin('{')
		start := len(p.Writer)
		for k, v := range p.vars {
			value, ok := v.Value(&r.Recipient)
			if !ok {
				p.Lack(r, v.Name)
			}
			p.Field(p.tokens[k], value)
		}
		if len(p.Writer)-start > maxSubstitutions {
			p.TooLong(r)
		}
		p.End('}')
	}
	p.End('}')
}

// person writes the mailbox of a recipient.
func (p *personalizer) person(r models.CallRecipient) {
	p.Begin('{').Field("email", r.Email)
	if n := name(r.Name); n != "" {
		p.Field("name", n)
	}
	p.End('}')
}

// files writes the attachments. In the SDK's type their base64 would be copied three times.
func (p *personalizer) files() {
	if len(p.Files) == 0 {
		return
	}
	p.Key("attachments").Begin('[')
	for i, data := range p.Files {
		a := &p.Content.Attachments[i]
		p.Begin('{').Base64("content", data).Field("type", a.Type).Field("filename", a.Filename)
		if a.ContentID == "" {
			p.Field("disposition", "attachment").End('}')
		} else {
			p.Field("disposition", "inline").Field("content_id", a.ContentID).End('}')
		}
	}
	p.End(']')
}

// tokenPrefix returns the prefix of the tokens that replace placeholders in this call: "-sd<nonce>", then form, number
// and "-". SendGrid replaces them one after the other, so no value may contain a token: an unescaped value could get
// into HTML. The nonce is made from the batch's ID, which is not known when values are submitted. If a value or the
// content contains it anyway, another one is used.
func tokenPrefix(c *models.Call) string {
	for n := 0; ; n++ {
		h := sha256.Sum256([]byte(c.Batch.String() + "/" + strconv.Itoa(n)))
		prefix := "-sd" + hex.EncodeToString(h[:4])
		if !holds(c, prefix) {
			return prefix
		}
	}
}

// holds reports whether the content or a value contains s.
func holds(c *models.Call, s string) bool {
	found := strings.Contains(c.Content.Subject, s) || strings.Contains(c.Content.Text, s) ||
		strings.Contains(c.Content.HTML, s)
	for i := range c.Recipients {
		r := &c.Recipients[i]
		found = found || strings.Contains(r.Email, s) || strings.Contains(r.Name, s)
		for _, v := range r.Vars {
			found = found || strings.Contains(v, s)
		}
	}
	return found
}

func address(a models.Address) *mail.Email { return mail.NewEmail(name(a.Name), a.Email) }

// name returns a display name that SendGrid accepts. It rejects or misreads ';' and ','
// (sendgrid-python #291), so they become spaces. Quotes would help in "to", but would be
// shown in "from" and "reply_to".
func name(s string) string { return message.Unmarked(message.Name(s), ",;") }
