package mailgun

import (
	"mime"
	"net/http"
	"net/mail"
	"net/url"
	"slices"
	"strings"

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

// A request is a messages form.
type request struct {
	mime                      bool // messages.mime
	from, subject, text, html string
	message                   string
	template                  bool
	fromAddr                  string
	fields                    []field // to, cc and bcc as they came
	vars                      []field // v:, without the prefix
	tags                      []string
	headers                   []field // h:, without the prefix
	files                     []message.Attachment
	options, size             int
	badHeader, badTime        bool
	malformed                 bool
	testMode                  bool
	hasVariables              bool
	variables                 string // recipient-variables

	addrs []address
	index map[string]int // in addrs, by address in lower case
}

// A field is a form field. The flags say which of to, cc and bcc it is.
type field struct {
	name, value string
	flags       uint8
}

// An address is a recipient with its recipient-variables, a JSON object.
type address struct {
	mailbox
	vars  string // "" if there are none
	flags uint8
}

// A mailbox is a bare address and its display name.
type mailbox struct{ addr, name string }

// parse reads and checks a call. The form is multipart or urlencoded.
func parse(call *http.Request, body []byte, mimeBody bool) (*request, *provider.Answer) {
	r := &request{mime: mimeBody, index: map[string]int{}}
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
// name, and takes the name of an inline one as its content ID.
func (r *request) field(key []byte, f partFile, data []byte) {
	name, value := string(key), string(data)
	if len(name) > 2 && name[1] == ':' && (name[0] == 'o' || name[0] == 'h' || name[0] == 'v') {
		r.options += len(name) + len(value)
		r.option(name, value)
		return
	}
	switch name {
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
		if name == "html" {
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
			id := ""
			if name == "inline" {
				id = string(f.name)
			}
			r.size += len(value)
			r.files = append(r.files, message.NewAttachment(string(f.name), string(f.kind), id, data))
		}
	case "recipient-variables":
		r.hasVariables = true
		r.variables = value
	}
}

// option reads an o:, h: or v: parameter.
func (r *request) option(name, value string) {
	switch {
	case name[0] == 'v':
		r.vars = append(r.vars, field{name: name[2:], value: value})
	case name[0] == 'h':
		r.badHeader = r.badHeader || !message.ASCII(name)
		r.headers = append(r.headers, field{name: name[2:], value: value})
	case name == "o:tag":
		r.tags = append(r.tags, value)
	case name == "o:testmode":
		r.testMode = yes(value)
	case name == "o:deliverytime" && value != "":
		_, err := mail.ParseDate(value)
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
	if r.mime && r.from == "" {
		r.readMessage()
	}
	if strings.TrimSpace(r.from) == "" {
		return say(400, "from parameter is missing")
	}
	if !slices.ContainsFunc(r.fields, func(f field) bool { return f.flags == 0 && len(f.value) > 0 }) {
		return say(400, "to parameter is missing")
	}
	from, ok := splitAddresses(nil, r.from)
	if !ok || len(from) != 1 || !message.ASCII(from[0].addr[:strings.LastIndexByte(from[0].addr, '@')]) {
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
				wrong = f.name
			}
			continue
		}
		n += len(list)
		for _, m := range list {
			key := strings.ToLower(m.addr)
			if _, ok := r.index[key]; !ok {
				r.index[key] = len(r.addrs)
				r.addrs = append(r.addrs, address{mailbox: m, flags: f.flags})
			}
		}
	}
	return n, wrong
}

// splitAddresses appends the addresses of one address field: a bare address, one with
// a name, or several separated by commas. It reports false if one of them is not
// valid.
func splitAddresses(dst []mailbox, field string) ([]mailbox, bool) {
	field = strings.TrimSpace(field)
	if message.ValidAddress(field) {
		return append(dst, mailbox{addr: field}), true
	}
	list, err := mail.ParseAddressList(field)
	if err != nil {
		return dst, false
	}
	for _, a := range list {
		if !message.ValidAddress(a.Address) {
			return dst, false
		}
		dst = append(dst, mailbox{a.Address, a.Name})
	}
	return dst, true
}

// readVariables finds the recipient-variables of each address. It reports false if
// they are no object of objects.
func (r *request) readVariables() bool {
	all := jsontext.NewReader(r.variables)
	all.Object(func(key string) {
		if all.Peek() != '{' {
			all.Fail()
			return
		}
		vars := all.Skip()
		if i, ok := r.index[strings.ToLower(key)]; ok {
			r.addrs[i].vars = vars
		}
	})
	return all.OK()
}

// readMessage reads sender and subject from the header of a MIME message.
func (r *request) readMessage() {
	m, err := mail.ReadMessage(strings.NewReader(r.message))
	if err != nil {
		return
	}
	r.from, r.subject = m.Header.Get("From"), m.Header.Get("Subject")
	r.text = r.message
}

// Addresses implements provider.Request.
func (r *request) Addresses() []string {
	list := make([]string, len(r.addrs))
	for i, a := range r.addrs {
		list[i] = a.addr
	}
	return list
}

// Dry implements provider.Request. A call in test mode has events, so it is not
// dry.
func (r *request) Dry() bool { return false }

// parameters names the field that holds addresses with these flags.
var parameters = map[uint8]string{0: "to", message.CC: "cc", message.BCC: "bcc"}

// Refuse implements provider.Request. Mailgun names the field, not the address.
func (r *request) Refuse(match func(string) bool) *provider.Answer {
	for _, a := range r.addrs {
		if match(a.addr) {
			answer := say(400, invalidAddress, parameters[a.flags])
			return &answer
		}
	}
	return nil
}

// Batch implements provider.Request. Without recipient-variables all recipients are
// named in one message.
func (r *request) Batch(keep bool) message.Batch {
	b := message.Batch{
		From:        r.fromAddr,
		Subject:     r.subject,
		Tags:        r.tags,
		Test:        r.testMode,
		Copies:      make([]message.Copy, len(r.addrs)),
		Attachments: r.files,
	}
	var own []template
	for _, v := range r.vars {
		if t := newTemplate(v); r.hasVariables && len(t.holes) > 0 {
			own = append(own, t)
		} else {
			b.Shared = append(b.Shared, message.Pair{Key: v.name, Value: v.value})
		}
	}
	subject := newTemplate(field{value: r.subject})
	text := newTemplate(field{value: r.text})
	html := newTemplate(field{value: r.html})
	var headers []template
	for _, h := range r.headers {
		headers = append(headers, newTemplate(h))
	}
	for i, a := range r.addrs {
		c := &b.Copies[i]
		c.Address, c.Flags = a.addr, a.flags
		if i > 0 && !r.hasVariables {
			c.Flags |= message.Joint
		}
		fill := func(t template) string { return t.fill(a) }
		for _, t := range own {
			c.Metadata = append(c.Metadata, message.Pair{Key: t.name, Value: fill(t)})
		}
		if keep {
			c.Content = &message.Content{Name: a.name, Subject: fill(subject), Text: fill(text), HTML: fill(html)}
			if len(headers) > 0 {
				c.Content.Headers = make(map[string]string, len(headers))
			}
			for _, h := range headers {
				c.Content.Headers[h.name] = fill(h)
			}
		}
	}
	return b
}
