package main

import (
	"context"
	"os"

	"github.com/mailgun/mailgun-go/v4"
)

type mailgunSDK struct{ *mailgun.MailgunImpl }

func newMailgun(key string) sdk {
	c := mailgun.NewMailgun("demo.test", key)
	c.SetAPIBase(os.Getenv("URL") + "/v3")
	return mailgunSDK{c}
}

func (c mailgunSDK) send(l *letter) (string, error) {
	m := mailgun.NewMessage(l.sender(), l.Subject, l.Text, l.To...)
	for _, address := range l.CC {
		m.AddCC(address)
	}
	for _, address := range l.BCC {
		m.AddBCC(address)
	}
	if l.HTML != "" {
		m.SetHtml(l.HTML)
	}
	if l.ReplyTo != "" {
		m.SetReplyTo(l.ReplyTo)
	}
	for name, value := range l.headers() {
		m.AddHeader(name, value)
	}
	if l.At != nil {
		m.SetDeliveryTime(*l.At)
	}
	for _, f := range l.Files {
		if f.ContentID == "" {
			m.AddBufferAttachment(f.Name, f.Content)
			continue
		}
		if err := os.WriteFile(f.ContentID, f.Content, 0o600); err != nil {
			return "", err
		}
		m.AddInline(f.ContentID)
	}
	_, id, err := c.Send(context.Background(), m)
	return id, err
}

func (c mailgunSDK) many(people []person) error {
	m := mailgun.NewMessage("shop@demo.test", "many", "Hi %recipient.value%")
	for _, p := range people {
		if err := m.AddRecipientAndVariables(p.address, map[string]any{"value": p.value}); err != nil {
			return err
		}
	}
	_, _, err := c.Send(context.Background(), m)
	return err
}
