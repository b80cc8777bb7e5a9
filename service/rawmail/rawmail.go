// Package rawmail reads a whole message into a request, as SMTP and messages.mime of Mailgun submit it. One message is
// one batch: a mail to all its recipients, or if the header names others, a mail to each of them.
package rawmail

import (
	"errors"
	"io"
	"math"
	"net/mail"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/mailparse"
	"github.com/safedelivr/safedelivr/service/problem"
)

const (
	maxTogether = 50 // addresses of one mail
	maxTags     = 10
)

// files gives the attachments of a message to a request.
type files struct {
	in   *intake.Intake
	n    int
	last *intake.Attachment // its bytes are not complete
}

// open begins an attachment.
func (f *files) open(a mailparse.Attachment) (io.Writer, error) {
	f.end()
	f.last = &intake.Attachment{
		Filename: a.Filename, Type: a.Type, ContentID: a.ContentID, File: f.in.NewFile(),
	}
	return f.last.File, nil
}

// end adds the attachment that was begun.
func (f *files) end() {
	if f.last != nil {
		f.in.Attach("/attachments/"+strconv.Itoa(f.n), f.last)
		f.n++
	}
	f.last = nil
}

// Read reads a message for the recipients of its envelope, which are addresses without names. The caller may change the
// fields of the batch before it calls Recipients.
//
// A *mailparse.Error says why the message is refused.
func Read(in *intake.Intake, r io.Reader) (*mailparse.Mail, error) {
	f := files{in: in}
	m, err := mailparse.Read(in.Body(r), int(min(in.ContentLeft(), math.MaxInt32)), f.open)
	in.Pause()
	if err != nil {
		return nil, err
	}
	f.end()
	b := &in.Batch
	b.From = address(m.From)
	for _, a := range m.ReplyTo {
		b.ReplyTo = append(b.ReplyTo, address(a))
	}
	b.Subject, b.Text, b.HTML = intake.Literal(m.Subject), intake.Literal(m.Text), intake.Literal(m.HTML)
	if b.Subject == "" {
		b.Subject = "(no subject)"
	}
	if strings.TrimSpace(b.Text+b.HTML) == "" { // the intake and some providers take no mail without
		b.Text, b.HTML = "", intake.Nothing
	}
	for _, h := range m.Headers {
		if !intake.IsReserved(h.Name) {
			b.Headers = append(b.Headers, models.Header{Name: h.Name, Value: intake.Literal(h.Value)})
		}
	}
	b.Tags, b.Metadata = m.Tags[:min(len(m.Tags), maxTags)], m.Metadata
	b.TrackOpens, b.TrackClicks = m.TrackOpens, m.TrackClicks
	if m.DeliverAt.After(time.Now()) {
		b.DeliverAt = m.DeliverAt.UTC().Format(time.RFC3339)
	}
	return m, in.AddContent(len(b.Subject) + len(b.Text) + len(b.HTML))
}

// SetMessageID sets the Message-ID of the mail, without < and >.
func SetMessageID(in *intake.Intake, id string) {
	in.Batch.Headers = append(in.Batch.Headers, models.Header{
		Name: models.MessageIDField, Value: "<" + intake.Literal(id) + ">",
	})
}

// Recipients reads the recipients of a message into its request.
func Recipients(in *intake.Intake, m *mailparse.Mail, recipients []string) error {
	e := m.Envelope(recipients, maxTogether)
	if in.Batch.Together = e.Together; e.Together {
		in.Batch.CC, in.Batch.BCC = addresses(e.Cc), addresses(e.Bcc)
	}
	list := make([]intake.Recipient, len(e.To))
	for i, a := range e.To {
		list[i] = intake.Recipient{Email: a.Email, Name: a.Name}
	}
	return in.Read(intake.Of(list...))
}

func addresses(list []models.Address) (out []string) {
	for _, a := range list {
		out = append(out, address(a))
	}
	return out
}

// address returns an address as the intake reads it.
func address(a models.Address) string {
	if a.Name == "" {
		return a.Email
	}
	return (&mail.Address{Name: a.Name, Address: a.Email}).String()
}

// Refused returns the error of a request for a message that Read has refused, and other errors as they are.
func Refused(err error) error {
	var e *mailparse.Error
	if !errors.As(err, &e) {
		return err
	}
	kind := problem.Invalid
	if e.Status == 552 {
		kind = problem.TooLarge
	}
	return problem.New(kind, e.Code, "%s", strings.TrimSpace(e.Detail))
}
