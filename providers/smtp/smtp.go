// Package smtp is the adapter for any server that takes mail by SMTP, and for a local one that takes it by LMTP.
//
// A mail is composed in memory with go-mail, and sent with package esmtp, one transaction for each recipient. So each
// answer is about one recipient, and its outcome is unknown only between the final dot and the reply to it.
package smtp

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/safedelivr/safedelivr/models"
	common "github.com/safedelivr/safedelivr/models/settings"
	"github.com/safedelivr/safedelivr/providers/internal/oauth"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
	"github.com/safedelivr/safedelivr/providers/internal/settings"
)

// maxRecipients is how many transactions a call has at most. One takes two round trips, or four without PIPELINING. So
// a call ends well before its time-out at a server that is far away.
const maxRecipients = 50

// An Adapter is one provider of the kind SMTP or LMTP. It implements models.Adapter.
type Adapter struct {
	name     string
	lmtp     bool
	address  string // host:port, or the path of a socket
	host     string
	tls      string
	roots    *x509.CertPool // nil: those of the system
	hello    string
	timeout  time.Duration
	connect  func(ctx context.Context, network, address string) (net.Conn, error)
	bounces  common.Bounces // without its password
	account  atomic.Pointer[account]
	sessions pool
}

// account is replaced as a whole while the adapter is in use.
type account struct {
	user, password, before string
	tokens, tokensBefore   *oauth.Source // access tokens in place of passwords; nil: none
	keys                   [2]string     // of the tokens in reports; the first makes new ones
	mailbox                string        // password of the mailbox with reports
}

var _ models.Adapter = (*Adapter)(nil)

// ports are the usual ports of submission (RFC 8314, RFC 6409) and of a relay without encryption.
var ports = map[string]int{common.TLS: 465, common.StartTLS: 587, common.NoTLS: 25}

// Check returns all mistakes in the settings. Their texts have no secrets.
func Check(s settings.Settings) []error {
	if s.Events == "" {
		s.Events = models.EventsNone
	}
	errs := s.CheckCommon()
	wrong := func(setting, text string) { errs = append(errs, settings.Mistake{Setting: setting, Text: text}) }
	mode, socket := security(&s), strings.HasPrefix(s.Host, "/")
	switch {
	case s.Host == "":
		wrong("host", "required: the name of the server, like smtp.example.com")
	case socket && s.Kind != "lmtp":
		wrong("host", "only LMTP uses a socket of this machine")
	case !socket && net.ParseIP(s.Host) == nil && !settings.ValidDomain("a."+s.Host): // a name may have no dot
		wrong("host", "must be a name or an address without a port, like smtp.example.com")
	}
	switch {
	case s.Port < 0 || s.Port > 65535:
		wrong("port", "must be between 1 and 65535")
	case s.Kind == "lmtp" && s.Port == 0 && !socket:
		wrong("port", "required: LMTP has no usual port; 24 is common")
	}
	switch {
	case ports[mode] == 0:
		wrong("tls", "must be none, starttls or tls")
	case mode == common.StartTLS && s.Kind == "lmtp":
		wrong("tls", "must be tls, or none on this machine: STARTTLS is only for SMTP")
	case mode == common.NoTLS && !local(s.Host):
		wrong("tls", "none is only for a server on this machine: passwords and mail would be readable on the way")
	}
	if s.OAuth == (common.OAuth{}) && (s.User == "") != (s.Password == "") {
		wrong("user", "user and password belong together")
	}
	errs = append(errs, oauth.Check(&s)...)
	if s.Events == models.EventsWebhook {
		wrong("events", "must be none: a server that takes mail by SMTP reports no events to a URL")
	}
	return append(errs, checkBounces(&s)...)
}

// security returns how connections are encrypted: as the settings say, or as is usual.
func security(s *settings.Settings) string {
	switch {
	case s.TLS != "":
		return s.TLS
	case s.Port == 465:
		return common.TLS
	case s.Kind == "lmtp" || local(s.Host):
		return common.NoTLS
	}
	return common.StartTLS
}

