package simulator

import (
	"fmt"
	"iter"
	"mime"
	"net/http"
	"strconv"
	"sync"
	"time"
)

const (
	sgMaxRecipients = 1000
	sgMaxArgs       = 10_000 // bytes, of custom_args and of substitutions, per personalization
	sgMaxCategories = 10
	sgMaxCategory   = 255
	sgMaxAhead      = 72 * time.Hour
)

// A sgLetter is a SendGrid mail/send body, read in place. It is reused.
type sgLetter struct {
	scanner
	from, fromName span
	subject        span
	template       span
	contents       []sgContent
	args           []sgPair // message level
	categories     []span
	people         []sgPerson
	addrs          []sgAddr
	pairs          []sgPair // custom_args and substitutions of all people
	sendAt         int64
	hasReply       bool
	hasReplyList   bool
	sandbox        bool
}

type sgContent struct{ kind, value span }

type sgPair struct{ key, value span }

// A sgPerson is one personalization. Its fields are ranges of the letter's lists.
type sgPerson struct {
	addrs, args, subs [2]int32
	subject           span
	hasData           bool
	sendAt            int64
}

// A sgAddr is one address of a personalization; i is its place in to, cc or bcc.
type sgAddr struct {
	addr, name span
	person, i  int32
	flags      uint8
}

var sgRoles = map[uint8]string{0: "to", flagCC: "cc", flagBCC: "bcc"}

var sgLetters = sync.Pool{New: func() any { return new(sgLetter) }}

func (l *sgLetter) free() {
	l.buf = nil
	sgLetters.Put(l)
}

// parse reads and checks a request. See letter.
func (g *sendgrid) parse(r *http.Request, body []byte) (letter, *answer) {
	l := sgLetters.Get().(*sgLetter)
	*l = sgLetter{contents: l.contents[:0], args: l.args[:0], categories: l.categories[:0],
		people: l.people[:0], addrs: l.addrs[:0], pairs: l.pairs[:0]}
	l.reset(body)
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind != sgJSON {
		ans := sgBodies[415]
		return l, &ans
	}
	if l.read(); !l.end() {
		ans := sgBodies[400]
		return l, &ans
	}
	if list := l.check(time.Now()); len(list) > 0 {
		ans := sgErrors(400, list...)
		return l, &ans
	}
	return l, nil
}

// read scans the document. Values of the wrong type make it bad: SendGrid names
// neither field nor reason then.
func (l *sgLetter) read() {
	l.object(func(key span) {
		if l.null() {
			return
		}
		switch string(l.text(key)) {
		case "personalizations":
			l.array(func(int) { l.readPerson() })
		case "from":
			l.from, l.fromName = l.readAddress()
		case "reply_to":
			l.readAddress()
			l.hasReply = true
		case "reply_to_list":
			l.array(func(int) { l.readAddress(); l.hasReplyList = true })
		case "subject":
			l.subject = l.str()
		case "template_id":
			l.template = l.str()
		case "content":
			l.array(func(int) { l.readContent() })
		case "custom_args":
			l.args = l.readPairs(l.args)
		case "categories":
			l.array(func(int) { l.categories = append(l.categories, l.str()) })
		case "send_at":
			l.sendAt = l.integer()
		case "mail_settings":
			l.object(func(key span) {
				if string(l.text(key)) != "sandbox_mode" || l.null() {
					l.skip()
					return
				}
				l.object(func(key span) {
					if string(l.text(key)) == "enable" {
						l.sandbox = l.boolean()
					} else {
						l.skip()
					}
				})
			})
		default:
			l.skip()
		}
	})
}

func (l *sgLetter) integer() int64 {
	v := l.number()
	n, err := strconv.ParseInt(string(l.raw(v)), 10, 64)
	if err != nil {
		l.fail()
	}
	return n
}

func (l *sgLetter) readPerson() {
	n := int32(len(l.people))
	p := sgPerson{addrs: [2]int32{int32(len(l.addrs))}}
	l.object(func(key span) {
		if l.null() {
			return
		}
		switch string(l.text(key)) {
		case "to":
			l.readRole(n, 0)
		case "cc":
			l.readRole(n, flagCC)
		case "bcc":
			l.readRole(n, flagBCC)
		case "subject":
			p.subject = l.str()
		case "custom_args":
			p.args[0] = int32(len(l.pairs))
			l.pairs = l.readPairs(l.pairs)
			p.args[1] = int32(len(l.pairs))
		case "substitutions":
			p.subs[0] = int32(len(l.pairs))
			l.pairs = l.readPairs(l.pairs)
			p.subs[1] = int32(len(l.pairs))
		case "dynamic_template_data":
			l.skip()
			p.hasData = true
		case "send_at":
			p.sendAt = l.integer()
		default:
			l.skip()
		}
	})
	p.addrs[1] = int32(len(l.addrs))
	l.people = append(l.people, p)
}

