package smtp

import (
	"cmp"
	"crypto/tls"
	"net"
	"net/mail"
	"path/filepath"
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
	switch mode := cmp.Or(b.BounceTLS, common.TLS); {
	case (b.BounceMaildir == "") == (b.BounceHost == ""):
		wrong("bounce_maildir", "set either this or bounce_imap_host: where the reports are read")
	case b.BounceMaildir != "" && !filepath.IsAbs(b.BounceMaildir):
		wrong("bounce_maildir", "must be an absolute path")
	case b.BounceHost == "":
	case net.ParseIP(b.BounceHost) == nil && !settings.ValidDomain("a."+b.BounceHost):
		wrong("bounce_imap_host", "must be a name or an address without a port, like imap.example.com")
	case imapPorts[mode] == 0:
		wrong("bounce_imap_tls", "must be none, starttls or tls")
	case mode == common.NoTLS && !local(b.BounceHost):
		wrong("bounce_imap_tls", "none is only for a server on this machine: the password would be readable on the way")
	case b.BounceUser == "" || b.BouncePassword == "":
		wrong("bounce_imap_user", "user and password are required")
	}
	return errs
}

// imapPorts are the usual ports of IMAP.
var imapPorts = map[string]int{common.TLS: 993, common.StartTLS: 143, common.NoTLS: 143}

// mailbox returns the mailbox with reports.
func (p *Adapter) mailbox() mailbox.Mailbox {
	b := &p.bounces
	if b.BounceMaildir != "" {
		return mailbox.Maildir(b.BounceMaildir)
	}
	mode := cmp.Or(b.BounceTLS, common.TLS)
	return &mailbox.IMAP{
		Address:  net.JoinHostPort(b.BounceHost, strconv.Itoa(cmp.Or(b.BouncePort, imapPorts[mode]))),
		Security: mode,
		TLS:      &tls.Config{ServerName: b.BounceHost, RootCAs: p.roots, MinVersion: tls.VersionTLS12},
		User:     b.BounceUser,
		Password: p.account.Load().mailbox,
	}
}
