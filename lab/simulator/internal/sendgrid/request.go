package sendgrid

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"mime"
	"net/http"
	"net/mail"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/jsontext"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

const (
	maxRecipients = 1000
	maxArgs       = 10_000 // bytes, of custom_args and of substitutions, per personalization
	maxCategories = 10
	maxCategory   = 255
	maxAhead      = 72 * time.Hour
)

// A request is a mail/send body. Its texts are parts of it.
type request struct {
	*jsontext.Reader
	from         string
	subject      string
	template     string
	contents     []content
	args         []message.Pair // message level
	categories   []string
	headers      []message.Pair // message level
	replies      []address      // of reply_to
	attachments  []attachment
	people       []personalization
	sendAt       int64
	hasReply     bool
	hasReplyList bool
	sandbox      bool
}

type content struct{ kind, value string }

// An attachment is a file. Its content is base64.
type attachment struct{ content, kind, filename, disposition, contentID string }

type personalization struct {
	addrs         []address
	args, headers []message.Pair
	subs          string // JSON; "" if there are none
	subject       string
	sendAt        int64
}

// An address is one address of a personalization. i is its index in to, cc or bcc.
type address struct {
	addr, name string
	i          int
	flags      uint8
}

// roles names the member that holds addresses with these flags.
var roles = map[uint8]string{0: "to", message.CC: "cc", message.BCC: "bcc"}

// parse reads and checks a call.
func parse(call *http.Request, body []byte) (provider.Request, *provider.Answer) {
	r := &request{Reader: jsontext.NewReader(string(body))}
	fail := func(a provider.Answer) (provider.Request, *provider.Answer) { return r, &a }
	if kind, _, _ := mime.ParseMediaType(call.Header.Get("Content-Type")); kind != typeJSON {
		return fail(statuses[http.StatusUnsupportedMediaType])
	}
	if r.read(); !r.OK() {
		return fail(statuses[http.StatusBadRequest])
	}
	if list := r.check(time.Now()); len(list) > 0 {
		return fail(errorList(http.StatusBadRequest, list...))
	}
	return r, nil
}

// read reads the document. A value of the wrong type makes it invalid; SendGrid
// names neither field nor reason then.
func (r *request) read() {
	r.Object(func(key string) {
		if r.Null() {
			return
		}
		switch key {
		case "personalizations":
			r.Array(r.readPerson)
		case "from":
			r.from = r.readAddress().addr
		case "reply_to":
			r.replies = append(r.replies, r.readAddress())
			r.hasReply = true
		case "reply_to_list":
			r.Array(func() { r.replies, r.hasReplyList = append(r.replies, r.readAddress()), true })
		case "headers":
			r.headers = readPairs(r.Reader)
		case "subject":
			r.subject = r.String()
		case "template_id":
			r.template = r.String()
		case "content":
			r.Array(r.readContent)
		case "attachments":
			r.Array(r.readAttachment)
		case "custom_args":
			r.args = readPairs(r.Reader)
		case "categories":
			r.Array(func() { r.categories = append(r.categories, r.String()) })
		case "send_at":
			r.sendAt = r.integer()
		case "mail_settings":
			r.Object(r.readSetting)
		default:
			r.Skip()
		}
	})
}

// readSetting reads a member of mail_settings.
func (r *request) readSetting(key string) {
	if key != "sandbox_mode" || r.Null() {
		r.Skip()
		return
	}
	r.Object(func(key string) {
		switch value := r.Skip(); {
		case key != "enable":
		case value == "true", value == "false":
			r.sandbox = value == "true"
		default:
			r.Fail()
		}
	})
}

func (r *request) integer() int64 {
	n, err := strconv.ParseInt(r.Skip(), 10, 64)
	if err != nil {
		r.Fail()
	}
	return n
}

func (r *request) readPerson() {
	var p personalization
	r.Object(func(key string) {
		if r.Null() {
			return
		}
		switch key {
		case "to":
			p.read(r, 0)
		case "cc":
			p.read(r, message.CC)
		case "bcc":
			p.read(r, message.BCC)
		case "subject":
			p.subject = r.String()
		case "custom_args":
			p.args = readPairs(r.Reader)
		case "substitutions":
			p.subs = r.skipPairs()
		case "headers":
			p.headers = readPairs(r.Reader)
		case "send_at":
			p.sendAt = r.integer()
		default:
			r.Skip()
		}
	})
	r.people = append(r.people, p)
}

// read reads the addresses of a role.
func (p *personalization) read(r *request, flags uint8) {
	i := 0
	r.Array(func() {
		a := r.readAddress()
		a.i, a.flags = i, flags
		p.addrs = append(p.addrs, a)
		i++
	})
}

func (r *request) readAddress() (a address) {
	r.Object(func(key string) {
		switch {
		case key == "email":
			a.addr = r.String()
		case key == "name" && !r.Null():
			a.name = r.String()
		case key != "name":
			r.Skip()
		}
	})
	return a
}

func (r *request) readContent() {
	var c content
	r.Object(func(key string) {
		switch key {
		case "type":
			c.kind = r.String()
		case "value":
			c.value = r.String()
		default:
			r.Skip()
		}
	})
	r.contents = append(r.contents, c)
}

func (r *request) readAttachment() {
	var a attachment
	fields := map[string]*string{
		"content":     &a.content,
		"type":        &a.kind,
		"filename":    &a.filename,
		"disposition": &a.disposition,
		"content_id":  &a.contentID,
	}
	r.Object(func(key string) {
		if field := fields[key]; field == nil || r.Null() {
			r.Skip()
		} else {
			*field = r.String()
		}
	})
	r.attachments = append(r.attachments, a)
}

