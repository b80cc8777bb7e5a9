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
	"github.com/safedelivr/safedelivr/lab/simulator/internal/multipart"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

const (
	maxRecipients = 1000
	maxOptions    = 16 << 10 // bytes of all o:, h: and v: parameters
	maxMessage    = 25 << 20
	maxTags       = 10
)

// A form is a messages form.
type form struct {
	fields    []multipart.Field
	malformed bool
	mime      bool // messages.mime
	options   int  // bytes
	size      int  // bytes of the message
	badHeader bool
	badTime   bool
	head      *message.Batch
	headers   []message.Pair
	vars      []message.Pair // v:, without the prefix

	to        []provider.Recipient
	index     map[string]int // in to, by address in lower case
	variables []jsontext.Raw // recipient-variables, an object, by the index in to
	batch     bool           // there are recipient-variables
}

// parse reads and checks a call. The form is multipart or urlencoded. Without recipient-variables all recipients are
// named in one message.
func (g Mailgun) parse(r *http.Request, body string) (*provider.Call, *provider.Answer) {
	f := &form{mime: strings.HasSuffix(r.URL.Path, ".mime"), head: &message.Batch{}}
	kind, params, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch kind {
	case "multipart/form-data":
		var ok bool
		f.fields, ok = multipart.Fields(body, params["boundary"])
		f.malformed = !ok
	case "application/x-www-form-urlencoded":
		values, err := url.ParseQuery(body)
		f.malformed = err != nil
		for name, list := range values {
			for _, value := range list {
				f.fields = append(f.fields, multipart.Field{Name: name, Value: value})
			}
		}
	default:
		f.malformed = len(body) > 0
	}
	problem := f.check()
	c := &provider.Call{Content: f.content}
	c.Accept = func(stored []*message.Batch) provider.Answer {
		return provider.JSON(200, map[string]any{"id": g.ID(stored[0]), "message": "Queued. Thank you."})
	}
	c.Invalid = func(list []provider.Place) *provider.Answer { // Mailgun names the field, not the address
		r := c.Mails[list[0].Mail].To[list[0].To]
		a := say(400, invalidAddress, provider.Roles[r.Flags])
		return &a
	}
	f.mails(c)
	if domain := r.PathValue("domain"); !strings.EqualFold(domain, g.Domain) {
		problem = say(404, "Domain not found: %s", domain)
	}
	if problem.Status != 0 {
		return c, &problem
	}
	return c, nil
}

// mails adds the mails: one to each recipient if there are recipient-variables, and otherwise one to all.
func (f *form) mails(c *provider.Call) {
	if !f.batch {
		f.head.Shared = f.vars
		c.Mails = []provider.Mail{{Head: f.head, To: f.to}}
		return
	}
	var own []message.Pair
	for _, v := range f.vars {
		if strings.Contains(v.Value, opening) {
			own = append(own, v)
		} else {
			f.head.Shared = append(f.head.Shared, v)
		}
	}
	c.Mails = make([]provider.Mail, len(f.to))
	for i := range f.to {
		c.Mails[i] = provider.Mail{Head: f.head, To: f.to[i : i+1]}
		for _, v := range own {
			c.Mails[i].Metadata = append(c.Mails[i].Metadata, message.Pair{Key: v.Key, Value: f.fill(v.Value, i)})
		}
	}
}

// get returns the value of the last field with the name.
func (f *form) get(name string) (value string) {
	for i := range f.fields {
		if f.fields[i].Name == name {
			value = f.fields[i].Value
		}
	}
	return value
}

// read reads all fields but addresses. Mailgun drops attachments without a file name, and takes the name of an inline
// one as its content ID.
func (f *form) read() {
	for _, p := range f.fields {
		option := len(p.Name) > 2 && p.Name[1] == ':' && strings.Contains("ohv", p.Name[:1])
		if option {
			f.options += len(p.Name) + len(p.Value)
		}
		switch {
		case option && p.Name[0] == 'v':
			f.vars = append(f.vars, message.Pair{Key: p.Name[2:], Value: p.Value})
		case option && p.Name[0] == 'h':
			f.badHeader = f.badHeader || !message.ASCII(p.Name)
			f.headers = append(f.headers, message.Pair{Key: p.Name[2:], Value: p.Value})
		case p.Name == "o:tag":
			f.head.Tags = append(f.head.Tags, p.Value)
		case p.Name == "recipient-variables":
			f.batch = true
		case p.Name == "o:testmode":
			f.head.Test = yes(p.Value)
		case p.Name == "o:deliverytime" && p.Value != "":
			_, err := mail.ParseDate(p.Value)
			f.badTime = err != nil
		case p.Name == "text", p.Name == "html", p.Name == "amp-html", p.Name == "message":
			f.size += len(p.Value)
		case (p.Name == "attachment" || p.Name == "inline") && p.Filename != "":
			id := ""
			if p.Name == "inline" {
				id = p.Filename
			}
			f.size += len(p.Value)
			f.head.Attachments = append(f.head.Attachments, message.NewAttachment(strings.Clone(p.Filename),
				strings.Clone(p.Type), strings.Clone(id), []byte(p.Value)))
		}
	}
}

func yes(text string) bool { return text == "yes" || text == "true" || text == "True" }

