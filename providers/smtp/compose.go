package smtp

import (
	"bytes"
	"mime"
	"net/mail"
	"strings"
	"time"

	gomail "github.com/wneessen/go-mail"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/message"
)

// compose returns the mail to a recipient, or to all recipients of a call, with a token if there is one. lacks names a
// placeholder without a value.
func compose(
	c *models.Call, r *models.CallRecipient, date time.Time, token string,
) (raw []byte, lacks string, err error) {
	f, lacks := message.Render(c.Content, &r.Recipient)
	m := gomail.NewMsg(gomail.WithNoDefaultUserAgent(), gomail.WithEncoding(gomail.EncodingQP))
	m.FromMailAddress(address(c.Content.From.Name, c.Content.From.Email))
	for _, to := range message.In(models.To, c, r) {
		m.AddToMailAddress(address(to.Name, to.Email))
	}
	for _, to := range message.In(models.CC, c, r) {
		m.AddCcMailAddress(address(to.Name, to.Email))
	}
	var reply []*mail.Address
	for _, a := range c.Content.ReplyTo {
		reply = append(reply, address(a.Name, a.Email))
	}
	if len(reply) > 0 {
		m.ReplyToMailAddress(reply...)
	}
	m.Subject(f.Subject)
	m.SetDateWithValue(date)
	m.SetMessageIDWithValue(messageID(c, r))
	for _, h := range f.Headers {
		if strings.EqualFold(h.Name, models.MessageIDField) {
			m.SetMessageIDWithValue(strings.Trim(h.Value, "<>")) // the library would add one of its own beside it
			continue
		}
		folded := strings.ReplaceAll(h.Value, "?= =?", "?=\r\n =?") // a line has 998 bytes at most (RFC 5322, 2.1.1)
		m.SetGenHeaderPreformatted(gomail.Header(h.Name), folded)
	}
	if token != "" {
		m.SetGenHeaderPreformatted(idHeader, token)
	}
	body(m, c, &f)
	var b bytes.Buffer
	_, err = m.WriteTo(&b)
	return b.Bytes(), lacks, err
}

// address returns an address with a name. Package mail quotes a local part that needs it.
func address(name, email string) *mail.Address {
	if a, err := mail.ParseAddress(email); err == nil {
		email = a.Address
	}
	return &mail.Address{Name: message.Name(name), Address: email}
}

// body sets the bodies and the files.
func body(m *gomail.Msg, c *models.Call, f *message.Rendered) {
	switch {
	case f.Text != "" && f.HTML != "":
		m.SetBodyString(gomail.TypeTextPlain, f.Text)
		m.AddAlternativeString(gomail.TypeTextHTML, f.HTML)
	case f.HTML != "":
		m.SetBodyString(gomail.TypeTextHTML, f.HTML)
	default:
		m.SetBodyString(gomail.TypeTextPlain, f.Text)
	}
	for i, data := range c.Files {
		if a := &c.Content.Attachments[i]; a.ContentID == "" {
			m.AttachReadSeeker(a.Filename, bytes.NewReader(data), header(a, "attachment"))
		} else {
			m.EmbedReadSeeker(a.Filename, bytes.NewReader(data), header(a, "inline"), gomail.WithFileContentID("<"+a.ContentID+">"))
		}
	}
}

// header sets the header of an attachment's part. The library would replace characters of the name.
func header(a *models.Attachment, disposition string) gomail.FileOption {
	return func(f *gomail.File) {
		f.Header.Set("Content-Type", a.Type)
		f.Header.Set("Content-Disposition", mime.FormatMediaType(disposition, map[string]string{"filename": a.Filename}))
	}
}

// messageID returns the id of the mail to a recipient, which comes back in reports about it. It is the Message-ID, too,
// unless the mail has another one.
func messageID(c *models.Call, r *models.CallRecipient) string {
	return r.Log.String() + "@" + models.DomainOf(c.Content.From.Email)
}
