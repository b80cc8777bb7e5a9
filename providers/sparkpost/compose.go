package sparkpost

import (
	"encoding/base64"
	"slices"
	"strconv"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/message"
)

// token returns the expression of a value ("Template Language"). In bodies {{{x}}} is the value as it is: {{x}} would
// be escaped for HTML, and encoded in links. In the subject and in header fields {{x}} is. SparkPost fills in each
// value once, so that it reads none as a template.
func token(form message.Form, name string) string {
	if form == message.SubjectForm {
		return "{{" + name + "}}"
	}
	return "{{{" + name + "}}}"
}

// numbered returns the name of a value.
func numbered(kind string, i int) string { return kind + strconv.Itoa(i) }

// The names of braces that are values.
const (
	openBrace  = "sd_o"
	closeBrace = "sd_c"
)

// literal returns a stretch of the message as a template. Braces beside others, or beside an expression, could be read
// as one, so that they are values.
func literal(form message.Form, s string) string {
	var b strings.Builder
	brace := func(i int) bool { return i < 0 || i >= len(s) || s[i] == '{' || s[i] == '}' }
	from := 0
	for i := strings.IndexAny(s, "{}"); i >= 0 && i < len(s); i++ {
		if brace(i) && (brace(i-1) || brace(i+1)) {
			b.WriteString(s[from:i])
			b.WriteString(token(form, map[byte]string{'{': openBrace, '}': closeBrace}[s[i]]))
			from = i + 1
		}
	}
	b.WriteString(s[from:])
	return b.String()
}

// name returns a name without braces, which would be read as a template.
func name(s string) string { return message.Unmarked(message.Name(s), "{}") }

// A transmission is a request while it is written.
type transmission struct {
	kind.Writer
	message.Flaws
	*models.Call
	message.Filled
	headers []string // names of the header fields; their values are those of each recipient
}

// Compose implements models.Composer.
func (p *Adapter) Compose(c *models.Call) (r models.Request, refused []models.Part) {
	r = p.Request("/api/v1/transmissions", nil)
	if refused = message.Check(c, Spec.Recipients); refused != nil {
		return r, refused
	}
	size := len(c.Content.Text) + len(c.Content.HTML) + base64.StdEncoding.EncodedLen(int(c.Content.AttachmentSize()))
	braced := func(a models.Address) bool { return strings.ContainsAny(a.Email, "{}") }
	switch {
	case size > maxContent:
		return r, message.Refuse(c.Numbers(), models.TooLarge, "the message is larger than the 20 MB that SparkPost takes")
	case c.Content.Subject == "":
		return r, message.Refuse(c.Numbers(), "", "SparkPost takes no message without a subject")
	case braced(c.Content.From) || slices.ContainsFunc(c.Content.ReplyTo, braced):
		return r, message.Refuse(c.Numbers(), "", "SparkPost reads braces in an address as a template")
	}
	t := transmission{Call: c, Filled: message.Fill(c.Content,
		func(i int, v message.Var) string { return token(v.Form, numbered("v", i)) }, literal)}
	t.head()
	t.Key("recipients").Begin('[')
	for i := range c.Recipients {
		if t.recipient(&c.Recipients[i]); len(t.Writer) > maxRequest && i > 0 {
			parts := message.RefuseMany(c, "the request would be larger than 30 MB")
			if !c.Together() {
				parts[0].Fewer = i
			}
			return r, parts
		}
	}
	t.End(']').End('}')
	r.Body = t.Writer
	return r, t.Parts(c, "the recipient's values are longer than the 100 KB that SparkPost takes")
}

