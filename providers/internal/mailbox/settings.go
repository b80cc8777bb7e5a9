package mailbox

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"net"
	"path/filepath"
	"strconv"

	common "github.com/safedelivr/safedelivr/models/settings"
	"github.com/safedelivr/safedelivr/providers/internal/oauth"
	"github.com/safedelivr/safedelivr/providers/internal/settings"
)

// imapPorts are the usual ports of IMAP.
var imapPorts = map[string]int{common.TLS: 993, common.StartTLS: 143, common.NoTLS: 143}

// Check returns the mistakes in the settings of where a mailbox is.
func Check(s *settings.Settings) (errs []error) {
	b := &s.Bounces
	wrong := func(setting, text string) { errs = append(errs, settings.Mistake{Setting: setting, Text: text}) }
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
	case mode == common.NoTLS && !settings.Loopback(b.BounceHost):
		wrong("bounce_imap_tls", "none is only for a server on this machine: the password would be readable on the way")
	case b.BounceUser == "" || b.BouncePassword == "" && s.TokenURL == "":
		wrong("bounce_imap_user", "user and password are required")
	}
	return errs
}

// New returns the mailbox of settings that Check has accepted. Without a password an IMAP server gets access tokens. A
// nil roots stands for those of the system.
func New(b *common.Bounces, password string, tokens *oauth.Source, roots *x509.CertPool) Mailbox {
	if b.BounceMaildir != "" {
		return Maildir(b.BounceMaildir)
	}
	if password != "" {
		tokens = nil
	}
	mode := cmp.Or(b.BounceTLS, common.TLS)
	return &IMAP{
		Address:  net.JoinHostPort(b.BounceHost, strconv.Itoa(cmp.Or(b.BouncePort, imapPorts[mode]))),
		Security: mode,
		TLS:      &tls.Config{ServerName: b.BounceHost, RootCAs: roots, MinVersion: tls.VersionTLS12},
		User:     b.BounceUser,
		Password: password,
		Tokens:   tokens,
	}
}
