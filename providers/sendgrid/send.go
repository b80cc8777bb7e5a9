package sendgrid

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	sg "github.com/sendgrid/sendgrid-go"
	"github.com/sendgrid/sendgrid-go/helpers/mail"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/message"
	"github.com/safedelivr/safedelivr/providers/internal/transport"
)

// Send implements models.Adapter with one request that has a personalization for each
// mail. It ends with ctx or after the provider's time-out.
func (p *Adapter) Send(ctx context.Context, c *models.Call) []models.Part {
	if len(c.Recipients) == 0 {
		return nil
	}
	body, refused := compose(c)
	if refused != nil {
		return refused
	}
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	ctx, x := transport.Record(ctx, c.StartBy)

	req := sg.GetRequest(p.keys.Load().api, endpoint, p.base)
	req.Method, req.Body = "POST", body
	_, err := p.rest.SendWithContext(ctx, req)
	if x.Status == 0 {
		class, reason, text := x.NoAnswer(err)
		return whole(c, class, reason, 0, p.words(text))
	}
	return p.classify(c, x.Answer, time.Now())
}

// Compose implements models.Composer.
func (p *Adapter) Compose(c *models.Call) (models.Request, []models.Part) {
	body, refused := compose(c)
	r := models.Request{Method: "POST", URL: p.base + endpoint, ContentType: "application/json", Body: body}
	return r, refused
}

// compose returns the body of the request, or the parts of a call that cannot be made.
//
// The head of the message is the SDK's mail.SGMailV3. The personalizations are encoded here:
// the SDK's type has two maps for each recipient, which makes a call of 1,000 recipients
// three times as expensive.
func compose(c *models.Call) ([]byte, []models.Part) {
	if refused := message.Check(c, maxRecipients); refused != nil {
		return nil, refused
	}
	all := c.Numbers()
	prefix := tokenPrefix(c)
	f := message.Fill(c.Content, func(i int, v message.Var) string {
		return prefix + string(v.Form) + strconv.Itoa(i) + "-"
	}, nil)
	if f.Subject == "" {
		return nil, message.Refuse(all, "", "SendGrid takes no message without a subject")
	}
	m := &mail.SGMailV3{
		From:       mail.NewEmail(name(c.Content.From.Name), c.Content.From.Email),
		Subject:    f.Subject,
		CustomArgs: map[string]string{attemptKey: strconv.Itoa(c.Attempt)},
	}
	setOptions(m, c)
	if f.Text != "" {
		m.Content = append(m.Content, mail.NewContent("text/plain", f.Text))
	}
	if f.HTML != "" {
		m.Content = append(m.Content, mail.NewContent("text/html", f.HTML))
	}
	head, err := encode(m)
	if err != nil {
		return nil, message.Refuse(all, "", "the message cannot be written as JSON")
	}
	body, refused := personalize(head, c, all, prefix, f.Vars)
	if refused != nil {
		return nil, refused
	}
	const tooLarge = "the request would be larger than the 30 MB that SendGrid takes"
	switch shared := len(head) + base64.StdEncoding.EncodedLen(int(c.Content.AttachmentSize())); {
	case len(body) <= maxBody:
		return body, nil
	case shared > maxBody:
		return nil, message.Refuse(all, models.TooLarge, tooLarge)
	}
	return nil, message.RefuseMany(c, tooLarge)
}

// setOptions sets what is in the content besides sender, subject and bodies. Header fields
// that differ from recipient to recipient are left to personalize, with all others: it is not
// documented that both places are merged.
func setOptions(m *mail.SGMailV3, call *models.Call) {
	c := call.Content
	for _, a := range c.ReplyTo {
		m.ReplyToList = append(m.ReplyToList, mail.NewEmail(name(a.Name), a.Email))
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
	m.Categories = message.Tags(c, maxTags)
	m.TrackingSettings = &mail.TrackingSettings{
		ClickTracking: &mail.ClickTrackingSetting{Enable: &c.TrackClicks, EnableText: new(bool)},
		OpenTracking:  &mail.OpenTrackingSetting{Enable: &c.TrackOpens},
	}
}

// encode is json.Marshal without the escaping of <, > and &, which would make HTML much
// longer.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimRight(b.Bytes(), "\n"), err
}