// head writes what all recipients share. Mail with a field List-Unsubscribe is not transactional: SparkPost does not
// send it to those who unsubscribed.
func (t *transmission) head() {
	c, marketing := t.Content, false
	for _, h := range c.HeadersOf(&t.Recipients[0].Recipient) {
		t.headers = append(t.headers, h.Name)
		marketing = marketing || strings.EqualFold(h.Name, "List-Unsubscribe")
	}
	t.Begin('{').Field("campaign_id", campaign(t.Recipients[0].Log.ChunkID()))
	t.Key("options").Begin('{').Bool("open_tracking", c.TrackOpens).Bool("initial_open", false)
	t.Bool("click_tracking", c.TrackClicks).Bool("transactional", !marketing).End('}')
	t.Key("substitution_data").Begin('{').Field(openBrace, "{").Field(closeBrace, "}").End('}')
	t.Key("content").Begin('{').Key("from").Begin('{').Field("email", c.From.Email).Optional("name", name(c.From.Name))
	t.End('}').Field("subject", t.Filled.Subject).Optional("text", t.Filled.Text).Optional("html", t.Filled.HTML)
	var replies []string
	for _, a := range c.ReplyTo {
		replies = append(replies, message.Named(name(a.Name), a.Email))
	}
	t.Optional("reply_to", strings.Join(replies, ", "))
	t.Key("headers").Begin('{')
	for i, name := range t.headers {
		t.Pair(name, token(message.SubjectForm, numbered("h", i)))
	}
	t.Optional("CC", message.List(message.In(models.CC, t.Call, &t.Recipients[0]), name)).End('}')
	for _, inline := range [2]bool{false, true} {
		t.Key(map[bool]string{false: "attachments", true: "inline_images"}[inline]).Begin('[')
		for i, data := range t.Files {
			if a := &c.Attachments[i]; (a.ContentID != "") == inline {
				name := map[bool]string{false: a.Filename, true: a.ContentID}[inline]
				t.Begin('{').Field("name", name).Field("type", a.Type).Base64("data", data).End('}')
			}
		}
		t.End(']')
	}
	t.End('}')
}

// campaign returns a chunk as the campaign of its transmissions. A search for it splits at dashes.
func campaign(chunk models.ID) string { return strings.ReplaceAll(chunk.String(), "-", "") }

// recipient writes a recipient. One mail to all has the values and the metadata of the first.
func (t *transmission) recipient(r *models.CallRecipient) {
	if strings.ContainsAny(r.Email, "{}") {
		t.Unfit(r, "SparkPost reads braces in an address as a template")
	}
	own := r
	t.Begin('{').Key("address").Begin('{').Field("email", r.Email)
	if t.Together() {
		own = &t.Recipients[0]
		t.Field("header_to", message.List(message.In(models.To, t.Call, own), name))
	} else {
		t.Optional("name", name(r.Name))
	}
	t.End('}')
	kind.Some(&t.Writer, "tags", '[', t.Content.Slugs(Spec.Carries.Tags), func(tag string) { t.String(tag) })
	t.Key("metadata").Begin('{').Field(kind.LogKey, own.Log.String())
	t.Field(kind.AttemptKey, strconv.Itoa(t.Attempt)).End('}')
	start := len(t.Writer)
	t.Key("substitution_data").Begin('{')
	for i, v := range t.Vars {
		value, ok := v.Value(&own.Recipient)
		if !ok {
			t.Lack(r, v.Name)
		}
		t.Field(numbered("v", i), value)
	}
	t.ownHeaders(r, own)
	if t.End('}').End('}'); len(t.Writer)-start > maxValues {
		t.TooLong(r)
	}
}

// ownHeaders writes the values of header fields. All recipients must have fields of the same names.
func (t *transmission) ownHeaders(r, own *models.CallRecipient) {
	headers := t.Content.HeadersOf(&own.Recipient)
	other := func(h models.Header) bool { return !slices.Contains(t.headers, h.Name) }
	if len(headers) != len(t.headers) || slices.ContainsFunc(headers, other) {
		t.Unfit(r, "the mails of a call have header fields of the same names at SparkPost")
		return
	}
	for _, h := range headers {
		value := models.Rewrite(h.Value, func(name string) string {
			v, ok := own.Value(name)
			if !ok {
				t.Lack(r, name)
			}
			return v
		})
		t.Field(numbered("h", slices.Index(t.headers, h.Name)), models.OneLine(value))
	}
}
