package main

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/resend/resend-go/v3"
)

type resendSDK struct{ *resend.Client }

func newResend(key string) sdk { return resendSDK{resend.NewClient(key)} }

// send sends a mail twice with the same key, and reads it back.
func (c resendSDK) send(l *letter) (string, error) {
	r := &resend.SendEmailRequest{
		From: l.sender(), To: l.To, Cc: l.CC, Bcc: l.BCC, Subject: l.Subject, ReplyTo: l.ReplyTo,
		Text: l.Text, Html: l.HTML, Headers: l.headers(),
	}
	if l.At != nil {
		r.ScheduledAt = l.At.Format(time.RFC3339)
	}
	for _, f := range l.Files {
		r.Attachments = append(r.Attachments, &resend.Attachment{
			Filename: f.Name, ContentType: f.kind(), ContentId: f.ContentID, Content: f.Content,
		})
	}
	options := &resend.SendEmailOptions{IdempotencyKey: "key-" + l.To[0]}
	first, err := c.Emails.SendWithOptions(context.Background(), r, options)
	if err != nil {
		return "", err
	}
	again, err := c.Emails.SendWithOptions(context.Background(), r, options)
	if err != nil {
		return "", err
	}
	if again.Id != first.Id {
		return "", errors.New("it is sent twice")
	}
	mail, err := c.Emails.Get(first.Id)
	if err != nil {
		return "", err
	}
	return mail.Subject, nil
}

// many sends a hundred mails a call. A further call has a mail that is refused.
func (c resendSDK) many(people []person) error {
	n := 0
	for part := range slices.Chunk(people, 100) {
		var mails []*resend.SendEmailRequest
		for _, p := range part {
			mails = append(mails, &resend.SendEmailRequest{
				From: "shop@demo.test", To: []string{p.address}, Subject: "many", Text: "Hi " + p.value,
			})
		}
		sent, err := c.Batch.Send(mails)
		if err != nil {
			return err
		}
		n += len(sent.Data)
	}
	list, err := c.Emails.List()
	if err == nil && (n != 1000 || len(list.Data) == 0 || !list.HasMore) {
		err = errors.New("mails are missing")
	}
	wrong := []*resend.SendEmailRequest{{From: "shop@demo.test", To: []string{"unknown"}, Subject: "wrong", Text: "t"}}
	some, wrongErr := c.Batch.SendWithOptions(context.Background(), wrong, &resend.BatchSendEmailOptions{
		BatchValidation: resend.BatchValidationPermissive,
	})
	if wrongErr == nil && len(some.Errors) != 1 {
		wrongErr = errors.New("a wrong mail is not reported")
	}
	return errors.Join(err, wrongErr)
}