const invalidAddress = "%s parameter is not a valid address. please check documentation"

// check returns the answer to a request that is not valid, or the zero Answer. It looks for mistakes in the order in
// which Mailgun does.
func (f *form) check() provider.Answer {
	f.read()
	addresses, wrong := f.readAddresses()
	from := f.get("from")
	f.head.Subject = f.get("subject")
	if f.mime && from == "" {
		if m, err := mail.ReadMessage(strings.NewReader(f.get("message"))); err == nil {
			from, f.head.Subject = m.Header.Get("From"), m.Header.Get("Subject")
		}
	}
	sender, ok := provider.Recipients(nil, from, 0)
	valid := ok && len(sender) == 1 && message.ASCII(sender[0].Address[:strings.LastIndexByte(sender[0].Address, '@')])
	if valid {
		f.head.From = sender[0].Address
	}
	readable := !f.batch || f.readVariables()
	for _, rule := range []struct {
		wrong bool
		text  string
	}{
		{f.malformed, "Malformed form data"},
		{strings.TrimSpace(from) == "", "from parameter is missing"},
		{f.get("to") == "", "to parameter is missing"},
		{!valid, strings.Replace(invalidAddress, "%s", "from", 1)},
		{wrong != "", strings.Replace(invalidAddress, "%s", wrong, 1)},
		{f.mime && f.get("message") == "", "message parameter is missing"},
		{!f.mime && f.get("text")+f.get("html")+f.get("template") == "",
			"Need at least one of 'text' or 'html' parameters specified"},
		{!readable, "'recipient-variables' parameter is not a valid JSON"},
		{addresses > maxRecipients, "Too many recipients, max is 1000"},
		{f.options > maxOptions, "Send options (parameters starting with o:, h:, or v:) are limited to 16 kB total"},
		{f.badHeader, "Header names may only contain ASCII characters"},
		{f.badTime, "o:deliverytime parameter is not a valid RFC 2822 date"},
		{len(f.head.Tags) > maxTags, "Too many tags, max is 10"},
	} {
		if rule.wrong {
			return say(400, "%s", rule.text)
		}
	}
	if f.size > maxMessage {
		return say(413, "message size exceeds 25MB limit")
	}
	return provider.Answer{}
}

// readAddresses fills to, in the order To, Cc, Bcc, and returns how many addresses the fields hold. Mailgun sends one
// mail to an address that is named twice. wrong names the first field that is not valid.
func (f *form) readAddresses() (n int, wrong string) {
	var list []provider.Recipient
	f.index = make(map[string]int, len(f.fields))
	f.to = make([]provider.Recipient, 0, len(f.fields))
	for _, flags := range []uint8{0, message.CC, message.BCC} {
		for i := range f.fields {
			if f.fields[i].Name != provider.Roles[flags] {
				continue
			}
			var ok bool
			if list, ok = provider.Recipients(list[:0], f.fields[i].Value, flags); !ok && wrong == "" {
				wrong = provider.Roles[flags]
			}
			n += len(list)
			for _, r := range list {
				key := strings.ToLower(r.Address)
				if _, ok := f.index[key]; !ok {
					f.index[key] = len(f.to)
					f.to = append(f.to, r)
				}
			}
		}
	}
	return n, wrong
}

// readVariables finds the recipient-variables of each address. It reports false if they are no object of objects.
func (f *form) readVariables() bool {
	f.variables = make([]jsontext.Raw, len(f.to))
	objects := true
	valid := jsontext.Raw(f.get("recipient-variables")).Members(func(key string, value jsontext.Raw) {
		objects = objects && strings.HasPrefix(string(value), "{")
		if i, ok := f.index[strings.ToLower(key)]; ok {
			f.variables[i] = value
		}
	})
	return valid && objects
}

// content returns what a recipient reads.
func (f *form) content(mail, to int) message.Content {
	text := f.get("text")
	if f.mime {
		text = f.get("message")
	}
	fill := func(text string) string { return strings.Clone(f.fill(text, mail+to)) }
	c := message.Content{Subject: fill(f.head.Subject), Text: fill(text), HTML: fill(f.get("html"))}
	headers := slices.Clone(f.headers)
	for i := range headers {
		headers[i].Value = f.fill(headers[i].Value, mail+to)
	}
	c.Headers = provider.Headers(headers, nil)
	return c
}

const opening = "%recipient"

// fill replaces placeholders in a text for a recipient: %recipient.key% becomes a recipient-variable, %recipient% the
// address. A placeholder is kept if there is no such variable or its value is an object, a list or null.
func (f *form) fill(text string, to int) string {
	if !strings.Contains(text, opening) {
		return text
	}
	var out strings.Builder
	for {
		before, after, found := strings.Cut(text, opening)
		out.WriteString(before)
		if !found {
			return out.String()
		}
		key, rest, closed := strings.Cut(after, "%")
		value, ok := f.to[to].Address, key == ""
		if name, dotted := strings.CutPrefix(key, "."); dotted && f.batch {
			value, ok = f.variables[to].Member(name)
		}
		if text = rest; !ok || !closed {
			value, text = opening, after
		}
		if out.Len() == 0 && text == "" {
			return value
		}
		out.WriteString(value)
	}
}
