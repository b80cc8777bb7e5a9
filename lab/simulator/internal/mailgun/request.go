package mailgun

import (
	"bytes"
	"iter"
	"mime"
	"net/http"
	"net/mail"
	"net/url"
	"slices"
	"sync"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/jsontext"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

const (
	maxRecipients = 1000
	maxOptions    = 16 << 10 // bytes of all o:, h: and v: parameters
	maxMessage    = 25 << 20
	maxTags       = 10
)

// A request is a messages form. Its slices are views of the body. It is reused.
type request struct {
	mime                      bool // messages.mime
	from, subject, text, html []byte
	message                   []byte
	template                  bool
	fromAddr                  []byte
	fields                    []field // to, cc and bcc as they came
	vars                      []field // v:, without the prefix
	tags                      [][]byte
	headers                   []field // h:, without the prefix
	files                     []file
	options, size             int
	badHeader, badTime        bool
	malformed                 bool
	testMode                  bool
	hasVariables              bool
	variables                 jsontext.Scanner // recipient-variables

	addrs []address
	index map[string]int // in addrs, by address in lower case
}

// A field is a form field. The flags say which of to, cc and bcc it is.
type field struct {
	name, value []byte
	flags       uint8
}

// A file is an attachment. Mailgun takes the name of an inline one as its content ID.
type file struct {
	name, kind, data []byte
	inline           bool
}

// An address is a recipient with its recipient-variables, a JSON object.
type address struct {
	mailbox
	vars  jsontext.Span
	flags uint8
}

// A mailbox is a bare address and its display name.
type mailbox struct{ addr, name []byte }

var requests = sync.Pool{New: func() any { return &request{index: map[string]int{}} }}

// Free implements provider.Request.
func (r *request) Free() {
	clear(r.fields)
	clear(r.addrs)
	clear(r.vars)
	clear(r.tags)
	clear(r.headers)
	clear(r.files)
	clear(r.index)
	*r = request{
		fields:  r.fields[:0],
		addrs:   r.addrs[:0],
		vars:    r.vars[:0],
		tags:    r.tags[:0],
		headers: r.headers[:0],
		files:   r.files[:0],
		index:   r.index,
	}
	requests.Put(r)
}

// parse reads and checks a call. The form is multipart or urlencoded.
func parse(call *http.Request, body []byte, mimeBody bool) (*request, *provider.Answer) {
	r := requests.Get().(*request)
	r.mime = mimeBody
	kind, params, _ := mime.ParseMediaType(call.Header.Get("Content-Type"))
	switch kind {
	case "multipart/form-data":
		r.malformed = params["boundary"] == "" || !eachPart(body, params["boundary"], r.field)
	case "application/x-www-form-urlencoded":
		form, err := url.ParseQuery(string(body))
		r.malformed = err != nil
		for name, list := range form {
			for _, value := range list {
				r.field([]byte(name), partFile{}, []byte(value))
			}
		}
	default:
		r.malformed = len(body) > 0
	}
	if problem := r.check(); problem.Status != 0 {
		return r, &problem
	}
	return r, nil
}

// field reads one field of the form. Mailgun drops attachments without a file
// name.
func (r *request) field(name []byte, f partFile, value []byte) {
	if len(name) > 2 && name[1] == ':' && (name[0] == 'o' || name[0] == 'h' || name[0] == 'v') {
		r.options += len(name) + len(value)
		r.option(name, value)
		return
	}
	switch string(name) {
	case "from":
		r.from = value
	case "to":
		r.fields = append(r.fields, field{name, value, 0})
	case "cc":
		r.fields = append(r.fields, field{name, value, message.CC})
	case "bcc":
		r.fields = append(r.fields, field{name, value, message.BCC})
	case "subject":
		r.subject = value
	case "text":
		r.text = value
		r.size += len(value)
	case "html", "amp-html":
		if string(name) == "html" {
			r.html = value
		}
		r.size += len(value)
	case "template":
		r.template = len(value) > 0
	case "message":
		r.message = value
		r.size += len(value)
	case "attachment", "inline":
		if len(f.name) > 0 {
			r.size += len(value)
			r.files = append(r.files, file{f.name, f.kind, value, string(name) == "inline"})
		}
	case "recipient-variables":
		r.hasVariables = true
		r.variables.Reset(value)
	}
}

// option reads an o:, h: or v: parameter.
func (r *request) option(name, value []byte) {
	switch {
	case name[0] == 'v':
		r.vars = append(r.vars, field{name: name[2:], value: value})
	case name[0] == 'h':
		r.badHeader = r.badHeader || !message.ASCII(name)
		r.headers = append(r.headers, field{name: name[2:], value: value})
	case string(name) == "o:tag":
		r.tags = append(r.tags, value)
	case string(name) == "o:testmode":
		r.testMode = yes(string(value))
	case string(name) == "o:deliverytime" && len(value) > 0:
		_, err := mail.ParseDate(string(value))
		r.badTime = err != nil
	}
}

func yes(text string) bool { return text == "yes" || text == "true" || text == "True" }

const invalidAddress = "%s parameter is not a valid address. please check documentation"

// check returns the answer to a request that is not valid, or the zero Answer. It
// looks for mistakes in the order in which Mailgun does.
func (r *request) check() provider.Answer {
	addrs, wrong := r.readAddresses()
	if r.malformed {
		return malformed
	}
	if r.mime && r.from == nil {
		r.readMessage()
	}
	if len(bytes.TrimSpace(r.from)) == 0 {
		return say(400, "from parameter is missing")
	}
	if !slices.ContainsFunc(r.fields, func(f field) bool { return f.flags == 0 && len(f.value) > 0 }) {
		return say(400, "to parameter is missing")
	}
	from, ok := splitAddresses(nil, r.from)
	if !ok || len(from) != 1 || !message.ASCII(from[0].addr[:bytes.LastIndexByte(from[0].addr, '@')]) {
		return say(400, invalidAddress, "from")
	}
	r.fromAddr = from[0].addr
	if wrong != "" {
		return say(400, invalidAddress, wrong)
	}
	switch {
	case r.mime && len(r.message) == 0:
		return say(400, "message parameter is missing")
	case !r.mime && len(r.text) == 0 && len(r.html) == 0 && !r.template:
		return say(400, "Need at least one of 'text' or 'html' parameters specified")
	case r.hasVariables && !r.readVariables():
		return say(400, "'recipient-variables' parameter is not a valid JSON")
	case addrs > maxRecipients:
		return say(400, "Too many recipients, max is %d", maxRecipients)
	case r.options > maxOptions:
		return say(400, "Send options (parameters starting with o:, h:, or v:) are limited to 16 kB total")
	case r.badHeader:
		return say(400, "Header names may only contain ASCII characters")
	case r.badTime:
		return say(400, "o:deliverytime parameter is not a valid RFC 2822 date")
	case len(r.tags) > maxTags:
		return say(400, "Too many tags, max is %d", maxTags)
	case r.size > maxMessage:
		return say(413, "message size exceeds 25MB limit")
	}
	return provider.Answer{}
}

// readAddresses fills addrs and returns how many addresses the fields hold.
// Mailgun sends one mail to an address that is named twice. wrong names the first
// field that is not valid.
func (r *request) readAddresses() (n int, wrong string) {
	var list []mailbox
	byRole := func(a, b field) int { return int(a.flags) - int(b.flags) } // to, cc, bcc, in whatever order they came
	if !slices.IsSortedFunc(r.fields, byRole) {
		slices.SortStableFunc(r.fields, byRole)
	}
	for _, f := range r.fields {
		var ok bool
		if list, ok = splitAddresses(list[:0], f.value); !ok {
			if wrong == "" {
				wrong = string(f.name)
			}
			continue
		}
		n += len(list)
		for _, m := range list {
			key := message.Lower(m.addr)
			if _, ok := r.index[string(key)]; !ok {
				r.index[string(key)] = len(r.addrs)
				r.addrs = append(r.addrs, address{mailbox: m, flags: f.flags})
			}
		}
	}
	return n, wrong
}

// splitAddresses appends the addresses of one address field: a bare address, one with
// a name, or several separated by commas. It reports false if one of them is not
// valid. A bare address and one with a plain name are the usual case and are not
// copied.
func splitAddresses(dst []mailbox, field []byte) ([]mailbox, bool) {
	field = bytes.TrimSpace(field)
	if message.ValidAddress(field) {
		return append(dst, mailbox{addr: field}), true
	}
	if m, ok := plainMailbox(field); ok {
		return append(dst, m), true
	}
	list, err := mail.ParseAddressList(string(field))
	if err != nil {
		return dst, false
	}
	for _, a := range list {
		if !message.ValidAddress([]byte(a.Address)) {
			return dst, false
		}
		dst = append(dst, mailbox{[]byte(a.Address), []byte(a.Name)})
	}
	return dst, true
}

// plainMailbox reads "name" <address>, where nothing in the quoted name is escaped. It
// reports false for anything else.
func plainMailbox(field []byte) (m mailbox, ok bool) {
	name, addr, ok := bytes.Cut(field, []byte(`" <`))
	if !ok || len(name) == 0 || name[0] != '"' || !bytes.HasSuffix(addr, []byte(">")) {
		return m, false
	}
	m = mailbox{addr[:len(addr)-1], name[1:]}
	for _, c := range m.name {
		if c < ' ' || c > '~' || c == '"' || c == '\\' {
			return m, false
		}
	}
	return m, message.ValidAddress(m.addr) && !bytes.Contains(m.name, []byte("=?"))
}

// readVariables finds the recipient-variables of each address. It reports false if
// they are no object of objects.
func (r *request) readVariables() bool {
	s := &r.variables
	s.Object(func(key jsontext.Span) {
		addr := message.Lower(s.Text(key))
		if s.Peek() != '{' {
			s.Fail()
			return
		}
		vars := s.Skip()
		if i, ok := r.index[string(addr)]; ok {
			r.addrs[i].vars = vars
		}
	})
	return s.End()
}

// readMessage reads sender and subject from the header of a MIME message.
func (r *request) readMessage() {
	m, err := mail.ReadMessage(bytes.NewReader(r.message))
	if err != nil {
		return
	}
	r.from, r.subject = []byte(m.Header.Get("From")), []byte(m.Header.Get("Subject"))
	r.text = r.message
}

// Count implements provider.Request.
func (r *request) Count() int { return len(r.addrs) }

// Addresses implements provider.Request.
func (r *request) Addresses() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for _, a := range r.addrs {
			if !yield(a.addr) {
				return
			}
		}
	}
}

