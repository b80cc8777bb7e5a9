package sendgrid

import (
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

// A request is a mail/send body, read in place.
type request struct {
	jsontext.Scanner
	from         jsontext.Span
	subject      jsontext.Span
	template     jsontext.Span
	contents     []content
	args         []pair // message level
	categories   []jsontext.Span
	headers      []pair    // message level
	replies      []content // the names and addresses of reply_to
	attachments  []attachment
	people       []personalization
	addrs        []address
	pairs        []pair // custom_args and substitutions of all people
	sendAt       int64
	hasReply     bool
	hasReplyList bool
	sandbox      bool
}

type content struct{ kind, value jsontext.Span }

// An attachment is a file. Its content is base64.
type attachment struct{ content, kind, filename, disposition, contentID jsontext.Span }

type pair struct{ key, value jsontext.Span }

// A personalization holds ranges of the lists of its request.
type personalization struct {
	addrs, args, subs, headers [2]int32
	subject                    jsontext.Span
	sendAt                     int64
}

// An address is one address of a personalization. i is its index in to, cc or bcc.
type address struct {
	addr, name jsontext.Span
	person, i  int32
	flags      uint8
}

// roles names the member that holds addresses with these flags.
var roles = map[uint8]string{0: "to", message.CC: "cc", message.BCC: "bcc"}

// parse reads and checks a call.
func parse(call *http.Request, body []byte) (provider.Request, *provider.Answer) {
	r := new(request)
	r.Reset(body)
	fail := func(a provider.Answer) (provider.Request, *provider.Answer) { return r, &a }
	if kind, _, _ := mime.ParseMediaType(call.Header.Get("Content-Type")); kind != typeJSON {
		return fail(statuses[http.StatusUnsupportedMediaType])
	}
	if r.read(); !r.End() {
		return fail(statuses[http.StatusBadRequest])
	}
	if list := r.check(time.Now()); len(list) > 0 {
		return fail(errorList(http.StatusBadRequest, list...))
	}
	return r, nil
}

// read scans the document. A value of the wrong type makes it invalid; SendGrid
// names neither field nor reason then.
func (r *request) read() {
	r.Object(func(key jsontext.Span) {
		if r.Null() {
			return
		}
		switch string(r.Text(key)) {
		case "personalizations":
			r.Array(func(int) { r.readPerson() })
		case "from":
			r.from, _ = r.readAddress()
		case "reply_to":
			r.readReply()
			r.hasReply = true
		case "reply_to_list":
			r.Array(func(int) { r.readReply(); r.hasReplyList = true })
		case "headers":
			r.headers = r.readPairs(r.headers)
		case "subject":
			r.subject = r.ReadString()
		case "template_id":
			r.template = r.ReadString()
		case "content":
			r.Array(func(int) { r.readContent() })
		case "attachments":
			r.Array(func(int) { r.readAttachment() })
		case "custom_args":
			r.args = r.readPairs(r.args)
		case "categories":
			r.Array(func(int) { r.categories = append(r.categories, r.ReadString()) })
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
func (r *request) readSetting(key jsontext.Span) {
	if string(r.Text(key)) != "sandbox_mode" || r.Null() {
		r.Skip()
		return
	}
	r.Object(func(key jsontext.Span) {
		if string(r.Text(key)) == "enable" {
			r.sandbox = r.Bool()
		} else {
			r.Skip()
		}
	})
}

func (r *request) readReply() {
	addr, name := r.readAddress()
	r.replies = append(r.replies, content{name, addr})
}

func (r *request) integer() int64 {
	v := r.Number()
	n, err := strconv.ParseInt(string(r.Raw(v)), 10, 64)
	if err != nil {
		r.Fail()
	}
	return n
}

func (r *request) readPerson() {
	n := int32(len(r.people))
	p := personalization{addrs: [2]int32{int32(len(r.addrs))}}
	r.Object(func(key jsontext.Span) {
		if r.Null() {
			return
		}
		switch string(r.Text(key)) {
		case "to":
			r.readRole(n, 0)
		case "cc":
			r.readRole(n, message.CC)
		case "bcc":
			r.readRole(n, message.BCC)
		case "subject":
			p.subject = r.ReadString()
		case "custom_args":
			p.args[0] = int32(len(r.pairs))
			r.pairs = r.readPairs(r.pairs)
			p.args[1] = int32(len(r.pairs))
		case "substitutions":
			p.subs[0] = int32(len(r.pairs))
			r.pairs = r.readPairs(r.pairs)
			p.subs[1] = int32(len(r.pairs))
		case "headers":
			p.headers[0] = int32(len(r.pairs))
			r.pairs = r.readPairs(r.pairs)
			p.headers[1] = int32(len(r.pairs))
		case "dynamic_template_data":
			r.Skip()
		case "send_at":
			p.sendAt = r.integer()
		default:
			r.Skip()
		}
	})
	p.addrs[1] = int32(len(r.addrs))
	r.people = append(r.people, p)
}

func (r *request) readRole(person int32, flags uint8) {
	r.Array(func(i int) {
		addr, name := r.readAddress()
		r.addrs = append(r.addrs, address{addr, name, person, int32(i), flags})
	})
}

func (r *request) readAddress() (addr, name jsontext.Span) {
	r.Object(func(key jsontext.Span) {
		switch string(r.Text(key)) {
		case "email":
			addr = r.ReadString()
		case "name":
			if !r.Null() {
				name = r.ReadString()
			}
		default:
			r.Skip()
		}
	})
	return addr, name
}

func (r *request) readContent() {
	var c content
	r.Object(func(key jsontext.Span) {
		switch string(r.Text(key)) {
		case "type":
			c.kind = r.ReadString()
		case "value":
			c.value = r.ReadString()
		default:
			r.Skip()
		}
	})
	r.contents = append(r.contents, c)
}

func (r *request) readAttachment() {
	var a attachment
	r.Object(func(key jsontext.Span) {
		if r.Null() {
			return
		}
		switch string(r.Text(key)) {
		case "content":
			a.content = r.ReadString()
		case "type":
			a.kind = r.ReadString()
		case "filename":
			a.filename = r.ReadString()
		case "disposition":
			a.disposition = r.ReadString()
		case "content_id":
			a.contentID = r.ReadString()
		default:
			r.Skip()
		}
	})
	r.attachments = append(r.attachments, a)
}

// files returns the attachments, which check has found to be valid.
func (r *request) files() (out []message.Attachment) {
	for _, a := range r.attachments {
		data, _ := base64.StdEncoding.DecodeString(string(r.Text(a.content)))
		id := ""
		if string(r.Text(a.disposition)) == "inline" {
			id = string(r.Text(a.contentID))
		}
		out = append(out, message.NewAttachment(string(r.Text(a.filename)), string(r.Text(a.kind)), id, data))
	}
	return out
}

// readPairs reads an object of strings; anything else is a bad request.
func (r *request) readPairs(dst []pair) []pair {
	r.Object(func(key jsontext.Span) { dst = append(dst, pair{key, r.ReadString()}) })
	return dst
}

// Addresses implements provider.Request.
func (r *request) Addresses() []string {
	list := make([]string, len(r.addrs))
	for i, a := range r.addrs {
		list[i] = string(r.Text(a.addr))
	}
	return list
}

// Dry implements provider.Request.
func (r *request) Dry() bool { return r.sandbox }

// Refuse implements provider.Request. SendGrid names all addresses.
func (r *request) Refuse(match func(string) bool) *provider.Answer {
	var list []apiError
	for _, a := range r.addrs {
		if match(string(r.Text(a.addr))) {
			list = append(list, r.invalid(a))
		}
	}
	if len(list) == 0 {
		return nil
	}
	a := errorList(http.StatusBadRequest, list...)
	return &a
}

// invalid returns the error for an address that is not valid.
func (r *request) invalid(a address) apiError {
	return apiError{
		message: "Does not contain a valid address.",
		field:   fmt.Sprintf("personalizations.%d.%s.%d.email", a.person, roles[a.flags], a.i),
		help:    helpURL + "message.personalizations." + roles[a.flags],
	}
}

// Batch implements provider.Request. Metadata of the message level is shared; that
// of a personalization replaces it key by key. Substitutions are rendered into
// subject and content, not into custom_args.
func (r *request) Batch(keep bool) message.Batch {
	b := message.Batch{
		From:        string(r.Text(r.from)),
		Subject:     string(r.Text(r.subject)),
		Shared:      r.metadata(r.args),
		Copies:      make([]message.Copy, 0, len(r.addrs)),
		Attachments: r.files(),
	}
	for _, c := range r.categories {
		b.Tags = append(b.Tags, string(r.Text(c)))
	}
	for i := range r.people {
		person := &r.people[i]
		metadata := r.metadata(r.pairs[person.args[0]:person.args[1]])
		var content message.Content
		if keep {
			content = r.render(person)
		}
		for n, a := range r.addrs[person.addrs[0]:person.addrs[1]] {
			c := message.Copy{Flags: a.flags, Address: string(r.Text(a.addr)), Metadata: metadata}
			if n > 0 {
				c.Flags |= message.Joint
			}
			if keep {
				own := content
				own.Name = string(r.Text(a.name))
				c.Content = &own
			}
			b.Copies = append(b.Copies, c)
		}
	}
	return b
}

func (r *request) metadata(pairs []pair) (list []message.Pair) {
	for _, p := range pairs {
		list = append(list, message.Pair{Key: string(r.Text(p.key)), Value: string(r.Text(p.value))})
	}
	return list
}

// render returns the content of a personalization.
func (r *request) render(person *personalization) message.Content {
	fill := func(v jsontext.Span) string {
		text := string(r.Text(v))
		// SendGrid replaces one substitution after the other.
		for _, sub := range r.pairs[person.subs[0]:person.subs[1]] {
			if key := string(r.Text(sub.key)); key != "" {
				text = strings.ReplaceAll(text, key, string(r.Text(sub.value)))
			}
		}
		return text
	}
	subject := r.subject
	if !person.subject.Empty() {
		subject = person.subject
	}
	c := message.Content{Subject: fill(subject), Headers: r.header(person)}
	for _, part := range r.contents {
		switch string(r.Text(part.kind)) {
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
	if own := r.pairs[person.headers[0]:person.headers[1]]; len(own) > 0 {
		all = own
	}
	var replies []string
	for _, a := range r.replies {
		reply := string(r.Text(a.value))
		if !a.kind.Empty() {
			reply = (&mail.Address{Name: string(r.Text(a.kind)), Address: reply}).String()
		}
		replies = append(replies, reply)
	}
	if len(all)+len(replies) == 0 {
		return nil
	}
	out := make(map[string]string, len(all)+1)
	for _, h := range all {
		out[string(r.Text(h.key))] = string(r.Text(h.value))
	}
	if len(replies) > 0 {
		out["Reply-To"] = strings.Join(replies, ", ")
	}
	return out
}
