// Command resendgo sends the corpus with the Resend SDK for Go, and reads back what it can. It prints a line for each case.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"maps"
	"os"
	"time"

	"github.com/resend/resend-go/v3"
)

type letter struct {
	Subject, Name, From, Text, HTML string
	To, CC, BCC                     []string
	ReplyTo                         string `json:"reply_to"`
	MessageID                       string `json:"message_id"`
	Headers                         map[string]string
	Files                           []struct {
		Name, Type string
		Params     map[string]string
		ContentID  string `json:"content_id"`
		Content    []byte
	}
	At *time.Time
}

func (l *letter) request() *resend.SendEmailRequest {
	r := &resend.SendEmailRequest{
		From: l.Name + " <" + l.From + ">", To: l.To, Cc: l.CC, Bcc: l.BCC, Subject: l.Subject, ReplyTo: l.ReplyTo,
		Text: l.Text, Html: l.HTML, Headers: maps.Clone(l.Headers),
	}
	if l.MessageID != "" {
		r.Headers["Message-ID"] = l.MessageID
	}
	if l.At != nil {
		r.ScheduledAt = l.At.Format(time.RFC3339)
	}
	for _, f := range l.Files {
		kind := f.Type
		for name, value := range f.Params {
			kind += "; " + name + "=" + value
		}
		r.Attachments = append(r.Attachments, &resend.Attachment{
			Filename: f.Name, ContentType: kind, ContentId: f.ContentID, Content: f.Content,
		})
	}
	return r
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func main() {
	client := resend.NewClient(os.Getenv("KEY"))
	ctx := context.Background()
	var letters []letter
	if err := json.Unmarshal(must(os.ReadFile("../corpus.json")), &letters); err != nil {
		log.Fatal(err)
	}
	for i, l := range letters {
		options := &resend.SendEmailOptions{IdempotencyKey: fmt.Sprint("key-", i)}
		first := must(client.Emails.SendWithOptions(ctx, l.request(), options))
		again := must(client.Emails.SendWithOptions(ctx, l.request(), options))
		fmt.Println("sent", first.Id == again.Id, must(client.Emails.Get(first.Id)).Subject)
	}
	for part := range 10 {
		var mails []*resend.SendEmailRequest
		for i := range 100 {
			l := letter{From: "shop@demo.test", Subject: "many", Text: fmt.Sprintf("Hi P<%d>", 100*part+i)}
			l.To = []string{fmt.Sprintf("many%d@demo.test", 100*part+i)}
			mails = append(mails, l.request())
		}
		fmt.Println("many", len(must(client.Batch.Send(mails)).Data))
	}
	wrong := &resend.SendEmailRequest{From: "shop@demo.test", To: []string{"unknown"}, Subject: "wrong", Text: "t"}
	_, err := client.Emails.Send(wrong)
	fmt.Println("wrong", err)
	part := []*resend.SendEmailRequest{wrong, {From: "shop@demo.test", To: []string{"a@demo.test"}, Subject: "part", Text: "t"}}
	some := must(client.Batch.SendWithOptions(ctx, part, &resend.BatchSendEmailOptions{
		BatchValidation: resend.BatchValidationPermissive,
	}))
	fmt.Println("part", len(some.Data), some.Errors[0].Index)
	list := must(client.Emails.List())
	fmt.Println("list", len(list.Data), list.HasMore)
	_, err = resend.NewClient("wrong").Emails.Send(wrong)
	fmt.Println("refused", err)
}
