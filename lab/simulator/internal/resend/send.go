package resend

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/jsontext"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

const (
	maxBody  = 40 << 20
	maxBatch = 100
	maxTo    = 50
)

// An email is the body of POST /emails, and an element of that of POST /emails/batch.
type email struct {
	From    string         `json:"from"`
	To      jsontext.Raw   `json:"to"`
	CC      jsontext.Raw   `json:"cc"`
	BCC     jsontext.Raw   `json:"bcc"`
	ReplyTo jsontext.Raw   `json:"reply_to"`
	Subject string         `json:"subject"`
	HTML    string         `json:"html"`
	Text    string         `json:"text"`
	Headers jsontext.Pairs `json:"headers"`
	Tags    []struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	} `json:"tags"`
	Attachments []struct {
		Filename    string `json:"filename"`
		Content     string `json:"content"`
		Path        string `json:"path"`
		ContentType string `json:"content_type"`
		ContentID   string `json:"content_id"`
	} `json:"attachments"`
	Template *struct {
		ID string `json:"id"`
	} `json:"template"`
}

// A problem is why an email is not sent.
type problem struct{ name, text string }

func (p problem) answer() *provider.Answer {
	a := fail(http.StatusUnprocessableEntity, p.name, p.text)
	return &a
}

// parse reads and checks a call. A batch is sent whole or not at all, unless its validation is permissive: then the
// answer names the emails that are not sent.
func (g Resend) parse(r *http.Request, body string) (*provider.Call, *provider.Answer) {
	batch := strings.HasSuffix(r.URL.Path, "/batch")
	permissive := batch && r.Header.Get("x-batch-validation") == "permissive"
	list := make([]email, 1)
	c := &provider.Call{}
	var ok bool
	if batch {
		ok = jsontext.Decode(body, &list)
	} else {
		ok = jsontext.Decode(body, &list[0])
	}
	if !ok {
		a := fail(http.StatusBadRequest, "validation_error", "The request body is not valid JSON of the documented form.")
		return c, &a
	}
	if len(list) == 0 || len(list) > maxBatch {
		return c, problem{"validation_error", "The batch must have between 1 and 100 emails."}.answer()
	}
	c.Content = func(i, _ int) message.Content { return list[i].content() }
	c.Mails = make([]provider.Mail, len(list))
	failed := []any{}
	refuse := func(i int, text string) {
		c.Mails[i].Refused = true
		failed = append(failed, map[string]any{"index": i, "message": text})
	}
	var first *provider.Answer
	for i := range list {
		p := list[i].read(&c.Mails[i], batch)
		if p == (problem{}) {
			continue
		}
		if first == nil {
			first = p.answer()
		}
		refuse(i, p.text)
	}
	c.Invalid = func(places []provider.Place) *provider.Answer {
		for _, at := range places {
			if p := invalid(provider.Roles[c.Mails[at.Mail].To[at.To].Flags]); permissive {
				refuse(at.Mail, p.text)
			} else {
				return p.answer()
			}
		}
		return nil
	}
	c.Accept = func(stored []*message.Batch) provider.Answer {
		ids := []any{}
		for _, b := range stored {
			ids = append(ids, map[string]any{"id": g.ID(b)})
		}
		switch {
		case !batch:
			return provider.JSON(http.StatusOK, ids[0])
		case permissive:
			return provider.JSON(http.StatusOK, map[string]any{"data": ids, "errors": failed})
		}
		return provider.JSON(http.StatusOK, map[string]any{"data": ids})
	}
	if permissive {
		return c, nil
	}
	return c, first
}

func invalid(field string) problem {
	return problem{"validation_error", fmt.Sprintf("Invalid `%s` field. The email address needs to follow the "+
		"`email@example.com` or `Name <email@example.com>` format.", field)}
}

var tagText = regexp.MustCompile(`^[A-Za-z0-9_-]{1,256}$`)

// read fills in the mail, and returns what is wrong with the email. In a batch, Resend drops attachments.
func (e *email) read(m *provider.Mail, batch bool) problem {
	m.Head = &message.Batch{Subject: e.Subject}
	missing := func(field string) problem {
		return problem{"missing_required_field", fmt.Sprintf("Missing `%s` field.", field)}
	}
	wrong := problem{}
	for flags, field := range [...]jsontext.Raw{0: e.To, message.CC: e.CC, message.BCC: e.BCC} {
		texts, ok := field.Strings()
		for _, text := range texts {
			before := len(m.To)
			if m.To, _ = provider.Recipients(m.To, text, uint8(flags)); len(m.To) != before+1 {
				ok = false
			}
		}
		if !ok {
			wrong = invalid(provider.Roles[uint8(flags)])
		}
	}
	from, ok := provider.Recipients(nil, e.From, 0)
	switch {
	case e.From == "":
		return missing("from")
	case !ok || len(from) != 1:
		return problem{"invalid_from_address", invalid("from").text}
	case wrong != problem{}:
		return wrong
	case len(m.To) == 0 || m.To[0].Flags != 0:
		return missing("to")
	case len(m.To) > maxTo:
		return problem{"validation_error", "An email may have up to 50 recipients."}
	case e.Subject == "" && e.Template == nil:
		return missing("subject")
	case e.HTML == "" && e.Text == "" && e.Template == nil:
		return missing("html` or `text")
	}
	m.Head.From = from[0].Address
	for _, t := range e.Tags {
		if !tagText.MatchString(t.Name) || !tagText.MatchString(t.Value) {
			return problem{"validation_error", "Tags should only contain ASCII letters, numbers, underscores, or dashes."}
		}
		m.Metadata = append(m.Metadata, message.Pair{Key: t.Name, Value: t.Value})
	}
	for _, f := range e.Attachments {
		file, ok := provider.File{Name: f.Filename, Type: f.ContentType, ContentID: f.ContentID, Content: f.Content}.Attachment()
		if !ok && f.Path == "" {
			return problem{"invalid_attachment", "Attachment must have either a `content` or `path`."}
		}
		if !batch {
			m.Head.Attachments = append(m.Head.Attachments, file)
		}
	}
	return problem{}
}

// content returns what the recipients read.
func (e *email) content() message.Content {
	c := message.Content{Subject: strings.Clone(e.Subject), Text: strings.Clone(e.Text), HTML: strings.Clone(e.HTML)}
	replies, _ := e.ReplyTo.Strings()
	headers := e.Headers
	if len(replies) > 0 {
		headers = append(headers, message.Pair{Key: "Reply-To", Value: strings.Join(replies, ", ")})
	}
	c.Headers = provider.Map(headers)
	return c
}
