package postmark

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/jsontext"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

const (
	maxCall     = 50 << 20
	maxMessage  = 10 << 20
	maxText     = 5 << 20
	maxMessages = 500
	maxTo       = 50
	maxTag      = 1000
	maxKey      = 20
	maxValue    = 80
)

// A mail is a message of a call.
type mail struct {
	From     string         `json:"From"`
	To       string         `json:"To"`
	Cc       string         `json:"Cc"`
	Bcc      string         `json:"Bcc"`
	Subject  string         `json:"Subject"`
	HTML     string         `json:"HtmlBody"`
	Text     string         `json:"TextBody"`
	ReplyTo  string         `json:"ReplyTo"`
	Tag      string         `json:"Tag"`
	Stream   string         `json:"MessageStream"`
	Metadata jsontext.Pairs `json:"Metadata"`
	Template int64          `json:"TemplateId"`
	Alias    string         `json:"TemplateAlias"`
	Headers  []struct {
		Name  string `json:"Name"`
		Value string `json:"Value"`
	} `json:"Headers"`
	Attachments []struct {
		Name        string `json:"Name"`
		Content     string `json:"Content"`
		ContentType string `json:"ContentType"`
		ContentID   string `json:"ContentID"`
	} `json:"Attachments"`
}

// A result is the answer to one message.
type result struct {
	To          string `json:",omitempty"`
	SubmittedAt string `json:",omitempty"`
	MessageID   string `json:",omitempty"`
	ErrorCode   int
	Message     string
}

// parse reads and checks a call. Of a batch each message has its own result, and the status is 200.
func (g Postmark) parse(r *http.Request, body string) (*provider.Call, *provider.Answer) {
	batch := strings.Contains(r.URL.Path, "/batch")
	template := strings.Contains(r.URL.Path, "Template")
	c, list := &provider.Call{}, make([]mail, 1)
	refuse := func(a provider.Answer) (*provider.Call, *provider.Answer) { return c, &a }
	if !strings.HasPrefix(r.Header.Get("Content-Type"), provider.TypeJSON) {
		return refuse(g.Say(415))
	}
	var all struct {
		Messages []mail `json:"Messages"`
	}
	var to any = &list[0]
	if batch && template {
		to = &all
	} else if batch {
		to = &list
	}
	if !jsontext.Decode(body, to) {
		return refuse(g.Say(422))
	}
	if batch && template {
		list = all.Messages
	}
	if len(list) == 0 || len(list) > maxMessages {
		return refuse(fail(422, 410, "A batch may have up to 500 messages."))
	}
	results := make([]result, len(list))
	c.Mails = make([]provider.Mail, len(list))
	for i := range list {
		results[i] = g.read(&list[i], &c.Mails[i], template)
		c.Mails[i].Refused = results[i].ErrorCode != 0
	}
	answer := func() provider.Answer {
		switch {
		case batch:
			return provider.JSON(200, results)
		case results[0].ErrorCode != 0:
			return provider.JSON(422, results[0])
		}
		return provider.JSON(200, results[0])
	}
	c.Content = func(i, _ int) message.Content { return list[i].content() }
	c.Invalid = func(places []provider.Place) *provider.Answer {
		for _, at := range places {
			c.Mails[at.Mail].Refused = true
			results[at.Mail] = invalid("To", c.Mails[at.Mail].To[at.To].Address)
		}
		if batch {
			return nil
		}
		a := answer()
		return &a
	}
	accept := func(id func(i int) string) provider.Answer {
		for i, n := 0, 0; i < len(list); i++ {
			if r := &results[i]; r.ErrorCode == 0 {
				r.To, r.MessageID = list[i].To, id(n)
				r.SubmittedAt = time.Now().UTC().Format("2006-01-02T15:04:05.0000000Z")
				n++
			}
		}
		return answer()
	}
	c.Accept = func(stored []*message.Batch) provider.Answer {
		return accept(func(i int) string { return g.ID(stored[i]) })
	}
	if r.Header.Get("X-Postmark-Server-Token") == testToken {
		a := accept(func(int) string { return g.IDs.UUID(0) })
		c.Dry = &a
	}
	if !batch && results[0].ErrorCode != 0 {
		return refuse(answer())
	}
	return c, nil
}

