package provider

import (
	"encoding/base64"
	"slices"
	"strings"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
)

// A Letter is a message of a call of JSON. Each letter is a batch of its own.
type Letter struct {
	From                string
	To                  [3][]string // by the flags of Roles
	ReplyTo             []string
	Subject, Text, HTML string
	Template            bool
	Stream              string
	Tags                []string
	Metadata, Headers   []message.Pair
	Files               []File
}

// A File is an attachment whose content is base64.
type File struct {
	Name      string `json:"filename"`
	Content   string `json:"content"`
	Type      string `json:"content_type"`
	ContentID string `json:"content_id"`
}

// A Flaw is why a letter is not sent. The zero Flaw is none.
type Flaw struct {
	Kind         FlawKind
	Field, Value string // the role of a bad address, and the address
}

// Fill replaces <field> and <value>.
func (f Flaw) Fill(text string) string {
	return strings.NewReplacer("<field>", f.Field, "<value>", f.Value).Replace(text)
}

// A FlawKind names a Flaw. Kinds of providers have further ones, from OwnFlaw on.
type FlawKind int

// The kinds of flaws, in the order in which they are looked for.
const (
	NoFrom FlawKind = iota + 1
	BadFrom
	BadAddress
	NoTo
	ManyTo
	NoSubject
	NoBody
	BadFile
	TooBig
	OwnFlaw
)

// Letters are the letters of a call.
type Letters struct {
	List    []Letter
	MaxTo   int
	MaxSize int  // bytes of bodies and attachments
	Subject bool // it is required
	Whole   bool // a flaw of one letter refuses all
	// Check returns a flaw of the kind's own, after all others. It may change the recipients.
	Check func(i int, m *Mail) Flaw
	// Answer returns the answer to the call. ids are those of the letters without a flaw.
	Answer func(flaws []Flaw, ids []string) Answer
}

// Call returns the call, or the answer to one that is refused whole.
func (l *Letters) Call(p *Provider) (*Call, *Answer) {
	c := &Call{Mails: make([]Mail, len(l.List))}
	flaws := make([]Flaw, len(l.List))
	refuse := func() *Answer {
		if !slices.ContainsFunc(flaws, func(f Flaw) bool { return f.Kind != 0 }) || !l.Whole && len(flaws) > 1 {
			return nil
		}
		a := l.Answer(flaws, nil)
		return &a
	}
	for i := range l.List {
		flaws[i] = l.List[i].read(&c.Mails[i], l)
		if flaws[i].Kind == 0 && l.Check != nil {
			flaws[i] = l.Check(i, &c.Mails[i])
		}
		c.Mails[i].Refused = flaws[i].Kind != 0
	}
	c.Invalid = func(list []Place) *Answer {
		for _, at := range list {
			r := c.Mails[at.Mail].To[at.To]
			flaws[at.Mail], c.Mails[at.Mail].Refused = Flaw{BadAddress, Roles[r.Flags], r.Address}, true
		}
		return refuse()
	}
	c.Accept = func(stored []*message.Batch) Answer {
		ids := make([]string, len(stored))
		for i, b := range stored {
			ids[i] = p.ID(b)
		}
		return l.Answer(flaws, ids)
	}
	c.Content = func(i, _ int) message.Content { return l.List[i].content() }
	return c, refuse()
}

// read fills in the mail, and returns what is wrong with the letter.
func (l *Letter) read(m *Mail, limits *Letters) Flaw {
	m.Head = &message.Batch{Subject: l.Subject, Tags: l.Tags, Stream: l.Stream}
	m.Metadata = l.Metadata
	size := len(l.Text) + len(l.HTML)
	var address, file Flaw
	for flags, list := range l.To {
		for _, text := range list {
			var ok bool
			if m.To, ok = Recipients(m.To, text, uint8(flags)); !ok && address.Kind == 0 {
				address = Flaw{BadAddress, Roles[uint8(flags)], text}
			}
		}
	}
	from, ok := Recipients(nil, l.From, 0)
	if ok && len(from) == 1 {
		m.Head.From = from[0].Address
	}
	for _, f := range l.Files {
		data, err := base64.StdEncoding.DecodeString(f.Content)
		if err != nil || f.Content == "" || f.Name == "" {
			file.Kind = BadFile
		}
		size += len(data)
		m.Head.Attachments = append(m.Head.Attachments,
			message.NewAttachment(strings.Clone(f.Name), strings.Clone(f.Type),
				strings.Clone(strings.TrimPrefix(f.ContentID, "cid:")), data))
	}
	for _, rule := range []struct {
		wrong bool
		flaw  Flaw
	}{
		{l.From == "", Flaw{Kind: NoFrom}},
		{m.Head.From == "", Flaw{Kind: BadFrom, Value: l.From}},
		{address.Kind != 0, address},
		{len(m.To) == 0, Flaw{Kind: NoTo}},
		{len(m.To) > limits.MaxTo, Flaw{Kind: ManyTo}},
		{limits.Subject && l.Subject == "" && !l.Template, Flaw{Kind: NoSubject}},
		{l.Text == "" && l.HTML == "" && !l.Template, Flaw{Kind: NoBody}},
		{file.Kind != 0, file},
		{size > limits.MaxSize, Flaw{Kind: TooBig}},
	} {
		if rule.wrong {
			return rule.flaw
		}
	}
	return Flaw{}
}

// content returns what the recipients read.
func (l *Letter) content() message.Content {
	return message.Content{Subject: strings.Clone(l.Subject), Text: strings.Clone(l.Text), HTML: strings.Clone(l.HTML),
		Headers: Headers(l.Headers, l.ReplyTo)}
}

// Headers returns header fields as a map, or nil if there are none.
func Headers(list []message.Pair, replies []string) (m map[string]string) {
	if len(replies) > 0 {
		list = append(slices.Clip(list), message.Pair{Key: "Reply-To", Value: strings.Join(replies, ", ")})
	}
	for _, p := range list {
		if m == nil {
			m = map[string]string{}
		}
		m[strings.Clone(p.Key)] = strings.Clone(p.Value)
	}
	return m
}