// Dry implements provider.Request. A call in test mode has events, so it is not
// dry.
func (r *request) Dry() bool { return false }

// parameters names the field that holds addresses with these flags.
var parameters = map[uint8]string{0: "to", message.CC: "cc", message.BCC: "bcc"}

// Refuse implements provider.Request. Mailgun names the field, not the address.
func (r *request) Refuse(match func([]byte) bool) *provider.Answer {
	for _, a := range r.addrs {
		if match(a.addr) {
			answer := say(400, invalidAddress, parameters[a.flags])
			return &answer
		}
	}
	return nil
}

func (r *request) attachments() (out []message.Attachment) {
	for _, f := range r.files {
		id := ""
		if f.inline {
			id = string(f.name)
		}
		out = append(out, message.NewAttachment(string(f.name), string(f.kind), id, f.data))
	}
	return out
}

// Pack implements provider.Request. Without recipient-variables all recipients are
// named in one message.
func (r *request) Pack(p *message.Packer, keep bool, fate provider.Fate) (packed provider.Packed) {
	var own []template
	for _, v := range r.vars {
		if t := newTemplate(v); r.hasVariables && len(t.holes) > 0 {
			own = append(own, t)
		} else {
			p.Pair(v.name, v.value)
		}
	}
	p.End()
	subject := newTemplate(field{value: r.subject})
	text := newTemplate(field{value: r.text})
	html := newTemplate(field{value: r.html})
	var headers []template
	for _, h := range r.headers {
		headers = append(headers, newTemplate(h))
	}
	var space []byte
	for i, a := range r.addrs {
		flags := a.flags
		if i > 0 && !r.hasVariables {
			flags |= message.Joint
		}
		outcome, group := fate(a.addr)
		p.Copy(outcome, group, flags, a.addr)
		for _, t := range own {
			space = t.fill(space[:0], a, &r.variables)
			p.Pair(t.name, space)
		}
		p.End()
		if keep {
			fill := func(t template) string { return string(t.fill(nil, a, &r.variables)) }
			var own map[string]string
			if len(headers) > 0 {
				own = make(map[string]string, len(headers))
			}
			for _, h := range headers {
				own[string(h.name)] = fill(h)
			}
			packed.Content = append(packed.Content, message.Content{
				Headers: own,
				Name:    string(a.name),
				Subject: fill(subject),
				Text:    fill(text),
				HTML:    fill(html),
			})
		}
	}
	packed.Head = message.Head{From: string(r.fromAddr), Subject: string(r.subject)}
	for _, tag := range r.tags {
		packed.Head.Tags = append(packed.Head.Tags, string(tag))
	}
	packed.Test, packed.Attachments = r.testMode, r.attachments()
	return packed
}
