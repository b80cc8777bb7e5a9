package mailgun

import (
	"context"
	"encoding/hex"
	"net/http"
	"net/mail"
	"regexp"
	"strconv"
	"strings"

	sdk "github.com/mailgun/mailgun-go/v4"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/message"
	"github.com/safedelivr/safedelivr/providers/internal/transport"
)

// Send implements models.Adapter with one request that has variables for every recipient.
// They make Mailgun send a separate copy to each; without them all recipients would see each
// other.
func (p *Adapter) Send(ctx context.Context, c *models.Call) []models.Part {
	return kind.Send(ctx, &p.Base, c, compose, func(ctx context.Context, m *sdk.Message) error {
		return p.send(ctx, c, m, p.Keys().API, p.Client.HTTP.Transport)
	}, p.classify)
}

// Compose implements models.Composer. The SDK writes the request into a reader that keeps it.
func (p *Adapter) Compose(c *models.Call) (models.Request, []models.Part) {
	m, refused := compose(c)
	if refused != nil {
		return models.Request{}, refused
	}
	var kept transport.Kept
	_ = p.send(context.Background(), c, m, "no key", &kept) // always an error: nothing is sent
	return kept.Request, nil
}

// send sends a message through a transport.
func (p *Adapter) send(ctx context.Context, c *models.Call, m *sdk.Message, key string, to http.RoundTripper) error {
	mg := sdk.NewMailgun(p.Sender, key)
	mg.SetAPIBase(p.Root + version)
	client := *p.Client.HTTP // which follows no redirect
	client.Transport = fileWriter{c, to}
	mg.SetClient(&client)
	_, _, err := mg.Send(ctx, m)
	return err
}

// compose returns the message, or the parts of a call that cannot be made.
func compose(c *models.Call) (*sdk.Message, []models.Part) {
	if refused := message.Check(c, Spec.Recipients); refused != nil {
		return nil, refused
	}
	if c.Together() {
		return composeTogether(c)
	}
	escaped := false
	f := message.Fill(c.Content, func(_ int, v message.Var) string {
		return "%recipient." + key(v) + "%"
	}, func(form message.Form, s string) string { return literal(form, s, &escaped) })
	headers, personal := c.Content.HeadersOf(&c.Recipients[0].Recipient), message.Personal(c)
	m, refused := begin(c, f.Subject, f.Text, f.HTML, "%recipient."+kind.LogKey+"%", headers, func(i int) string {
		if personal { // it differs from recipient to recipient
			return "%recipient.sd_h" + strconv.Itoa(i) + "%"
		}
		text, _ := message.Header(&headers[i], nil)
		return literal(message.SubjectForm, text, &escaped)
	})
	if refused != nil {
		return nil, refused
	}
	return m, addRecipients(m, c, f.Vars, escaped)
}

// composeTogether is compose for one mail to all recipients. It has no variables of recipients, so that Mailgun sends
// one mail, and the values of the recipient in To are filled in here. The events come back with the log of that
// recipient, and with the address that they are about.
func composeTogether(c *models.Call) (*sdk.Message, []models.Part) {
	var flaws message.Flaws
	to := &c.Recipients[0]
	f, missing := message.Render(c.Content, &to.Recipient)
	if missing != "" {
		flaws.Lack(to, missing)
	}
	replaced := theirs.MatchString(f.Subject) || theirs.MatchString(f.Text)
	html := literal(message.HTMLForm, f.HTML, nil)
	m, refused := begin(c, f.Subject, f.Text, html, to.Log.String(), f.Headers, func(i int) string {
		replaced = replaced || theirs.MatchString(f.Headers[i].Value)
		return f.Headers[i].Value
	})
	if refused == nil {
		refused = flaws.Parts(c, "")
	}
	if refused == nil && replaced {
		refused = message.Refuse(c.Numbers(), "",
			"the text has a variable of Mailgun's, and a message to several addresses cannot protect it")
	}
	if refused != nil {
		return nil, refused
	}
	for i := range c.Recipients {
		r := &c.Recipients[i]
		switch named := recipient(&r.Recipient); r.Role {
		case models.CC:
			m.AddCC(named)
		case models.BCC:
			m.AddBCC(named)
		case models.To:
			_ = m.AddRecipient(named) // it fails only for too many
		}
	}
	return m, nil
}

// begin returns a message without its recipients. log is what comes back with the events, and value returns the value
// of a header field by its index.
func begin(
	call *models.Call, subject, text, html, log string, headers []models.Header, value func(i int) string,
) (*sdk.Message, []models.Part) {
	c := call.Content
	m := sdk.NewMessage(address(c.From), subject, text)
	if html != "" {
		m.SetHTML(html)
	}
	// These cannot fail, because both values are strings.
	_ = m.AddVariable(kind.LogKey, log)
	_ = m.AddVariable(kind.AttemptKey, strconv.Itoa(call.Attempt))
	size := len("v:v:o:tracking-clickso:tracking-opensyesyes") + len(kind.LogKey+log+kind.AttemptKey) + 8
	header := func(name, value string) {
		m.AddHeader(name, value)
		size += len("h:") + len(name) + len(value)
	}
	var reply []string
	for _, a := range c.ReplyTo {
		reply = append(reply, address(a))
	}
	if len(reply) > 0 {
		header("Reply-To", strings.Join(reply, ", "))
	}
	for i := range headers {
		header(headers[i].Name, value(i))
	}
	for _, tag := range c.Slugs(Spec.Carries.Tags) {
		_ = m.AddTag(tag) // it fails only for too many
		size += len("o:tag") + len(tag)
	}
	m.SetTrackingClicks(c.TrackClicks)
	m.SetTrackingOpens(c.TrackOpens)
	switch {
	case size > maxOptions:
		return nil, message.Refuse(call.Numbers(), models.TooLarge,
			"the options of the message are longer than the 16 kB that Mailgun takes")
	case len(subject)+len(text)+len(html)+int(c.AttachmentSize()) > maxMessage:
		return nil, message.Refuse(call.Numbers(), models.TooLarge, "the message is larger than the 25 MB that Mailgun takes")
	}
	return m, nil
}

