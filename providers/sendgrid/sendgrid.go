// Package sendgrid is the adapter for Twilio SendGrid: Mail Send v3 and the
// Event Webhook.
//
// It uses the SDK's message types (helpers/mail), its request (GetRequest) and
// rest.Client, with an HTTP client of its own. It does not use sendgrid.Client:
// that writes the body of each call into one shared struct, and concurrent calls
// lose mails and double others (sendgrid-go #474).
package sendgrid

import (
	"crypto/ecdsa"
	"errors"
	"fmt"
	"time"

	"github.com/sendgrid/rest"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/settings"
	"github.com/safedelivr/safedelivr/providers/internal/transport"
)

// What SendGrid allows (Mail Send v3, "Limitations").
const (
	maxRecipients    = 1000
	maxBody          = 30_000_000 // bytes of a request
	maxSubstitutions = 10_000     // bytes per personalization
)

const (
	defaultBase = "https://api.sendgrid.com"
	endpoint    = "/v3/mail/send"
)

// The keys under which our ids travel. They come back as top-level fields of
// every event, where SendGrid's own names win: hence the prefix.
const (
	logKey     = "sd_log"
	attemptKey = "sd_attempt"
)

// A Adapter is one provider at SendGrid.
type Adapter struct {
	key     string
	base    string
	timeout time.Duration
	client  *transport.Client
	rest    *rest.Client
	webhook *ecdsa.PublicKey // nil: the provider gets no webhooks
}

var _ models.Adapter = (*Adapter)(nil)

// Check reports all mistakes in the settings, in words and without secrets.
func Check(s settings.Settings) []error {
	errs := s.Check()
	if s.WebhookKey != "" {
		if _, err := parseKey(s.WebhookKey); err != nil {
			errs = append(errs, fmt.Errorf("webhook key: %w", err))
		}
	}
	return errs
}

// New returns the adapter for a provider.
func New(s settings.Settings) (*Adapter, error) {
	if err := errors.Join(Check(s)...); err != nil {
		return nil, err
	}
	s = s.WithDefaults()
	p := &Adapter{key: s.APIKey, base: defaultBase, timeout: s.Timeout, client: transport.NewClient(s.MaxConns)}
	p.rest = &rest.Client{HTTPClient: p.client.HTTP}
	if s.BaseURL != "" {
		p.base, _ = settings.Base(s.BaseURL)
	}
	if s.WebhookKey != "" {
		p.webhook, _ = parseKey(s.WebhookKey)
	}
	return p, nil
}

// MaxRecipients implements models.Adapter.
func (p *Adapter) MaxRecipients() int { return maxRecipients }

// Close implements models.Adapter.
func (p *Adapter) Close() { p.client.Close() }
