package simulator

import (
	"bytes"
	"hash/maphash"
	"iter"
	"mime"
	"net/http"
	"net/mail"
	"net/url"
	"sync"
)

const (
	mgMaxRecipients = 1000
	mgMaxOptions    = 16 << 10 // bytes of all o:, h: and v: parameters
	mgMaxMessage    = 25 << 20
	mgMaxTags       = 10
)

// A mgLetter is a Mailgun messages form. Its slices are views of the request
// body. It is reused.
type mgLetter struct {
	raw                           bool // messages.mime
	from, subject, text, html     []byte
	message                       []byte
	template                      bool
	fromAddr                      []byte
	fields                        []mgField // to, cc, bcc as they came
	addrs                         []mgAddr
	vars                          []mgField // v:, without the prefix
	tags                          [][]byte
	options, size                 int
	badHeader, badTime, malformed bool
	testMode                      bool
	hasRecipientVars              bool
	recipientVars                 scanner
	table                         addrTable
}

// A mgField is a form field. flags says which of to, cc and bcc it is.
type mgField struct {
	name, value []byte
	flags       uint8
}

// A mgAddr is a recipient with its recipient-variables, a JSON object.
type mgAddr struct {
	addr  []byte
	vars  span
	flags uint8
}

var mgLetters = sync.Pool{New: func() any { return new(mgLetter) }}

func (l *mgLetter) free() {
	clear(l.fields)
	clear(l.addrs)
	clear(l.vars)
	clear(l.tags)
	*l = mgLetter{fields: l.fields[:0], addrs: l.addrs[:0], vars: l.vars[:0], tags: l.tags[:0], table: l.table}
	l.table.addrs = nil
	mgLetters.Put(l)
}

// mgParse reads and checks a form: multipart, or urlencoded. See letter.
func mgParse(r *http.Request, body []byte, raw bool) (*mgLetter, *answer) {
	l := mgLetters.Get().(*mgLetter)
	l.raw = raw
	kind, params, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch kind {
	case "multipart/form-data":
		l.malformed = params["boundary"] == "" || !eachPart(body, params["boundary"], l.field)
	case "application/x-www-form-urlencoded":
		form, err := url.ParseQuery(string(body))
		l.malformed = err != nil
		for name, list := range form {
			for _, value := range list {
				l.field([]byte(name), nil, []byte(value))
			}
		}
	default:
		l.malformed = len(body) > 0
	}
	if problem := l.check(); problem != nil {
		return l, problem
	}
	return l, nil
}

// field takes one field of the form. Attachments without a file name are
// dropped, as the vendor does.
func (l *mgLetter) field(name, file, value []byte) {
	if len(name) > 2 && name[1] == ':' && (name[0] == 'o' || name[0] == 'h' || name[0] == 'v') {
		l.options += len(name) + len(value)
		l.option(name, value)
		return
	}
	switch string(name) {
	case "from":
		l.from = value
	case "to":
		l.fields = append(l.fields, mgField{name, value, 0})
	case "cc":
		l.fields = append(l.fields, mgField{name, value, flagCC})
	case "bcc":
		l.fields = append(l.fields, mgField{name, value, flagBCC})
	case "subject":
		l.subject = value
	case "text":
		l.text = value
		l.size += len(value)
	case "html", "amp-html":
		if string(name) == "html" {
			l.html = value
		}
		l.size += len(value)
	case "template":
		l.template = len(value) > 0
	case "message":
		l.message = value
		l.size += len(value)
	case "attachment", "inline":
		if len(file) > 0 {
			l.size += len(value)
		}
	case "recipient-variables":
		l.hasRecipientVars = true
		l.recipientVars.reset(value)
	}
}

func (l *mgLetter) option(name, value []byte) {
	switch {
	case name[0] == 'v':
		l.vars = append(l.vars, mgField{name: name[2:], value: value})
	case name[0] == 'h':
		l.badHeader = l.badHeader || !ascii(name)
	case string(name) == "o:tag":
		l.tags = append(l.tags, value)
	case string(name) == "o:testmode":
		l.testMode = yes(string(value))
	case string(name) == "o:deliverytime" && len(value) > 0:
		_, err := mail.ParseDate(string(value))
		l.badTime = err != nil
	}
}

func yes(text string) bool { return text == "yes" || text == "true" || text == "True" }

// check validates in the order in which the vendor does.
func (l *mgLetter) check() *answer {
	fail := func(status int, format string, args ...any) *answer {
		ans := mgMessage(status, format, args...)
		return &ans
	}
	const invalid = "%s parameter is not a valid address. please check documentation"
	addrs, wrong := l.readAddresses()
	if l.malformed {
		return fail(400, "Malformed form data")
	}
	if l.raw && l.from == nil {
		l.readMessage()
	}
	if len(bytes.TrimSpace(l.from)) == 0 {
		return fail(400, "from parameter is missing")
	}
	if !hasTo(l.fields) {
		return fail(400, "to parameter is missing")
	}
	from, ok := splitAddresses(nil, l.from)
	if !ok || len(from) != 1 || !ascii(from[0][:bytes.LastIndexByte(from[0], '@')]) {
		return fail(400, invalid, "from")
	}
	l.fromAddr = from[0]
	if wrong != "" {
		return fail(400, invalid, wrong)
	}
	switch {
	case l.raw && len(l.message) == 0:
		return fail(400, "message parameter is missing")
	case !l.raw && len(l.text) == 0 && len(l.html) == 0 && !l.template:
		return fail(400, "Need at least one of 'text' or 'html' parameters specified")
	case l.hasRecipientVars && !l.readVariables():
		return fail(400, "'recipient-variables' parameter is not a valid JSON")
	case addrs > mgMaxRecipients:
		return fail(400, "Too many recipients, max is %d", mgMaxRecipients)
	case l.options > mgMaxOptions:
		return fail(400, "Send options (parameters starting with o:, h:, or v:) are limited to 16 kB total")
	case l.badHeader:
		return fail(400, "Header names may only contain ASCII characters")
	case l.badTime:
		return fail(400, "o:deliverytime parameter is not a valid RFC 2822 date")
	case len(l.tags) > mgMaxTags:
		return fail(400, "Too many tags, max is %d", mgMaxTags)
	case l.size > mgMaxMessage:
		return fail(413, "message size exceeds 25MB limit")
	}
	return nil
}