// addRecipients adds the recipients with all their variables. A placeholder without a
// variable would stay in the mail.
func addRecipients(m *sdk.Message, c *models.Call, vars []message.Var, escaped bool) []models.Part {
	keys := make([]string, len(vars))
	for i, v := range vars {
		keys[i] = key(v)
	}
	headers, personal := c.Content.HeadersOf(&c.Recipients[0].Recipient), message.Personal(c)
	content := int(c.Content.Size())
	request := content
	var flaws message.Flaws
	var other models.Set // recipients with other header fields than the first
	for i := range c.Recipients {
		r := &c.Recipients[i]
		own, size := make(map[string]any, len(keys)+2), 0
		set := func(key, value string) {
			own[key] = value
			size += len(key) + len(value) + 8
		}
		for k, v := range vars {
			value, ok := v.Value(&r.Recipient)
			if !ok {
				flaws.Lack(r, v.Name)
			}
			if v.Form == message.HTMLForm {
				value = literal(message.HTMLForm, value, nil)
			}
			set(keys[k], value)
		}
		if personal && !setHeaders(set, c.Content.HeadersOf(&r.Recipient), headers, r, &flaws) {
			other.Add(r.Log.Recipient())
		}
		if content+size > maxMessage {
			flaws.TooLong(r)
		}
		own[kind.LogKey] = r.Log.String()
		if escaped {
			own[percentKey] = "%"
		}
		// It fails only for too many. The variables are keyed by the bare address, and the SDK has no way to add a
		// name to it: so the name is put into the message's own list.
		_ = m.AddRecipientAndVariables(r.Email, own)
		m.To()[i] = recipient(&r.Recipient)
		request += size + len(m.To()[i]) + len(r.Email) + 256
	}
	if !other.Empty() {
		return message.Without(c.Numbers(), models.Part{
			Class:      models.RejectedHereClass,
			Recipients: other,
			Text:       "the recipient has other header fields than the first of the call, which Mailgun cannot carry",
		})
	}
	refused := flaws.Parts(c, "the recipient's values make the message larger than the 25 MB that Mailgun takes")
	if refused == nil && request > maxRequest {
		return message.RefuseMany(c, "the request would be larger than the 52.4 MB that Mailgun takes")
	}
	return refused
}

// setHeaders sets the variables for a recipient's header fields. It reports whether they have the names of all.
func setHeaders(
	set func(key, value string), own, all []models.Header, r *models.CallRecipient, flaws *message.Flaws,
) bool {
	for k := range all {
		at := models.FindHeader(own, all[k].Name)
		if at < 0 {
			return false
		}
		value, missing := message.Header(&own[at], &r.Recipient)
		if missing != "" {
			flaws.Lack(r, missing)
		}
		set("sd_h"+strconv.Itoa(k), value)
	}
	return len(own) == len(all)
}

// recipient returns the address of a recipient with its name. It returns only the address if
// Mailgun could replace something in the name or read the whole as another address.
func recipient(r *models.Recipient) string {
	to := address(models.Address{Name: r.Name, Email: r.Email})
	if !strings.HasSuffix(to, "<"+r.Email+">") || strings.Contains(r.Name, "%") && theirs.MatchString(r.Name) {
		return r.Email
	}
	return to
}

// address returns an address for a header field. A name with special characters is quoted,
// a name that is not ASCII is encoded (RFC 2047).
func address(a models.Address) string {
	name := message.Name(a.Name)
	if name == "" {
		return a.Email
	}
	return (&mail.Address{Name: name, Address: a.Email}).String()
}

// key returns the name of a recipient variable: the form, '_' and the placeholder's name in hex. So different
// placeholders have different keys, whether Mailgun ignores case or not, and none is another of ours.
func key(v message.Var) string { return string(v.Form) + "_" + hex.EncodeToString([]byte(v.Name)) }

// percentKey is the name of a recipient variable whose value is a percent sign.
const percentKey = "sd_pct"

// theirs matches what Mailgun replaces by itself: %recipient%, %recipient.x%,
// %recipient_email%, %unsubscribe_url%, %tag_unsubscribe_url% and the like.
var theirs = regexp.MustCompile(`%(recipient|unsubscribe_|tag_unsubscribe_|mailing_list_unsubscribe_)`)

// literal protects text that looks like a placeholder of Mailgun's. There is no documented way
// to escape one. In HTML, also in values, the percent sign becomes an entity, which is safe. In text and subject
// it becomes a variable, as long as Mailgun replaces in one pass. A variable in a value would not be replaced.
func literal(form message.Form, s string, escaped *bool) string {
	if !strings.Contains(s, "%") || !theirs.MatchString(s) {
		return s
	}
	if form == message.HTMLForm {
		return theirs.ReplaceAllString(s, "&#37;$1")
	}
	*escaped = true
	return theirs.ReplaceAllString(s, "%recipient."+percentKey+"%$1")
}
