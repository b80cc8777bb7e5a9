package mailgun

import (
	"context"
	"net/http"
	"net/mail"
	"regexp"
	"strconv"
	"strings"
	"time"

	sdk "github.com/mailgun/mailgun-go/v4"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/message"
	"github.com/safedelivr/safedelivr/providers/internal/transport"
)

// Send implements models.Adapter with one request that has variables for every recipient.
// They make Mailgun send a separate copy to each; without them all recipients would see each
// other. Send ends with ctx or after the provider's time-out.
func (p *Adapter) Send(ctx context.Context, c *models.Call) []models.Part {
	if len(c.Recipients) == 0 {
		return nil
	}
	m, refused := compose(c)
	if refused != nil {
		return refused
	}
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	ctx, x := transport.Record(ctx, c.StartBy)
	_, _, err := p.keys.Load().sdk.Send(withFiles(ctx, c), m)
	if x.Status == 0 {
		class, reason, text := x.NoAnswer(err)
		return whole(c, class, reason, 0, p.words(text))
	}
	return p.classify(c, x.Answer, time.Now())
}

// Compose implements models.Composer. The SDK writes the request into a reader that keeps it.
func (p *Adapter) Compose(c *models.Call) (models.Request, []models.Part) {
	m, refused := compose(c)
	if refused != nil {
		return models.Request{}, refused
	}
	var kept transport.Kept
	writer := sdk.NewMailgun(p.domain, "no key")
	writer.SetAPIBase(p.base)
	writer.SetClient(&http.Client{Transport: fileWriter{&kept}})
	_, _, _ = writer.Send(withFiles(context.Background(), c), m) // always an error: nothing is sent
	return kept.Request, nil
}

// compose returns the message, or the parts of a call that cannot be made.
func compose(c *models.Call) (*sdk.Message, []models.Part) {
	if refused := message.Check(c, maxRecipients); refused != nil {
		return nil, refused
	}
	all := c.Numbers()
	if c.Together() {
		return composeTogether(c)
	}
	escaped := false
	f := message.Fill(c.Content, func(_ int, v message.Var) string {
		return "%recipient." + key(v) + "%"
	}, func(form message.Form, s string) string { return literal(form, s, &escaped) })

	m := sdk.NewMessage(address(c.Content.From), f.Subject, f.Text)
	if f.HTML != "" {
		m.SetHTML(f.HTML)
	}
	headers, personal := c.Content.HeadersOf(&c.Recipients[0].Recipient), message.Personal(c)
	value := func(i int) string {
		if personal { // it differs from recipient to recipient
			return "%recipient." + headerKey(i) + "%"
		}
		text, _ := message.Header(&headers[i], nil)
		return literal(message.SubjectForm, text, &escaped)
	}
	if refused := setOptions(m, c, "%recipient."+logKey+"%", headers, value); refused != nil {
		return nil, refused
	}
	return m, addRecipients(m, c, all, f, escaped)
}

// setOptions sets what is in the call besides sender, subject, bodies and recipients. log is what
// comes back with the events, and value returns the value of a header field by its index.
func setOptions(
	m *sdk.Message, call *models.Call, log string, headers []models.Header, value func(i int) string,
) (refused []models.Part) {
	c := call.Content
	size := len("v:") + len(logKey) + len(log) + len("v:") + len(attemptKey) + 8
	// These cannot fail, because both values are strings.
	_ = m.AddVariable(logKey, log)
	_ = m.AddVariable(attemptKey, strconv.Itoa(call.Attempt))
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
	for _, tag := range message.Tags(c, maxTags) {
		_ = m.AddTag(tag) // it fails only for too many
		size += len("o:tag") + len(tag)
	}
	m.SetTrackingClicks(c.TrackClicks)
	m.SetTrackingOpens(c.TrackOpens)
	if size += len("o:tracking-clicks") + len("o:tracking-opens") + 2*len("yes"); size > maxOptions {
		return message.Refuse(call.Numbers(), models.TooLarge,
			"the options of the message are longer than the 16 kB that Mailgun takes")
	}
	return nil
}

// headerKey is the name of the recipient variable that is the value of header field i.
func headerKey(i int) string { return "sd_h" + strconv.Itoa(i) }

// variables makes the variables of the recipients of a call.
type variables struct {
	call    *models.Call
	vars    []message.Var
	keys    []string // of vars
	escaped bool
	headers []models.Header // of the first recipient
	own     bool            // each recipient has header fields of its own

	lacking models.Set // recipients without a value
	lacks   string     // for one of them: what has none
	other   models.Set // recipients with other header fields than the first
}

func newVariables(c *models.Call, f message.Filled, escaped bool) *variables {
	v := &variables{call: c, vars: f.Vars, keys: make([]string, len(f.Vars)), escaped: escaped}
	for i := range f.Vars {
		v.keys[i] = key(f.Vars[i])
	}
	v.headers, v.own = c.Content.HeadersOf(&c.Recipients[0].Recipient), message.Personal(c)
	return v
}