func (l *sgLetter) readRole(person int32, flags uint8) {
	l.array(func(i int) {
		addr, name := l.readAddress()
		l.addrs = append(l.addrs, sgAddr{addr, name, person, int32(i), flags})
	})
}

func (l *sgLetter) readAddress() (addr, name span) {
	l.object(func(key span) {
		switch string(l.text(key)) {
		case "email":
			addr = l.str()
		case "name":
			if !l.null() {
				name = l.str()
			}
		default:
			l.skip()
		}
	})
	return addr, name
}

func (l *sgLetter) readContent() {
	var c sgContent
	l.object(func(key span) {
		switch string(l.text(key)) {
		case "type":
			c.kind = l.str()
		case "value":
			c.value = l.str()
		default:
			l.skip()
		}
	})
	l.contents = append(l.contents, c)
}

// readPairs reads an object of strings; anything else is a bad request.
func (l *sgLetter) readPairs(dst []sgPair) []sgPair {
	l.object(func(key span) { dst = append(dst, sgPair{key, l.str()}) })
	return dst
}

func (l *sgLetter) count() int { return len(l.addrs) }

func (l *sgLetter) addresses() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for _, a := range l.addrs {
			if !yield(l.text(a.addr)) {
				return
			}
		}
	}
}

func (l *sgLetter) dry() bool { return l.sandbox }

func (l *sgLetter) refuse(match func([]byte) bool) *answer {
	var list []sgError
	for _, a := range l.addrs {
		if match(l.text(a.addr)) {
			list = append(list, l.invalid(a))
		}
	}
	if len(list) == 0 {
		return nil
	}
	ans := sgErrors(400, list...)
	return &ans
}

func (l *sgLetter) invalid(a sgAddr) sgError {
	return sgError{"Does not contain a valid address.", fmt.Sprintf("personalizations.%d.%s.%d.email", a.person, sgRoles[a.flags], a.i),
		sgHelp + "message.personalizations." + sgRoles[a.flags]}
}

// pack implements letter. Metadata of the message level is shared, that of a
// personalization overrides it key by key. Substitutions are rendered into
// subject and content, not into custom_args.
func (l *sgLetter) pack(p *packer, keep bool, fate func([]byte) (outcome, uint8)) (h *head, content []Content, test bool) {
	for _, pair := range l.args {
		p.pair(l.text(pair.key), l.text(pair.value))
	}
	p.end()
	for i := range l.people {
		person := &l.people[i]
		var c Content
		if keep {
			c = l.render(person)
		}
		for n, a := range l.addrs[person.addrs[0]:person.addrs[1]] {
			addr := l.text(a.addr)
			flags := a.flags
			if n > 0 {
				flags |= flagJoint
			}
			o, group := fate(addr)
			p.copy(o, group, flags, addr)
			for _, pair := range l.pairs[person.args[0]:person.args[1]] {
				p.pair(l.text(pair.key), l.text(pair.value))
			}
			p.end()
			if keep {
				content = append(content, c)
			}
		}
	}
	h = &head{from: string(l.text(l.from)), subject: string(l.text(l.subject))}
	for _, c := range l.categories {
		h.tags = append(h.tags, string(l.text(c)))
	}
	return h, content, false
}

func (l *sgLetter) render(person *sgPerson) Content {
	subs := make([]string, 0, 16)
	for _, pair := range l.pairs[person.subs[0]:person.subs[1]] {
		if key := string(l.text(pair.key)); key != "" {
			subs = append(subs, key, string(l.text(pair.value)))
		}
	}
	subject := l.subject
	if !person.subject.empty() {
		subject = person.subject
	}
	fill := func(v span) string { return replaceAll(string(l.text(v)), subs) }
	c := Content{Subject: fill(subject)}
	for _, part := range l.contents {
		switch string(l.text(part.kind)) {
		case "text/plain":
			c.Text = fill(part.value)
		case "text/html":
			c.HTML = fill(part.value)
		}
	}
	return c
}
