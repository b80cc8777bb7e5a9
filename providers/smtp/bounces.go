package smtp

import (
	"net/mail"
	"strconv"
	"strings"

	common "github.com/safedelivr/safedelivr/models/settings"
	"github.com/safedelivr/safedelivr/providers/internal/mailbox"
	"github.com/safedelivr/safedelivr/providers/internal/settings"
)

// minKey is how long the key of tokens is at least. The recipient of a mail could try all shorter ones.
const minKey = 20

// checkBounces returns the mistakes in the settings of the mailbox with reports.
func checkBounces(s *settings.Settings) (errs []error) {
	b := s.Bounces
	if b == (common.Bounces{}) {
		return nil
	}
	wrong := func(setting, text string) { errs = append(errs, settings.Mistake{Setting: setting, Text: text}) }
	name, domain, _ := strings.Cut(b.BounceAddress, "@")
	parsed, err := mail.ParseAddress(b.BounceAddress)
	switch {
	case b.BounceAddress == "":
		wrong("bounce_address", "required if a mailbox for reports is set: its address, like bounces@example.com")
	case err != nil || parsed.Address != b.BounceAddress || !settings.ValidDomain(domain) || strings.Contains(name, `"`):
		wrong("bounce_address", "must be an address like bounces@example.com")
	case len(name) > maxBounceName:
		wrong("bounce_address", "must have at most "+strconv.Itoa(maxBounceName)+
			" characters before the @: each mail gets a longer address made from it")
	}
	if len(s.WebhookKey) < minKey || s.WebhookKeyOld != "" && len(s.WebhookKeyOld) < minKey {
		wrong("webhook_key", "must be a secret of at least "+strconv.Itoa(minKey)+" characters: it signs reports")
	}
	return append(errs, mailbox.Check(s)...)
}

// mailbox returns the mailbox with reports.
func (p *Adapter) mailbox() mailbox.Mailbox {
	a := p.account.Load()
	return mailbox.New(&p.bounces, a.mailbox, a.tokens, p.roots)
}