// of returns the variables of a recipient and their size.
func (v *variables) of(r *models.CallRecipient) (vars map[string]any, size int) {
	vars = make(map[string]any, len(v.keys)+2)
	vars[logKey] = r.Log.String()
	if v.escaped {
		vars[percentKey] = "%"
	}
	set := func(key, value string) {
		vars[key] = value
		size += len(key) + len(value) + 8
	}
	for k, one := range v.vars {
		value, ok := one.Value(&r.Recipient)
		if !ok {
			v.lack(r, one.Name)
		}
		if one.Form == message.HTMLForm {
			value = literal(message.HTMLForm, value, nil)
		}
		set(v.keys[k], value)
	}
	if !v.own {
		return vars, size
	}
	fields := v.call.Content.HeadersOf(&r.Recipient)
	if len(fields) != len(v.headers) {
		v.other.Add(r.Log.Recipient())
	}
	for k := range v.headers {
		at := models.FindHeader(fields, v.headers[k].Name)
		if at < 0 {
			v.other.Add(r.Log.Recipient())
			break
		}
		value, missing := message.Header(&fields[at], &r.Recipient)
		if missing != "" {
			v.lack(r, missing)
		}
		set(headerKey(k), value)
	}
	return vars, size
}

// lack notes that a recipient has no value for a placeholder.
func (v *variables) lack(r *models.CallRecipient, name string) {
	v.lacking.Add(r.Log.Recipient())
	v.lacks = name
}

// addRecipients adds the recipients with all their variables. A placeholder without a
// variable would stay in the mail.
func addRecipients(m *sdk.Message, c *models.Call, all models.Set, f message.Filled, escaped bool) []models.Part {
	variables := newVariables(c, f, escaped)
	content := len(f.Subject) + len(f.Text) + len(f.HTML) + int(c.Content.AttachmentSize())
	request := content
	var tooLong models.Set
	for i := range c.Recipients {
		r := &c.Recipients[i]
		vars, own := variables.of(r)
		if content+own > maxMessage {
			tooLong.Add(r.Log.Recipient())
		}
		// It fails only for too many recipients, which compose has checked. The variables are keyed by
		// the bare address, and the SDK has no way to add a name to it: so the name is put into the
		// message's own list.
		_ = m.AddRecipientAndVariables(r.Email, vars)
		to := recipient(&r.Recipient)
		m.To()[i] = to
		request += own + len(to) + len(r.Email) + 256
	}
	switch {
	case !variables.lacking.Empty():
		return message.Missing(all, variables.lacking, variables.lacks)
	case !variables.other.Empty():
		return message.Without(all, models.Part{
			Class:      models.RejectedHereClass,
			Recipients: variables.other,
			Text:       "the recipient has other header fields than the first of the call, which Mailgun cannot carry",
		})
	case content > maxMessage:
		return message.Refuse(all, models.TooLarge, "the message is larger than the 25 MB that Mailgun takes")
	case request > maxRequest:
		return message.RefuseMany(c, "the request would be larger than the 52.4 MB that Mailgun takes")
	case !tooLong.Empty():
		return message.Without(all, models.Part{
			Class:      models.RejectedHereClass,
			Recipients: tooLong,
			Reason:     models.TooLarge,
			Text:       "the recipient's values make the message larger than the 25 MB that Mailgun takes",
		})
	}
	return nil
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

// key returns the name of a recipient variable: the form, '_' and the placeholder's name, in
// which every byte but a-z and 0-9 becomes '_' and two hex digits. So different placeholders
// have different keys, whether Mailgun ignores case or not, and none is logKey, attemptKey
// or percentKey.
func key(v message.Var) string {
	const hexDigits = "0123456789abcdef"
	b := make([]byte, 0, len(v.Name)+8)
	b = append(b, byte(v.Form), '_')
	for i := 0; i < len(v.Name); i++ {
		if c := v.Name[i]; c >= 'a' && c <= 'z' || c >= '0' && c <= '9' {
			b = append(b, c)
		} else {
			b = append(b, '_', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	return string(b)
}

// percentKey is the name of a recipient variable whose value is a percent sign.
const percentKey = "sd_pct"

// theirs matches what Mailgun replaces by itself: %recipient%, %recipient.x%,
// %recipient_email%, %unsubscribe_url%, %tag_unsubscribe_url% and the like.
var theirs = regexp.MustCompile(`%(recipient|unsubscribe_|tag_unsubscribe_|mailing_list_unsubscribe_)`)

// literal protects text that looks like a placeholder of Mailgun's. There is no documented way
// to escape one. In HTML the percent sign becomes an entity, which is safe. In text and subject
// it becomes a variable. That works as long as Mailgun replaces in one pass, as it does now.
//
// Values in text and subject are not protected, because a variable in a value would not be
// replaced. Values in HTML are protected.
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
