package mail

import (
	"cmp"
	"context"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Mail is the message to one recipient, with its placeholders filled in.
type Mail struct {
	From, To            models.Address
	CC, BCC             []models.Address // BCC is the recipient, if the others do not see it
	ReplyTo             []models.Address
	Headers             []models.Header
	Subject, Text, HTML string
	Removed             bool // the content was removed by retention
	Attachments         []models.Attachment
	Requests            []MailRequest // without the attachments
}

// MailRequest is the request to a provider with this message and no other.
type MailRequest struct {
	Provider string
	models.Request
	Refused string // why the provider's adapter makes none, or ""
}

// Mail returns the message to the recipient of a log.
func (s *Reader) Mail(ctx context.Context, who caller.Caller, id string) (Mail, error) {
	log, err := models.ParseLogID(id)
	if err != nil {
		return Mail{}, problem.NotYours("log")
	}
	c, err := s.Stories(ctx, who, log)
	if err != nil {
		return Mail{}, err
	}
	return c.mail(log, s)
}

func (c *Stories) mail(log models.ID, s *Reader) (Mail, error) {
	n := log.Recipient()
	if n > len(c.recipients) {
		return Mail{}, problem.NotYours("log")
	}
	r, content := c.batch.Values(n, c.recipients), c.batch.Content
	m := Mail{
		From:    content.From,
		ReplyTo: content.ReplyTo,
		To:      models.Address{Email: r.Email, Name: r.Name},
		Subject: r.Fill(content.Subject, nil),
		Text:    r.Fill(content.Text, nil),
		HTML:    r.Fill(content.HTML, models.EscapeHTML),
		Removed: c.batch.Redacted || r.Erased() || c.recipients[n-1].Erased(),

		Attachments: content.Attachments,
	}
	content.Attachments = nil // requests are shown without them
	for _, h := range content.HeadersOf(r) {
		m.Headers = append(m.Headers, models.Header{Name: h.Name, Value: r.Fill(h.Value, nil)})
	}
	if m.Removed {
		return m, nil
	}
	m.CC, m.BCC = c.batch.Copies(n, c.recipients)
	attempts := map[string]int{}
	c.view.EachTry(n, func(t *models.Try) { attempts[t.Provider] = t.Attempt })
	allowed := c.batch.Providers
	for i := range s.Providers {
		if len(c.batch.Providers) == 0 {
			allowed = append(allowed, s.Providers[i].Name)
		}
	}
	for _, name := range allowed {
		composer := s.Composers[name]
		if composer == nil {
			continue
		}
		who, together := c.callOf(n, attempts[name])
		call := models.Call{
			Batch:      c.batch.ID,
			Attempt:    cmp.Or(attempts[name], c.view.NextNumber()),
			Content:    &content,
			Recipients: c.batch.CallRecipients(log.ChunkID(), who, c.recipients, together),
		}
		request, refused := composer.Compose(&call)
		shown := MailRequest{Provider: name, Request: request}
		if len(refused) > 0 {
			shown.Refused = refused[0].Text
		}
		m.Requests = append(m.Requests, shown)
	}
	return m, nil
}

// callOf returns the recipients of the mail to recipient n in an attempt, and whether it is one mail
// to all of them; attempt 0: in the next one.
func (c *Stories) callOf(n, attempt int) (who models.Set, together bool) {
	gone := models.ErasedRecipients(c.recipients)
	switch entry := c.view.Entry(attempt); {
	case entry.Together:
		return entry.Recipients.Minus(gone), true
	case c.batch.Envelope != nil && attempt == 0 && !c.view.Taken():
		return models.SetTo(len(c.recipients)).Minus(gone), true
	}
	return models.SetOf(n), false
}
