package kind

import (
	"cmp"
	"fmt"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/message"
)

// Limits are the sizes that a provider takes, in bytes.
type Limits struct {
	Title   string // of the provider
	Member  string // of the object that has the list; "": the list is the body
	Mail    int    // with its attachments, as it is sent
	Request int
}

// A Mail is one of a call: to a recipient, or to all with it.
type Mail struct {
	*models.Call
	To *models.CallRecipient
	message.Rendered
	Unfit string // why the provider cannot take it; write may set it
}

// Batch returns the body of a call with a JSON object for each mail, as write makes it, or the parts of a call that
// cannot be made. The same call always has the same bytes.
func Batch(
	c *models.Call, most Limits, write func(w *Writer, m *Mail),
) ([]byte, []models.Part) {
	larger := fmt.Sprintf(" would be larger than the %d MB that %s takes", most.Mail/1e6, most.Title)
	if c.Content.Size() > int64(most.Mail) {
		return nil, message.Refuse(c.Numbers(), models.TooLarge, "the message"+larger)
	}
	var flaws message.Flaws
	var w Writer
	if most.Member != "" {
		w.Begin('{').Key(most.Member)
	}
	w.Begin('[')
	for i := range message.Mails(c) {
		r, start := &c.Recipients[i], len(w)
		m, missing := message.Render(c.Content, &r.Recipient)
		if missing != "" {
			flaws.Lack(r, missing)
		}
		mail := Mail{Call: c, To: r, Rendered: m}
		write(w.Begin('{'), &mail)
		w.End('}')
		switch {
		case mail.Unfit != "":
			flaws.Unfit(r, mail.Unfit)
		case len(w)-start > most.Mail:
			flaws.TooLong(r)
		case i > 0 && len(w) > most.Request:
			parts := most.refuse(c)
			parts[0].Fewer = i
			return nil, parts
		}
	}
	if w.End(']'); most.Member != "" {
		w.End('}')
	}
	return w, flaws.Parts(c, "the message"+larger)
}

// refuse returns the parts of a call whose request is too large.
func (l Limits) refuse(c *models.Call) []models.Part {
	return message.RefuseMany(c,
		fmt.Sprintf("the request would be larger than the %d MB that %s takes", l.Request/1e6, l.Title))
}

// Whole returns the body of a call, or the parts of one that is too large.
func (l Limits) Whole(c *models.Call, body []byte) ([]byte, []models.Part) {
	if len(body) > l.Request {
		return nil, l.refuse(c)
	}
	return body, nil
}

// Common returns what the mails of a call have in common, with a mark in place of each placeholder.
func Common(c *models.Call) message.Filled {
	return message.Fill(c.Content, func(int, message.Var) string { return "-" }, nil)
}

// Own writes subject, text and HTML of a mail under their names, as far as they are not those that all mails have in
// common. Empty ones become a space, because otherwise the common ones would be sent.
func (m *Mail) Own(w *Writer, common *message.Filled, subject, text, html string) {
	for _, field := range [3][3]string{
		{subject, m.Subject, common.Subject}, {text, m.Text, common.Text}, {html, m.HTML, common.HTML},
	} {
		if field[1] != field[2] {
			w.Field(field[0], cmp.Or(field[1], " "))
		}
	}
}

// Mails returns the recipients of each mail of the call, in order.
func (a *Answer) Mails() []models.Set {
	if a.Call.Together() {
		return []models.Set{a.Call.Numbers()}
	}
	out := make([]models.Set, len(a.Call.Recipients))
	for i := range out {
		out[i].Add(a.Call.Recipients[i].Log.Recipient())
	}
	return out
}
