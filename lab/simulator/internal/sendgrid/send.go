package sendgrid

import (
	"cmp"
	"fmt"
	"mime"
	"net/http"
	"net/mail"
	"slices"
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

// A document is a mail/send body.
type document struct {
	People      []person       `json:"personalizations"`
	From        address        `json:"from"`
	Subject     string         `json:"subject"`
	Template    string         `json:"template_id"`
	Content     []content      `json:"content"`
	Attachments []attachment   `json:"attachments"`
	Args        jsontext.Pairs `json:"custom_args"`
	Categories  []string       `json:"categories"`
	Headers     jsontext.Pairs `json:"headers"`
	ReplyTo     *address       `json:"reply_to"`
	ReplyToList []address      `json:"reply_to_list"`
	SendAt      int64          `json:"send_at"`
	Settings    struct {
		Sandbox struct {
			Enable bool `json:"enable"`
		} `json:"sandbox_mode"`
	} `json:"mail_settings"`
}

// A person is a personalization. Most substitutions are not needed, and those with escapes are costly to read.
type person struct {
	To            []address      `json:"to"`
	CC            []address      `json:"cc"`
	BCC           []address      `json:"bcc"`
	Args          jsontext.Pairs `json:"custom_args"`
	Headers       jsontext.Pairs `json:"headers"`
	Substitutions jsontext.Texts `json:"substitutions"`
	Subject       string         `json:"subject"`
	SendAt        int64          `json:"send_at"`
}

type address struct {
	Email string `json:"email"`
	Name  string `json:"name"`
}

type content struct {
	Type  string `json:"type"`
	Value string `json:"value"`
}

// An attachment is a file. Its content is base64.
type attachment struct {
	Content     string `json:"content"`
	Type        string `json:"type"`
	Filename    string `json:"filename"`
	Disposition string `json:"disposition"`
	ContentID   string `json:"content_id"`
}

// parse reads and checks a call. A value of the wrong type makes it invalid; SendGrid names neither field nor reason
// then.
func (g SendGrid) parse(r *http.Request, body string) (*provider.Call, *provider.Answer) {
	var d document
	c := &provider.Call{Content: d.content}
	c.Accept = func(stored []*message.Batch) provider.Answer {
		a := statuses[http.StatusAccepted]
		a.Header = map[string]string{"X-Message-Id": g.ID(stored[0])}
		return a
	}
	fail := func(a provider.Answer) (*provider.Call, *provider.Answer) { return c, &a }
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind != provider.TypeJSON {
		return fail(statuses[http.StatusUnsupportedMediaType])
	}
	if !jsontext.Decode(body, &d) {
		return fail(statuses[http.StatusBadRequest])
	}
	d.mails(c)
	c.Invalid = func(list []provider.Place) *provider.Answer {
		var problems []problem
		for _, at := range list {
			problems = append(problems, recipient(c, at, "email", badAddress))
		}
		a := errors(http.StatusBadRequest, problems...)
		return &a
	}
	if d.Settings.Sandbox.Enable {
		c.Dry = &provider.Answer{Status: http.StatusOK, Type: provider.TypeText}
	}
	if list := d.check(c, time.Now()); len(list) > 0 {
		return fail(errors(http.StatusBadRequest, list...))
	}
	return c, nil
}

// mails adds a mail for each personalization. Its metadata replaces that of the message level key by key.
func (d *document) mails(c *provider.Call) {
	head := &message.Batch{From: d.From.Email, Subject: d.Subject, Tags: d.Categories, Shared: d.Args}
	n := 0
	for i := range d.People {
		p := &d.People[i]
		n += len(p.To) + len(p.CC) + len(p.BCC)
	}
	c.Mails = make([]provider.Mail, len(d.People))
	to := make([]provider.Recipient, 0, n)
	for i := range d.People {
		p := &d.People[i]
		first := len(to)
		for flags, list := range [...][]address{0: p.To, message.CC: p.CC, message.BCC: p.BCC} {
			for _, a := range list {
				to = append(to, provider.Recipient{Address: a.Email, Name: a.Name, Flags: uint8(flags)})
			}
		}
		c.Mails[i] = provider.Mail{Head: head, Metadata: p.Args, To: to[first:]}
	}
}

// recipient returns a problem of a recipient.
func recipient(c *provider.Call, at provider.Place, rest, text string) problem {
	to := c.Mails[at.Mail].To
	first := slices.IndexFunc(to, func(r provider.Recipient) bool { return r.Flags == to[at.To].Flags })
	role := provider.Roles[to[at.To].Flags]
	return problem{text, fmt.Sprintf("personalizations.%d.%s.%d.%s", at.Mail, role, at.To-first, rest),
		helpURL + "message.personalizations." + role}
}

// content returns the content of a personalization. Substitutions are rendered into subject and content, not into
// custom_args.
func (d *document) content(mail, _ int) message.Content {
	p := &d.People[mail]
	subs := p.substitutions()
	fill := func(text string) string {
		// SendGrid replaces one substitution after the other.
		for _, sub := range subs {
			if sub.Key != "" {
				text = strings.ReplaceAll(text, sub.Key, sub.Value)
			}
		}
		return strings.Clone(text)
	}
	c := message.Content{Subject: fill(cmp.Or(p.Subject, d.Subject)), Headers: d.header(p)}
	for _, part := range d.Content {
		switch part.Type {
		case "text/plain":
			c.Text = fill(part.Value)
		case "text/html":
			c.HTML = fill(part.Value)
		}
	}
	return c
}

func (p *person) substitutions() (list jsontext.Pairs) {
	if p.Substitutions != "" {
		jsontext.Decode(string(p.Substitutions), &list)
	}
	return list
}

// header returns the header fields of a personalization's mail, which replace those of the message.
func (d *document) header(p *person) map[string]string {
	all, list := d.Headers, d.ReplyToList
	if len(p.Headers) > 0 {
		all = p.Headers
	}
	if d.ReplyTo != nil {
		list = []address{*d.ReplyTo}
	}
	var replies []string
	for _, a := range list {
		text := a.Email
		if a.Name != "" {
			text = (&mail.Address{Name: a.Name, Address: a.Email}).String()
		}
		replies = append(replies, text)
	}
	return provider.Headers(all, replies)
}