// files returns the attachments, which check has found to be valid.
func (r *request) files() (out []message.Attachment) {
	for _, a := range r.attachments {
		data, _ := base64.StdEncoding.DecodeString(a.content)
		id := ""
		if a.disposition == "inline" {
			id = a.contentID
		}
		out = append(out, message.NewAttachment(strings.Clone(a.filename), strings.Clone(a.kind), strings.Clone(id), data))
	}
	return out
}

// readPairs reads an object of strings; anything else is a bad request.
func readPairs(r *jsontext.Reader) (list []message.Pair) {
	r.Object(func(key string) { list = append(list, message.Pair{Key: key, Value: r.String()}) })
	return list
}

// skipPairs checks what readPairs would read and returns its JSON, or "" if it is empty.
// Most substitutions are not needed, and those with escapes are costly to read.
func (r *request) skipPairs() string {
	empty := true
	text := r.Text(func() {
		r.Object(func(string) {
			if empty = false; r.Peek() != '"' {
				r.Fail()
			}
			r.Skip()
		})
	})
	if empty {
		return ""
	}
	return text
}

// substitutions returns the substitutions of the personalization.
func (p *personalization) substitutions() []message.Pair {
	if p.subs == "" {
		return nil
	}
	return readPairs(jsontext.NewReader(p.subs))
}

// Addresses implements provider.Request.
func (r *request) Addresses() (list []string) {
	for i := range r.people {
		for _, a := range r.people[i].addrs {
			list = append(list, a.addr)
		}
	}
	return list
}

// Dry implements provider.Request.
func (r *request) Dry() bool { return r.sandbox }

// Refuse implements provider.Request. SendGrid names all addresses.
func (r *request) Refuse(match func(string) bool) *provider.Answer {
	var list []apiError
	for i, p := range r.people {
		for _, a := range p.addrs {
			if match(a.addr) {
				list = append(list, invalidAddress(i, a))
			}
		}
	}
	if len(list) == 0 {
		return nil
	}
	a := errorList(http.StatusBadRequest, list...)
	return &a
}

// invalidAddress returns the error for an address of a personalization that is not valid.
func invalidAddress(person int, a address) apiError {
	return apiError{
		message: "Does not contain a valid address.",
		field:   fmt.Sprintf("personalizations.%d.%s.%d.email", person, roles[a.flags], a.i),
		help:    helpURL + "message.personalizations." + roles[a.flags],
	}
}

// Batch implements provider.Request. Metadata of the message level is shared; that
// of a personalization replaces it key by key. Substitutions are rendered into
// subject and content, not into custom_args.
func (r *request) Batch(keep bool) message.Batch {
	b := message.Batch{
		From:        strings.Clone(r.from),
		Subject:     strings.Clone(r.subject),
		Shared:      cloned(r.args),
		Copies:      make([]message.Copy, 0, len(r.people)),
		Attachments: r.files(),
	}
	for _, c := range r.categories {
		b.Tags = append(b.Tags, strings.Clone(c))
	}
	for i := range r.people {
		person := &r.people[i]
		metadata := cloned(person.args)
		var content message.Content
		if keep {
			content = r.render(person)
		}
		for n, a := range person.addrs {
			c := message.Copy{Flags: a.flags, Address: strings.Clone(a.addr), Metadata: metadata}
			if n > 0 {
				c.Flags |= message.Joint
			}
			if keep {
				own := content
				own.Name = strings.Clone(a.name)
				c.Content = &own
			}
			b.Copies = append(b.Copies, c)
		}
	}
	return b
}

// cloned makes the texts of the list independent of the body, which is not kept, and
// returns the list.
func cloned(list []message.Pair) []message.Pair {
	for i, p := range list {
		list[i] = message.Pair{Key: strings.Clone(p.Key), Value: strings.Clone(p.Value)}
	}
	return list
}

// render returns the content of a personalization.
func (r *request) render(person *personalization) message.Content {
	subs := person.substitutions()
	fill := func(text string) string {
		// SendGrid replaces one substitution after the other.
		for _, sub := range subs {
			if sub.Key != "" {
				text = strings.ReplaceAll(text, sub.Key, sub.Value)
			}
		}
		return strings.Clone(text)
	}
	c := message.Content{Subject: fill(cmp.Or(person.subject, r.subject)), Headers: r.header(person)}
	for _, part := range r.contents {
		switch part.kind {
		case "text/plain":
			c.Text = fill(part.value)
		case "text/html":
			c.HTML = fill(part.value)
		}
	}
	return c
}

// header returns the header fields of a personalization's mail, which replace those of the
// message.
func (r *request) header(person *personalization) map[string]string {
	all := r.headers
	if len(person.headers) > 0 {
		all = person.headers
	}
	var replies []string
	for _, a := range r.replies {
		reply := a.addr
		if a.name != "" {
			reply = (&mail.Address{Name: a.name, Address: reply}).String()
		}
		replies = append(replies, reply)
	}
	if len(all)+len(replies) == 0 {
		return nil
	}
	out := make(map[string]string, len(all)+1)
	for _, h := range cloned(all) {
		out[h.Key] = h.Value
	}
	if len(replies) > 0 {
		out["Reply-To"] = strings.Clone(strings.Join(replies, ", "))
	}
	return out
}
