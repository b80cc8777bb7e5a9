package smtp

import (
	"context"
	"fmt"
	"time"

	"github.com/safedelivr/safedelivr/models"
	common "github.com/safedelivr/safedelivr/models/settings"
	"github.com/safedelivr/safedelivr/providers/internal/inspect"
)

var (
	_ inspect.Inspector = (*Adapter)(nil)
	_ models.Composer   = (*Adapter)(nil)
)

// Inspect implements inspect.Inspector. It connects, logs in, and sends nothing.
func (p *Adapter) Inspect(ctx context.Context, _ string) (inspect.Account, error) {
	var a inspect.Account
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	s, err := p.dial(ctx, time.Now().Add(p.timeout))
	if err != nil {
		part := p.failed(connecting, err, models.SetOf(1))
		if part.Class != models.AccountClass {
			return a, fmt.Errorf("the mail server %s cannot be reached: %s", p.address, part.Text)
		}
		a.Add(inspect.Wrong, "account", "cannot log in: "+part.Text,
			"Set user, password or access tokens, and tls as the operator of the server says.")
		return a, nil
	}
	defer s.abort()
	text := "is not encrypted, and stays on this machine"
	if p.tls != common.NoTLS {
		text = "is encrypted, and the certificate is valid"
	}
	a.Add(inspect.OK, "connection", text, "")
	if p.account.Load().user != "" {
		a.Add(inspect.OK, "account", "may log in", "")
	}
	if p.HasMailbox() {
		if err := p.mailbox().Check(ctx); err != nil {
			a.Add(inspect.Wrong, "mailbox", "reports cannot be read: "+p.words(err.Error()),
				"Check the settings that begin with bounce_, and that the mailbox exists.")
		} else {
			a.Add(inspect.OK, "mailbox", "can be read", "")
		}
	}
	return a, nil
}

// Compose implements models.Composer. It returns the mail to the first recipient.
func (p *Adapter) Compose(c *models.Call) (models.Request, []models.Part) {
	mails, refused := p.mails(c)
	if refused != nil {
		return models.Request{}, refused
	}
	return models.Request{
		Method: "SMTP", URL: "smtp://" + p.address, ContentType: "message/rfc822", Body: mails[0].Content,
	}, nil
}