// personalizations makes the personalizations of a call.
type personalizations struct {
	call *models.Call
	vars []message.Var
	keys [][]byte // of vars: quoted tokens with their colon
	own  bool     // the mails have header fields of their own

	lacking models.Set // recipients without a value
	lacks   string     // for one of them: what has none
	tooLong models.Set // recipients whose values are longer than SendGrid takes
}

// append appends the personalization of a mail.
func (p *personalizations) append(b []byte, r *models.CallRecipient) []byte {
	c := p.call
	b = append(b, `{"to":[`...)
	b = append(appendPerson(b, r), ']')
	if c.Together() {
		b = appendCopies(b, c, models.CC)
		b = appendCopies(b, c, models.BCC)
	}
	b = append(b, `,"custom_args":{"`+logKey+`":"`...)
	b = append(b, r.Log.String()...)
	b = append(b, `"}`...)
	if p.own {
		var missing string
		if b, missing = appendHeaders(b, c.Content.HeadersOf(&r.Recipient), &r.Recipient); missing != "" {
			p.lack(r, missing)
		}
	}
	if len(p.vars) > 0 {
		start := len(b)
		var missing []string
		if b, missing = appendSubstitutions(b, &r.Recipient, p.vars, p.keys); len(missing) > 0 {
			p.lack(r, missing[len(missing)-1])
		}
		if len(b)-start > len(substitutions)+maxSubstitutions {
			p.tooLong.Add(r.Log.Recipient())
		}
		b = append(b, '}')
	}
	return append(b, '}')
}

// lack notes that a recipient has no value for a placeholder.
func (p *personalizations) lack(r *models.CallRecipient, name string) {
	p.lacking.Add(r.Log.Recipient())
	p.lacks = name
}

// personalize adds a personalization for each mail to the JSON object head.
func personalize(
	head []byte, c *models.Call, all models.Set, prefix string, vars []message.Var,
) ([]byte, []models.Part) {
	encoded := 0
	for _, data := range c.Files {
		encoded += 1024 + base64.StdEncoding.EncodedLen(len(data))
	}
	b := make([]byte, 0, len(head)+encoded+len(c.Recipients)*(192+96*len(vars)))
	b = append(b, head[:len(head)-1]...)
	b = appendFiles(b, c)
	b = append(b, `,"personalizations":[`...)
	p := personalizations{call: c, vars: vars, keys: make([][]byte, len(vars)), own: message.Personal(c)}
	for i, v := range vars {
		p.keys[i] = append(appendString(nil, prefix+string(v.Form)+strconv.Itoa(i)+"-"), ':')
	}
	mails := c.Recipients
	if c.Together() {
		mails = mails[:1]
	}
	for i := range mails {
		if i > 0 {
			b = append(b, ',')
		}
		b = p.append(b, &mails[i])
	}
	switch {
	case !p.lacking.Empty():
		return nil, message.Together(c, message.Missing(all, p.lacking, p.lacks))
	case !p.tooLong.Empty():
		return nil, message.Together(c, message.Without(all, models.Part{
			Class:      models.RejectedHereClass,
			Recipients: p.tooLong,
			Reason:     models.TooLarge,
			Text:       "the recipient's values are longer than the 10,000 bytes that SendGrid takes",
		}))
	}
	return append(b, ']', '}'), nil
}

// appendPerson appends the mailbox of a recipient.
func appendPerson(b []byte, r *models.CallRecipient) []byte {
	b = append(b, `{"email":`...)
	b = appendString(b, r.Email)
	if n := name(r.Name); n != "" {
		b = append(b, `,"name":`...)
		b = appendString(b, n)
	}
	return append(b, '}')
}

