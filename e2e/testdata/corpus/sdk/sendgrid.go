package main

import (
	"encoding/base64"
	"errors"
	"net/http"
	"os"

	"github.com/sendgrid/sendgrid-go"
	"github.com/sendgrid/sendgrid-go/helpers/mail"
)

type sendgridSDK struct{ key string }

func newSendGrid(key string) sdk { return sendgridSDK{key} }

func (c sendgridSDK) do(m *mail.SGMailV3) (string, error) {
	request := sendgrid.GetRequest(c.key, "/v3/mail/send", os.Getenv("URL"))
	request.Method, request.Body = http.MethodPost, mail.GetRequestBody(m)
	answer, err := sendgrid.API(request)
	if err == nil && answer.StatusCode != http.StatusAccepted {
		err = errors.New(http.StatusText(answer.StatusCode) + " " + answer.Body)
	}
	if err != nil {
		return "", err
	}
	return answer.Headers["X-Message-Id"][0], nil
}

func emails(addresses []string) (list []*mail.Email) {
	for _, address := range addresses {
		list = append(list, mail.NewEmail("", address))
	}
	return list
}

func (c sendgridSDK) send(l *letter) (string, error) {
	m := mail.NewV3Mail().SetFrom(mail.NewEmail(l.Name, l.From))
	m.Subject = l.Subject
	for _, content := range [][2]string{{"text/plain", l.Text}, {"text/html", l.HTML}} {
		if content[1] != "" {
			m.AddContent(mail.NewContent(content[0], content[1]))
		}
	}
	if l.ReplyTo != "" {
		m.SetReplyTo(mail.NewEmail("", l.ReplyTo))
	}
	for name, value := range l.headers() {
		m.SetHeader(name, value)
	}
	if l.At != nil {
		m.SetSendAt(int(l.At.Unix()))
	}
	for _, f := range l.Files {
		a := mail.NewAttachment().SetFilename(f.Name).SetType(f.kind()).SetDisposition("attachment")
		a.SetContent(base64.StdEncoding.EncodeToString(f.Content))
		if f.ContentID != "" {
			a.SetDisposition("inline").SetContentID(f.ContentID)
		}
		m.AddAttachment(a)
	}
	p := mail.NewPersonalization()
	p.AddTos(emails(l.To)...)
	p.AddCCs(emails(l.CC)...)
	p.AddBCCs(emails(l.BCC)...)
	return c.do(m.AddPersonalizations(p))
}

func (c sendgridSDK) many(people []person) error {
	m := mail.NewV3Mail().SetFrom(mail.NewEmail("", "shop@demo.test"))
	m.Subject = "many"
	m.AddContent(mail.NewContent("text/plain", "Hi -value-"))
	for _, person := range people {
		p := mail.NewPersonalization()
		p.AddTos(mail.NewEmail("", person.address))
		p.SetSubstitution("-value-", person.value)
		m.AddPersonalizations(p)
	}
	_, err := c.do(m)
	return err
}
