package mailgun

import (
	sdk "github.com/mailgun/mailgun-go/v4"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/message"
)

// composeTogether returns the message of a call with one mail to all recipients, or the parts of a
// call that cannot be made. It has no variables of recipients, so that Mailgun sends one mail, and
// the values of the recipient in To are filled in here. The events come back with the log of that
// recipient, and with the address that they are about.
func composeTogether(c *models.Call) (*sdk.Message, []models.Part) {
	all, to := c.Numbers(), &c.Recipients[0]
	lacks, replaced := "", false
	f := message.Fill(c.Content, func(_ int, v message.Var) string {
		value, ok := v.Value(&to.Recipient)
		if !ok {
			lacks = v.Name
		}
		return value
	}, nil)
	m := sdk.NewMessage(address(c.Content.From), f.Subject, f.Text)
	if f.HTML != "" {
		f.HTML = literal(message.HTMLForm, f.HTML, nil)
		m.SetHTML(f.HTML)
	}
	headers := c.Content.HeadersOf(&to.Recipient)
	refused := setOptions(m, c, to.Log.String(), headers, func(i int) string {
		value, missing := message.Header(&headers[i], &to.Recipient)
		if missing != "" {
			lacks = missing
		}
		replaced = replaced || theirs.MatchString(value)
		return value
	})
	for i := range c.Recipients {
		r := &c.Recipients[i]
		switch named := recipient(&r.Recipient); r.Role {
		case models.CC:
			m.AddCC(named)
		case models.BCC:
			m.AddBCC(named)
		case models.To:
			_ = m.AddRecipient(named) // it fails only for too many
		}
	}
	content := len(f.Subject) + len(f.Text) + len(f.HTML) + int(c.Content.AttachmentSize())
	switch {
	case refused != nil:
		return nil, refused
	case lacks != "":
		return nil, message.Together(c, message.Missing(all, models.SetOf(to.Log.Recipient()), lacks))
	case content > maxMessage:
		return nil, message.Refuse(all, models.TooLarge, "the message is larger than the 25 MB that Mailgun takes")
	case replaced || theirs.MatchString(f.Subject) || theirs.MatchString(f.Text):
		return nil, message.Refuse(all, "",
			"the text has a variable of Mailgun's, and a message with cc or bcc cannot protect it")
	}
	return m, nil
}
