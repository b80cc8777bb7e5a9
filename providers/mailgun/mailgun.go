// Package mailgun is the adapter for Mailgun: Messages v3 and its webhooks.
//
// It uses mailgun-go v4 for messages, with an HTTP client of its own that keeps
// status and headers: the SDK's errors have no headers, and lose the status
// where an answer cannot be read. Webhooks are read with types of our own: the
// SDK gives up an event for one odd field, and verifies with an empty key.
package mailgun

import (
	"errors"
	"strings"
	"time"

	sdk "github.com/mailgun/mailgun-go/v4"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/settings"
	"github.com/safedelivr/safedelivr/providers/internal/transport"
)

// What Mailgun allows (Messages API, "Sending").
const (
	maxRecipients = sdk.MaxNumberOfRecipients
	maxMessage    = 25_000_000 // bytes of a message
	maxRequest    = 52_400_000 // bytes of a request (documented: 52.4 MiB)
	maxOptions    = 16_000     // bytes of all o:, h: and v: parameters together
)

const (
	defaultBase = "https://api.mailgun.net"
	version     = "/v3" // the SDK wants it in the base URL
)

// The names of our ids: as recipient variable and as v: parameter, so that they
// come back in the user-variables of every event. Recipients can see them in the
// header X-Mailgun-Variables; they tell nothing.
const (
	logKey     = "sd_log"
	attemptKey = "sd_attempt"
)

// A Adapter is one provider at Mailgun, for one domain.
type Adapter struct {
	key     string
	timeout time.Duration
	client  *transport.Client
	api     *sdk.MailgunImpl
	webhook []byte // empty: the provider gets no webhooks
}

var _ models.Adapter = (*Adapter)(nil)

// Check reports all mistakes in the settings, in words and without secrets.
func Check(s settings.Settings) []error {
	errs := s.Check()
	switch {
	case s.Domain == "":
		errs = append(errs, errors.New("domain is missing: Mailgun sends for one domain"))
	case !validDomain(s.Domain):
		// A slash in it is answered with 200 and nothing is sent.
		errs = append(errs, errors.New("domain: want a name like mg.example.com, of letters, digits, '-' and '.'"))
	}
	if s.WebhookKey != "" && strings.TrimSpace(s.WebhookKey) != s.WebhookKey {
		errs = append(errs, errors.New("webhook key begins or ends with white space"))
	}
	return errs
}

func validDomain(s string) bool {
	if len(s) > 253 || !strings.Contains(s, ".") || strings.Contains(s, "..") || strings.Trim(s, ".-") != s {
		return false
	}
	for i := 0; i < len(s); i++ {
		if c := s[i]; !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '.') {
			return false
		}
	}
	return true
}

// New returns the adapter for a provider.
func New(s settings.Settings) (*Adapter, error) {
	if err := errors.Join(Check(s)...); err != nil {
		return nil, err
	}
	s = s.WithDefaults()
	base := defaultBase
	if s.BaseURL != "" {
		base, _ = settings.Base(s.BaseURL)
	}
	p := &Adapter{key: s.APIKey, timeout: s.Timeout, client: transport.NewClient(s.MaxConns), webhook: []byte(s.WebhookKey)}
	p.api = sdk.NewMailgun(s.Domain, s.APIKey)
	p.api.SetAPIBase(base + version)
	p.api.SetClient(p.client.HTTP)
	return p, nil
}

// MaxRecipients implements models.Adapter.
func (p *Adapter) MaxRecipients() int { return maxRecipients }

// Close implements models.Adapter.
func (p *Adapter) Close() { p.client.Close() }