// appendCopies appends the recipients of a call with a role, if there are any.
func appendCopies(b []byte, c *models.Call, role models.Role) []byte {
	first := true
	for i := range c.Recipients {
		r := &c.Recipients[i]
		switch {
		case r.Role != role:
			continue
		case first:
			b = append(b, `,"`+string(role)+`":[`...)
		default:
			b = append(b, ',')
		}
		b, first = appendPerson(b, r), false
	}
	if !first {
		b = append(b, ']')
	}
	return b
}

// appendFiles appends the attachments. The base64 is written where it stays: in the SDK's type it
// would be copied three times.
func appendFiles(b []byte, c *models.Call) []byte {
	for i, data := range c.Files {
		a := &c.Content.Attachments[i]
		about := mail.Attachment{Type: a.Type, Filename: a.Filename, Disposition: "attachment", ContentID: a.ContentID}
		if a.ContentID != "" {
			about.Disposition = "inline"
		}
		object, err := encode(about)
		if err != nil {
			panic("sendgrid: encode: " + err.Error()) // strings always marshal
		}
		if i == 0 {
			b = append(b, `,"attachments":[`...)
		} else {
			b = append(b, ',')
		}
		b = append(b, `{"content":"`...)
		b = base64.StdEncoding.AppendEncode(b, data)
		b = append(append(b, `",`...), object[1:]...)
	}
	if len(c.Files) > 0 {
		b = append(b, ']')
	}
	return b
}

// appendHeaders appends the header fields of a recipient. missing names a placeholder without
// a value.
func appendHeaders(b []byte, headers []models.Header, r *models.Recipient) (_ []byte, missing string) {
	if len(headers) == 0 {
		return b, ""
	}
	b = append(b, `,"headers":{`...)
	for i := range headers {
		value, lacks := message.Header(&headers[i], r)
		if lacks != "" {
			missing = lacks
		}
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, headers[i].Name)
		b = append(b, ':')
		b = appendString(b, value)
	}
	return append(b, '}'), missing
}

const substitutions = `,"substitutions":{`

// appendSubstitutions appends the values of a recipient, without the closing brace. missing
// names the placeholders without a value.
func appendSubstitutions(
	b []byte, r *models.Recipient, vars []message.Var, keys [][]byte,
) (_ []byte, missing []string) {
	b = append(b, substitutions...)
	for k, v := range vars {
		value, ok := v.Value(r)
		if !ok {
			missing = append(missing, v.Name)
		}
		if k > 0 {
			b = append(b, ',')
		}
		b = append(b, keys[k]...)
		b = appendString(b, value)
	}
	return b, missing
}

// tokenPrefix returns the prefix of the tokens that replace placeholders in this call:
// "-sd<nonce>", then form, number and "-". SendGrid replaces them literally, one after the
// other, so no value may contain a token: it would be replaced in turn, and an unescaped
// value could get into HTML. The nonce is made from the batch's ID, which is not known when
// values are submitted. If a value or the content contains it anyway, another one is used.
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
	if strings.Contains(c.Content.Subject, s) || strings.Contains(c.Content.Text, s) ||
		strings.Contains(c.Content.HTML, s) {
		return true
	}
	for i := range c.Recipients {
		r := &c.Recipients[i]
		if strings.Contains(r.Email, s) || strings.Contains(r.Name, s) {
			return true
		}
		for _, v := range r.Vars {
			if strings.Contains(v, s) {
				return true
			}
		}
	}
	return false
}

// name returns a display name that SendGrid accepts. It rejects or misreads ';' and ','
// (sendgrid-python #291), so they become spaces. Quotes would help in "to", but would be
// shown in "from" and "reply_to".
func name(s string) string {
	s = message.Name(s)
	if strings.ContainsAny(s, ";,") {
		s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == ';' || r == ',' || r == ' ' }), " ")
	}
	return s
}

const hexDigits = "0123456789abcdef"

// appendString appends s as a JSON string. s is valid UTF-8.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	from := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		b = append(b, s[from:i]...)
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		default:
			b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
		from = i + 1
	}
	b = append(b, s[from:]...)
	return append(b, '"')
}
