package sparkpost

import (
	"encoding/base64"
	"html"
	"net/http"
	"net/mail"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/jsontext"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

const (
	maxCall     = 60 << 20
	maxContent  = 20 << 20
	maxCampaign = 64
	maxMetadata = 10 << 10
	maxValues   = 100 << 10
)

// A person is a sender or a recipient.
type person struct {
	Email    string `json:"email"`
	Name     string `json:"name"`
	HeaderTo string `json:"header_to"`
}

// A file is an attachment or an inline image.
type file struct {
	Name string `json:"name"`
	Type string `json:"type"`
	Data string `json:"data"`
}

// A recipient is one of a transmission.
type recipient struct {
	Address  person         `json:"address"`
	Tags     []string       `json:"tags"`
	Metadata jsontext.Pairs `json:"metadata"`
	Values   jsontext.Pairs `json:"substitution_data"`
}

// A transmission is the body of a call.
type transmission struct {
	Campaign   string         `json:"campaign_id"`
	Values     jsontext.Pairs `json:"substitution_data"`
	Recipients []recipient    `json:"recipients"`
	Content    struct {
		From    person         `json:"from"`
		Subject string         `json:"subject"`
		Text    string         `json:"text"`
		HTML    string         `json:"html"`
		ReplyTo string         `json:"reply_to"`
		Headers jsontext.Pairs `json:"headers"`
		Files   []file         `json:"attachments"`
		Images  []file         `json:"inline_images"`
	} `json:"content"`
}

var keyText = regexp.MustCompile(`^[A-Za-z0-9._-]{1,255}$`)

// parse reads and checks a call.
func (g SparkPost) parse(r *http.Request, body string) (*provider.Call, *provider.Answer) {
	var in transmission
	refuse := func(a provider.Answer) (*provider.Call, *provider.Answer) { return &provider.Call{}, &a }
	missing := func(what string) (*provider.Call, *provider.Answer) {
		return refuse(fail(422, "1400", "required field is missing", what+" is required"))
	}
	if key := r.Header.Get("Idempotency-Key"); key != "" && !keyText.MatchString(key) {
		return refuse(conditions[provider.KeyInvalid])
	}
	if !jsontext.Decode(body, &in) {
		return refuse(g.Say(422))
	}
	c := &in.Content
	templates := []string{c.Subject, c.Text, c.HTML, c.ReplyTo, c.From.Name}
	for _, h := range c.Headers {
		templates = append(templates, h.Value)
	}
	head, size := in.head()
	switch {
	case len(in.Recipients) == 0:
		return missing("recipients")
	case c.From.Email == "" || c.Subject == "":
		return missing("content.from and content.subject")
	case c.Text == "" && c.HTML == "":
		return missing("content.text or content.html")
	case !message.ValidAddress(c.From.Email):
		return refuse(fail(400, "7001", "Invalid domain", "Unconfigured or unverified sending domain."))
	case len(in.Campaign) > maxCampaign:
		return refuse(fail(422, "1300", "Invalid data format/type", "campaign_id is longer than 64 bytes"))
	case head == nil:
		return refuse(fail(422, "1300", "Invalid data format/type", "a file needs a name, a type and base64"))
	case size > maxContent:
		return refuse(g.Say(413))
	case slices.ContainsFunc(templates, func(s string) bool { return !valid(s) }):
		return refuse(fail(422, "3000", "substitution language syntax error in template content", ""))
	}
	return g.call(&in, head)
}

// head returns what all recipients share, and the size of the content. It is nil if a file is wrong.
func (in *transmission) head() (head *message.Batch, size int) {
	c := &in.Content
	head, size = &message.Batch{From: c.From.Email, Subject: c.Subject, Stream: strings.Clone(in.Campaign)},
		len(c.Text)+len(c.HTML)
	for i, list := range [2][]file{c.Images, c.Files} {
		for _, f := range list {
			data, err := base64.StdEncoding.DecodeString(f.Data)
			if err != nil || f.Name == "" || f.Type == "" || len(f.Name) > 255 {
				return nil, 0
			}
			size += len(f.Data)
			id := [2]string{f.Name, ""}[i]
			head.Attachments = append(head.Attachments,
				message.NewAttachment(strings.Clone(f.Name), strings.Clone(f.Type), strings.Clone(id), data))
		}
	}
	if len(in.Recipients) > 0 {
		head.Tags = slices.Clone(in.Recipients[0].Tags)
	}
	return head, size
}

// call returns the call. A recipient that is not valid is counted, and the others get their mail. Neighbours with the
// same field To have one mail.
func (g SparkPost) call(in *transmission, head *message.Batch) (*provider.Call, *provider.Answer) {
	c := &provider.Call{}
	var of [][]*recipient // by mail
	rejected := 0
	none := fail(400, "5002", "no recipients", "At least one valid recipient is required.")
	for i := range in.Recipients {
		r := &in.Recipients[i]
		if !message.ValidAddress(r.Address.Email) || bytesOf(r.Metadata) > maxMetadata || bytesOf(r.Values) > maxValues {
			rejected++
			continue
		}
		to := provider.Recipient{Address: r.Address.Email, Name: r.Address.Name}
		same := func(a *mail.Address) bool { return a.Address == r.Address.Email }
		list, err := mail.ParseAddressList(r.Address.HeaderTo)
		at := slices.IndexFunc(list, same)
		switch {
		case at >= 0:
			to.Name = list[at].Name
		case err == nil:
			if to.Flags = message.BCC; slices.ContainsFunc(in.copies(), same) {
				to.Flags = message.CC
			}
		}
		if last := len(of) - 1; r.Address.HeaderTo != "" && last >= 0 && of[last][0].Address.HeaderTo == r.Address.HeaderTo {
			c.Mails[last].To, of[last] = append(c.Mails[last].To, to), append(of[last], r)
			continue
		}
		c.Mails = append(c.Mails, provider.Mail{Head: head, To: []provider.Recipient{to}, Metadata: r.Metadata})
		of = append(of, []*recipient{r})
	}
	c.Content = func(i, k int) message.Content { return in.content(of[i][k]) }
	c.Invalid = func(list []provider.Place) *provider.Answer {
		for _, at := range slices.Backward(list) {
			m := &c.Mails[at.Mail]
			m.To, of[at.Mail] = slices.Delete(m.To, at.To, at.To+1), slices.Delete(of[at.Mail], at.To, at.To+1)
			m.Refused = len(m.To) == 0
			rejected++
		}
		if rejected == len(in.Recipients) {
			return &none
		}
		return nil
	}
	c.Accept = func(stored []*message.Batch) provider.Answer {
		results := map[string]any{"total_accepted_recipients": len(in.Recipients) - rejected,
			"total_rejected_recipients": rejected, "id": g.ID(stored[0])}
		out := map[string]any{"results": results}
		if rejected > 0 {
			results["rcpt_to_errors"] = []any{map[string]string{"message": "invalid address", "code": "5001"}}
			out["errors"] = []any{map[string]string{"code": "2000",
				"message": "transmission created, but with validation errors"}}
		}
		return provider.JSON(200, out)
	}
	if len(c.Mails) == 0 {
		return c, &none
	}
	return c, nil
}

func bytesOf(list jsontext.Pairs) (n int) {
	for _, p := range list {
		n += len(p.Key) + len(p.Value)
	}
	return n
}

// expression matches an expression: of a variable, alone or in three braces, which turn escaping off.
var (
	expression = regexp.MustCompile(`\{\{\{\s*([A-Za-z_][\w.]*)\s*\}\}\}|\{\{\s*([A-Za-z_][\w.]*)\s*\}\}`)
	links      = regexp.MustCompile(`https?://[^\s"'<>]*`)
)

// valid reports whether a template has only expressions of variables. The rest of the language is not imitated.
func valid(template string) bool {
	rest := expression.ReplaceAllString(template, "\x00")
	return !strings.Contains(rest, "{{") && !strings.Contains(rest, "}}") && !strings.Contains(rest, "{\x00") &&
		!strings.Contains(rest, "\x00}")
}

// The parts of a mail, which have other escapes.
const (
	field = iota
	text
	markup
)

// render fills in a template. Values are never templates. In two braces they are escaped in HTML, and encoded in the
// links of bodies.
func (in *transmission) render(template string, r *recipient, part int) string {
	values := map[string]string{"address.name": r.Address.Name, "address.email": r.Address.Email}
	for _, list := range []jsontext.Pairs{r.Metadata, in.Values, r.Values} {
		for _, p := range list {
			values[p.Key] = p.Value
		}
	}
	fill := func(s string, escape func(string) string) string {
		return expression.ReplaceAllStringFunc(s, func(e string) string {
			m := expression.FindStringSubmatch(e)
			if m[1] != "" {
				return values[m[1]]
			}
			return escape(values[m[2]])
		})
	}
	plain := func(s string) string { return s }
	if part == markup {
		plain = html.EscapeString
	}
	var b strings.Builder
	for begin := 0; ; {
		at := links.FindStringIndex(template[begin:])
		if at == nil || part == field {
			b.WriteString(fill(template[begin:], plain))
			return b.String()
		}
		b.WriteString(fill(template[begin:begin+at[0]], plain))
		b.WriteString(fill(template[begin+at[0]:begin+at[1]], url.QueryEscape))
		begin += at[1]
	}
}

// copies returns the addresses in Cc.
func (in *transmission) copies() (out []*mail.Address) {
	for _, h := range in.Content.Headers {
		if strings.EqualFold(h.Key, "Cc") {
			out, _ = mail.ParseAddressList(h.Value) // without one, the others are in Bcc
		}
	}
	return out
}

// content returns what a recipient reads.
func (in *transmission) content(r *recipient) message.Content {
	c := &in.Content
	var headers []message.Pair
	for _, h := range c.Headers {
		if !strings.EqualFold(h.Key, "Cc") {
			headers = append(headers, message.Pair{Key: h.Key, Value: in.render(h.Value, r, field)})
		}
	}
	var replies []string
	if c.ReplyTo != "" {
		replies = []string{in.render(c.ReplyTo, r, field)}
	}
	return message.Content{Subject: in.render(c.Subject, r, field), Text: in.render(c.Text, r, text),
		HTML: in.render(c.HTML, r, markup), Headers: provider.Headers(headers, replies)}
}