func hasTo(fields []mgField) bool {
	for _, f := range fields {
		if f.flags == 0 && len(f.value) > 0 {
			return true
		}
	}
	return false
}

// readAddresses fills addrs, each address once, and returns how many there were
// before. wrong names the first field that is not valid.
func (l *mgLetter) readAddresses() (n int, wrong string) {
	l.table.reset(l.addrs[:0])
	var list [][]byte
	for _, f := range l.fields {
		var ok bool
		if list, ok = splitAddresses(list[:0], f.value); !ok {
			if wrong == "" {
				wrong = string(f.name)
			}
			continue
		}
		n += len(list)
		for _, addr := range list {
			l.table.add(mgAddr{addr: addr, flags: f.flags})
		}
	}
	l.addrs = l.table.addrs
	return n, wrong
}

// readVariables finds the recipient-variables of each address.
func (l *mgLetter) readVariables() bool {
	s := &l.recipientVars
	s.object(func(key span) {
		addr := s.text(key)
		if s.peek() != '{' {
			s.fail()
			return
		}
		vars := s.skip()
		if i := l.table.find(addr); i >= 0 {
			l.addrs[i].vars = vars
		}
	})
	return s.end()
}

// readMessage takes what is needed from the header of a MIME message.
func (l *mgLetter) readMessage() {
	m, err := mail.ReadMessage(bytes.NewReader(l.message))
	if err != nil {
		return
	}
	l.from, l.subject = []byte(m.Header.Get("From")), []byte(m.Header.Get("Subject"))
	l.text = l.message
}

func (l *mgLetter) count() int { return len(l.addrs) }

func (l *mgLetter) addresses() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for _, a := range l.addrs {
			if !yield(a.addr) {
				return
			}
		}
	}
}

// dry is false also in test mode: that has events.
func (l *mgLetter) dry() bool { return false }

// refuse does not name the address, as the vendor does not.
func (l *mgLetter) refuse(match func([]byte) bool) *answer {
	for _, a := range l.addrs {
		if match(a.addr) {
			ans := mgMessage(400, "to parameter is not a valid address. please check documentation")
			return &ans
		}
	}
	return nil
}

// pack implements letter. Without recipient-variables all recipients are named
// in one message.
func (l *mgLetter) pack(p *packer, keep bool, fate func([]byte) (outcome, uint8)) (h *head, content []Content, test bool) {
	var own []mgTemplate
	for _, v := range l.vars {
		if t := newTemplate(v); l.hasRecipientVars && len(t.holes) > 0 {
			own = append(own, t)
		} else {
			p.pair(v.name, v.value)
		}
	}
	p.end()
	subject, text, html := newTemplate(mgField{value: l.subject}), newTemplate(mgField{value: l.text}), newTemplate(mgField{value: l.html})
	var space []byte
	for i, a := range l.addrs {
		flags := a.flags
		if i > 0 && !l.hasRecipientVars {
			flags |= flagJoint
		}
		o, group := fate(a.addr)
		p.copy(o, group, flags, a.addr)
		for _, t := range own {
			space = t.fill(space[:0], a, &l.recipientVars)
			p.pair(t.name, space)
		}
		p.end()
		if keep {
			fill := func(t mgTemplate) string { return string(t.fill(nil, a, &l.recipientVars)) }
			content = append(content, Content{fill(subject), fill(text), fill(html)})
		}
	}
	h = &head{from: string(l.fromAddr), subject: string(l.subject)}
	for _, tag := range l.tags {
		h.tags = append(h.tags, string(tag))
	}
	return h, content, l.testMode
}

// An addrTable is a set of addresses without regard to case. Mailgun sends one
// mail to an address that is named twice.
type addrTable struct {
	addrs []mgAddr
	slots []int32 // index in addrs + 1
	seed  maphash.Seed
	live  bool
}

func (t *addrTable) reset(addrs []mgAddr) {
	if !t.live {
		t.seed, t.live = maphash.MakeSeed(), true
		t.slots = make([]int32, 4*1024)
	}
	clear(t.slots)
	t.addrs = addrs
}

func (t *addrTable) slot(addr []byte) int {
	addr = lower(addr)
	mask := len(t.slots) - 1
	at := int(maphash.Bytes(t.seed, addr)) & mask
	for t.slots[at] != 0 && !bytes.Equal(lower(t.addrs[t.slots[at]-1].addr), addr) {
		at = (at + 1) & mask
	}
	return at
}

func (t *addrTable) find(addr []byte) int { return int(t.slots[t.slot(addr)]) - 1 }

func (t *addrTable) add(a mgAddr) {
	at := t.slot(a.addr)
	if t.slots[at] != 0 {
		return
	}
	t.addrs = append(t.addrs, a)
	t.slots[at] = int32(len(t.addrs))
	if 2*len(t.addrs) > len(t.slots) {
		t.slots = make([]int32, 2*len(t.slots))
		for i, a := range t.addrs {
			t.slots[t.slot(a.addr)] = int32(i + 1)
		}
	}
}