func invalid(field, value string) result {
	return result{ErrorCode: 300, Message: fmt.Sprintf("Invalid '%s' address: '%s'.", field, value)}
}

// read fills in the mail and returns its result. Inactive addresses get nothing; a message without others is refused.
func (g Postmark) read(in *mail, m *provider.Mail, template bool) result {
	m.Head = &message.Batch{Subject: in.Subject, Stream: in.Stream}
	if in.Stream == "" {
		m.Head.Stream = "outbound"
	}
	if in.Tag != "" {
		m.Head.Tags = []string{in.Tag}
	}
	m.Metadata = in.Metadata
	from, ok := provider.Recipients(nil, in.From, 0)
	if !ok || len(from) != 1 {
		return invalid("From", in.From)
	}
	m.Head.From = from[0].Address
	for flags, field := range [...]string{0: in.To, message.CC: in.Cc, message.BCC: in.Bcc} {
		if m.To, ok = provider.Recipients(m.To, field, uint8(flags)); !ok && field != "" {
			return invalid([]string{"To", "Cc", "Bcc"}[flags], field)
		}
	}
	size, wrong := len(in.HTML)+len(in.Text), func(text string) result { return result{ErrorCode: 300, Message: text} }
	for _, f := range in.Attachments {
		file, ok := provider.File{Name: f.Name, Type: f.ContentType, ContentID: f.ContentID, Content: f.Content}.Attachment()
		switch {
		case strings.HasSuffix(strings.ToLower(f.Name), ".exe"):
			return result{ErrorCode: 411, Message: "Attachments of this type are forbidden."}
		case !ok:
			return wrong("An attachment needs a name and content that is base64.")
		}
		size += file.Size
		m.Head.Attachments = append(m.Head.Attachments, file)
	}
	long := func(p message.Pair) bool { return len(p.Key) > maxKey || len(p.Value) > maxValue }
	switch {
	case len(m.To) == 0:
		return wrong("Zero recipients specified.")
	case len(m.To) > maxTo:
		return wrong("A message may have up to 50 recipients.")
	case !template && in.HTML == "" && in.Text == "":
		return wrong("Provide either email TextBody or HtmlBody or both.")
	case template && in.Template == 0 && in.Alias == "":
		return result{ErrorCode: 403, Message: "Provide a TemplateId or a TemplateAlias."}
	case size > maxMessage || len(in.HTML) > maxText || len(in.Text) > maxText:
		return wrong("The message is too large.")
	case len(in.Tag) > maxTag || slices.ContainsFunc(in.Metadata, long):
		return wrong("A tag, or a name or value of the metadata is too long.")
	}
	inactive := []string{}
	m.To = slices.DeleteFunc(m.To, func(r provider.Recipient) bool {
		_, drops := g.Lists.Drops(r.Address, time.Now())
		o := message.OutcomeOf(r.Address, g.Name)
		if drops = drops || o >= message.SuppressedBounce && o <= message.SuppressedUnsub; drops {
			inactive = append(inactive, strings.ToLower(r.Address))
		}
		return drops
	})
	found := strings.Join(inactive, ", ")
	switch {
	case len(m.To) == 0:
		return result{ErrorCode: 406, Message: "You tried to send to recipient(s) that have been marked as inactive. Found " +
			"inactive addresses: " + found + ". Inactive recipients are ones that have generated a hard bounce, a spam " +
			"complaint, or a manual suppression."}
	case found != "":
		return result{Message: "Message OK, but will not deliver to these inactive addresses: " + found + "."}
	}
	return result{Message: "OK"}
}

// content returns what the recipients read.
func (in *mail) content() message.Content {
	c := message.Content{Subject: strings.Clone(in.Subject), Text: strings.Clone(in.Text), HTML: strings.Clone(in.HTML)}
	var headers []message.Pair
	if in.ReplyTo != "" {
		headers = append(headers, message.Pair{Key: "Reply-To", Value: in.ReplyTo})
	}
	for _, h := range in.Headers {
		headers = append(headers, message.Pair{Key: h.Name, Value: h.Value})
	}
	c.Headers = provider.Map(headers)
	return c
}