// local reports whether a host is this machine.
func local(host string) bool {
	return strings.HasPrefix(host, "/") || settings.Loopback(host)
}

// New returns the adapter for a provider. The error names all mistakes in its settings.
func New(s settings.Settings) (*Adapter, error) {
	s.Events = models.EventsNone
	if err := errors.Join(Check(s)...); err != nil {
		return nil, err
	}
	s = s.WithDefaults()
	p := &Adapter{name: s.Name, bounces: s.Bounces, lmtp: s.Kind == "lmtp", host: s.Host, address: s.Host, tls: security(&s), timeout: s.Timeout,
		hello: cmp.Or(s.Domain, "localhost"), sessions: make(pool, s.MaxConns),
		connect: (&net.Dialer{Timeout: 10 * time.Second}).DialContext}
	if !strings.HasPrefix(s.Host, "/") {
		p.address = net.JoinHostPort(s.Host, strconv.Itoa(cmp.Or(s.Port, ports[p.tls])))
	}
	p.SetKeys(s)
	return p, nil
}

// SetKeys replaces the user, the passwords and the keys of tokens by those of settings that Check has accepted. Calls in
// flight keep theirs.
func (p *Adapter) SetKeys(s settings.Settings) {
	a := &account{user: s.User, password: s.Password, keys: [2]string{s.WebhookKey, s.WebhookKeyOld},
		mailbox: s.BouncePassword}
	if old := p.account.Load(); old != nil {
		a.before, a.tokensBefore = old.password, old.tokens
	}
	a.tokens = a.tokensBefore.With(&s.OAuth)
	p.account.Store(a)
	p.sessions.close() // those of the old account
}

// Carries returns what every provider of this kind carries. Each recipient has a mail of its own, which is composed here.
func Carries() models.Capabilities {
	return models.Capabilities{
		Attachments: true,
		Inline:      true,
		InlineNames: true,
		Copies:      true,
		MessageID:   true,
		Names:       true,
		NameMarks:   true,
		Variables:   true,
		Headers:     true,
		HeaderNames: true,
	}
}

// CarriesLMTP returns what a provider by LMTP carries: it answers for each recipient of a mail, so that some may have it
// and others not.
func CarriesLMTP() models.Capabilities {
	c := Carries()
	c.Copies = false
	return c
}

// MaxRecipients implements models.Adapter.
func (p *Adapter) MaxRecipients() int { return maxRecipients }

// MaxWebhook implements models.Adapter. There are none.
func (p *Adapter) MaxWebhook() int64 { return 1 }

// WebhookMethods implements models.Adapter.
func (p *Adapter) WebhookMethods() []string { return nil }

// RepeatStatus implements models.Adapter.
func (p *Adapter) RepeatStatus() int { return 0 }

// VerifyHeader implements models.Adapter.
func (p *Adapter) VerifyHeader(*models.Webhook) error { return errNoWebhooks }

// Verify implements models.Adapter.
func (p *Adapter) Verify(context.Context, *models.Webhook) (models.Verified, error) {
	return models.Verified{}, errNoWebhooks
}

// Close implements models.Adapter.
func (p *Adapter) Close() { p.sessions.close() }

var errNoWebhooks = &models.WebhookError{
	Status: http.StatusNotFound, Code: "not_configured", Detail: "a server that takes mail by SMTP has no webhooks",
}

// words returns a text of the server for storing: without addresses and without the password or access token. A server
// that does not know a command may repeat it, so that words removes them as they were sent, too.
func (p *Adapter) words(text string) string {
	a, encode := p.account.Load(), base64.StdEncoding.EncodeToString
	secrets := []string{a.password, a.before, a.mailbox}
	if a.password != "" {
		secrets = append(secrets, encode([]byte("\x00"+a.user+"\x00"+a.password)), encode([]byte(a.password)))
	}
	for _, tokens := range []*oauth.Source{a.tokens, a.tokensBefore} {
		secrets = append(secrets, tokens.Written(a.user, p.bounces.BounceUser)...)
	}
	return parse.Text(text, secrets...)
}
