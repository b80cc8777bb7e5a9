package smtp

import (
	"context"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/esmtp"
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
	esmtp.Mail
	who models.Set // the recipients, in the order of To
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
			out[0].To = append(out[0].To, r.Email)
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
		out = append(out, transaction{esmtp.Mail{From: p.returnPath(c.Content.From.Email, token), To: []string{r.Email},
			ID: messageID(c, r), Content: raw}, models.SetOf(r.Log.Recipient())})
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
		stop := context.AfterFunc(ctx, s.abort)
		usable, i, failure := s.Begin(&m.Mail)
		if failure == nil {
			part, usable := p.transfer(s, m)
			p.end(s, stop() && usable) // this call must not close the connection of another one
			return []models.Part{part}, usable
		}
		at, code := recipient, esmtp.Code(failure)
		switch i {
		case 0:
			at = sender
		case len(m.To) + 1:
			at = content
		}
		some := at == recipient && len(m.To) > 1 && code >= 400 // one of several is refused
		if s.kept && (code == 0 || code == 421 && !some) {      // the server had closed it, and has nothing of the mail
			stop()
			s.abort()
			s = nil
			continue
		}
		p.end(s, usable && s.Reset() == nil && stop())
		parts = []models.Part{p.failed(at, failure, m.who)}
		if some {
			number := slices.Collect(m.who.All())[i-1]
			parts = message.Without(m.who, p.failed(at, failure, models.SetOf(number)))
		}
		return parts, code >= 400 && code != 421 && at != sender
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

// transfer sends the content. usable reports whether the connection can take another mail.
func (p *Adapter) transfer(s *session, m *transaction) (part models.Part, usable bool) {
	text, dot, err := s.End(&m.Mail)
	switch code := esmtp.Code(err) / 100; {
	case err == nil:
		return models.Part{Class: models.Accepted, Recipients: m.who, Status: 250, MessageID: m.ID,
			Text: p.words(text)}, true
	case (code == 4 || code == 5) && p.lmtp: // it is about the recipient
		return p.failed(recipient, err, m.who), true
	case code == 4 || code == 5:
		return p.failed(content, err, m.who), true
	case !dot, s.conn.cut():
		return p.failed(content, err, m.who), false
	}
	return models.Part{Class: models.Unknown, Recipients: m.who,
		Text: "the mail was sent, and no answer came: " + p.words(err.Error())}, false
}
