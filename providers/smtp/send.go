package smtp

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/emersion/go-smtp"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/message"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
)

// Send implements models.Adapter with a transaction for each recipient, one after the other on one connection, or with
// one transaction for a mail to all. It ends with ctx or after the provider's time-out. No transaction begins in the
// second half of that time, which is for its reply.
func (p *Adapter) Send(ctx context.Context, c *models.Call) []models.Part {
	if len(c.Recipients) == 0 {
		return nil
	}
	mails, refused := p.mails(c)
	if refused != nil {
		return refused
	}
	if !c.StartBy.IsZero() && models.Passed(c.StartBy) {
		return []models.Part{{Class: models.Unavailable, Recipients: c.Numbers(), Reason: models.NotComposed,
			Text: "the mail was not ready in time"}}
	}
	began := time.Now()
	end := began.Add(p.timeout)
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	if by, ok := ctx.Deadline(); ok {
		end = models.EarlierOf(end, by)
	}
	last := began.Add(end.Sub(began) / 2)
	var parts []models.Part
	for i := range mails {
		if i > 0 && (ctx.Err() != nil || models.Passed(last)) {
			return append(parts, rest(mails[i:], models.Part{Class: models.RejectedHereClass, Fewer: i,
				Text: "the time of the call was over before this mail"})...)
		}
		part, ok := p.deliver(ctx, last, end, &mails[i])
		if parts = append(parts, part...); !ok { // the next mail would meet the same
			return append(parts, rest(mails[i+1:], part[len(part)-1])...)
		}
	}
	return parts
}

// transaction is one mail to one or more recipients.
type transaction struct {
	from string
	to   []string
	who  models.Set // the recipients, in the order of to
	id   string
	raw  []byte
}

// mails composes the mails of a call, or returns the parts of one that cannot be made.
func (p *Adapter) mails(c *models.Call) (out []transaction, refused []models.Part) {
	if refused := message.Check(c, maxRecipients); refused != nil {
		return nil, refused
	}
	now := time.Now()
	var flaws message.Flaws
	for i := range c.Recipients {
		r := &c.Recipients[i]
		if c.Together() && i > 0 {
			out[0].to = append(out[0].to, r.Email)
			continue
		}
		token := p.token(r.Log, c.Attempt)
		raw, missing, err := compose(c, r, now, token)
		if err != nil {
			return nil, message.Refuse(c.Numbers(), "", "the mail cannot be composed: "+parse.Text(err.Error()))
		}
		if missing != "" {
			flaws.Lack(r, missing)
		}
		out = append(out, transaction{p.returnPath(c.Content.From.Email, token), []string{r.Email}, models.SetOf(r.Log.Recipient()),
			messageID(c, r), raw})
	}
	if c.Together() {
		out[0].who = c.Numbers()
	}
	return out, flaws.Parts(c, "")
}

// rest returns the part of mails that were not tried: their call has no time any more, or the server refused one before
// for a reason that holds for all.
func rest(mails []transaction, because models.Part) []models.Part {
	because.Recipients, because.MessageID = models.Set{}, ""
	for i := range mails {
		because.Recipients = because.Recipients.Or(mails[i].who)
	}
	if because.Class == models.Unknown {
		because.Class, because.Reason, because.Text = models.Unavailable, "", "the connection broke before this mail"
	}
	if because.Recipients.Empty() {
		return nil
	}
	return []models.Part{because}
}

// deliver makes one transaction, which begins by last. ok is false if the server cannot take the next mail of the call
// either. A connection that is ready too late is kept for another call.
func (p *Adapter) deliver(ctx context.Context, last, end time.Time, m *transaction) (parts []models.Part, ok bool) {
	s, err := p.sessions.take(p.account.Load()), error(nil)
	for {
		if s == nil {
			s, err = p.dial(ctx, end)
		} else {
			s.conn.until(end)
		}
		if err != nil {
			return []models.Part{p.failed(connecting, err, m.who)}, false
		}
		if models.Passed(last) {
			p.sessions.keep(s)
			return []models.Part{{Class: models.Unavailable, Recipients: m.who,
				Text: "half of the call's time was over before the server was ready"}}, false
		}
		stop := context.AfterFunc(ctx, func() { _ = s.conn.Conn.Close() })
		w, at, refused, failure := p.envelope(s, m)
		code := replyCode(failure)
		if failure != nil && (code == 0 || code == 421) && s.kept { // the server had closed it, and has nothing of the mail
			stop()
			s.abort()
			s = nil
			continue
		}
		if w != nil {
			part, usable := p.transfer(s, w, m)
			p.end(s, stop() && usable) // this call must not close the connection of another one
			return []models.Part{part}, usable
		}
		if failure != nil {
			refused = []models.Part{p.failed(at, failure, m.who)}
		}
		usable := (failure == nil || code >= 400) && refused[0].Status != 421
		p.end(s, usable && s.Reset() == nil && stop())
		return refused, usable && at != sender
	}
}

// end keeps a connection that can take another mail.
func (p *Adapter) end(s *session, usable bool) {
	if usable {
		p.sessions.keep(s)
	} else {
		s.abort()
	}
}

// replyCode returns the code of the reply that err is; 0: it is none.
func replyCode(err error) int {
	var reply *smtp.SMTPError
	if errors.As(err, &reply) {
		return reply.Code
	}
	return 0
}

// envelope names the sender and the recipients, and begins the content. refused are the parts of a mail to all with a
// recipient that was refused.
func (p *Adapter) envelope(
	s *session, m *transaction,
) (w *smtp.DataCommand, at stage, refused []models.Part, err error) {
	options := &smtp.MailOptions{Size: int64(len(m.raw)), Return: smtp.DSNReturnHeaders, EnvelopeID: m.id}
	if err := s.Mail(m.from, options); err != nil {
		return nil, sender, nil, err
	}
	notify := &smtp.RcptOptions{Notify: []smtp.DSNNotify{smtp.DSNNotifyFailure, smtp.DSNNotifyDelayed}}
	numbers := slices.Collect(m.who.All())
	for i, to := range m.to {
		err := s.Rcpt(to, notify)
		if len(m.to) > 1 && replyCode(err) >= 400 {
			return nil, recipient, message.Without(m.who, p.failed(recipient, err, models.SetOf(numbers[i]))), nil
		} else if err != nil {
			return nil, recipient, nil, err
		}
	}
	w, err = s.Data()
	return w, content, nil, err
}

// transfer sends the content. usable reports whether the connection can take another mail.
func (p *Adapter) transfer(s *session, w *smtp.DataCommand, m *transaction) (part models.Part, usable bool) {
	_, err := w.Write(m.raw)
	if err != nil {
		return p.failed(content, err, m.who), false
	}
	text := ""
	if p.lmtp {
		var all map[string]*smtp.DataResponse
		var refused smtp.LMTPDataError
		if all, err = w.CloseWithLMTPResponse(); errors.As(err, &refused) && refused[m.to[0]] != nil {
			err = refused[m.to[0]]
		}
		if r := all[m.to[0]]; r != nil {
			text, err = r.StatusText, nil
		}
	} else {
		var r *smtp.DataResponse
		if r, err = w.CloseWithResponse(); r != nil {
			text = r.StatusText
		}
	}
	switch code := replyCode(err) / 100; {
	case err == nil, code == 2: // only the first digit counts (RFC 5321, 4.2)
		return models.Part{Class: models.Accepted, Recipients: m.who, Status: 250, MessageID: m.id,
			Text: p.words(text)}, true
	case (code == 4 || code == 5) && p.lmtp: // it is about the recipient
		return p.failed(recipient, err, m.who), true
	case code == 4 || code == 5:
		return p.failed(content, err, m.who), true
	case s.conn.cut():
		return p.failed(content, err, m.who), false
	}
	return models.Part{Class: models.Unknown, Recipients: m.who,
		Text: "the mail was sent, and no answer came: " + p.words(err.Error())}, false
}
