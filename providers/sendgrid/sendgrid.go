// Package sendgrid is the adapter for Twilio SendGrid: Mail Send v3, the Event Webhook
// and the Email Logs API.
//
// It uses the SDK's message types (helpers/mail), its GetRequest and rest.Client, with its
// own HTTP client. It does not use sendgrid.Client, which writes the body of each call into
// one shared struct, so that concurrent calls lose mails and double others
// (sendgrid-go #474).
package sendgrid

import (
	"crypto/ecdsa"
	"errors"
	"sync/atomic"
	"time"

	"github.com/sendgrid/rest"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/settings"
	"github.com/safedelivr/safedelivr/providers/internal/transport"
)

// The limits of SendGrid (Mail Send v3, "Limitations").
const (
	maxRecipients    = 1000
	maxTags          = 10         // categories
	maxBody          = 30_000_000 // bytes of a request
	maxSubstitutions = 10_000     // bytes per personalization
	maxWebhook       = 4 << 20    // bytes of a post; SendGrid sends events once it has 768 kB of them
)

const (
	defaultBase = "https://api.sendgrid.com"
	endpoint    = "/v3/mail/send"
)

// The custom arguments of a mail. Every event has them as top-level fields, where
// SendGrid's own names win: hence the prefix.
const (
	logKey     = "sd_log"
	attemptKey = "sd_attempt"
)

// An Adapter is one provider of the kind SendGrid. It implements models.Adapter and
// models.EventLookup.
type Adapter struct {
	keys    atomic.Pointer[keys]
	base    string
	timeout time.Duration
	client  *transport.Client
	rest    *rest.Client
}

// keys are replaced as a whole while the adapter is in use.
type keys struct {
	api     string
	before  string             // the key that calls in flight may have; "" at first
	webhook []*ecdsa.PublicKey // each verifies webhooks; empty: the provider gets none
}

var (
	_ models.Adapter  = (*Adapter)(nil)
	_ models.Composer = (*Adapter)(nil)
)

// Check returns all mistakes in the settings. Their texts have no secrets.
func Check(s settings.Settings) []error {
	errs := s.Check()
	if _, err := parseKeys(s.WebhookKey); err != nil {
		errs = append(errs, settings.Mistake{Setting: "webhook_key", Text: err.Error()})
	}
	if _, err := parseKeys(s.WebhookKeyOld); err != nil {
		errs = append(errs, settings.Mistake{Setting: "webhook_key_old", Text: err.Error()})
	}
	return errs
}

// New returns the adapter for a provider. The error names all mistakes in its settings.
func New(s settings.Settings) (*Adapter, error) {
	if err := errors.Join(Check(s)...); err != nil {
		return nil, err
	}
	s = s.WithDefaults()
	p := &Adapter{
		base:    defaultBase,
		timeout: s.Timeout,
		client:  transport.NewClient(s.MaxConns),
	}
	p.rest = &rest.Client{HTTPClient: p.client.HTTP}
	if s.BaseURL != "" {
		p.base, _ = settings.Base(s.BaseURL)
	}
	p.SetKeys(s)
	return p, nil
}

// SetKeys replaces the API key and the keys of webhooks by those of settings that Check has accepted. Calls in flight
// keep theirs.
func (p *Adapter) SetKeys(s settings.Settings) {
	k := &keys{api: s.APIKey}
	k.webhook, _ = parseKeys(s.WebhookKey, s.WebhookKeyOld)
	if old := p.keys.Load(); old != nil {
		k.before = old.api
	}
	p.keys.Store(k)
}

// Carries returns what every provider of this kind carries.
func Carries() models.Capabilities {
	return models.Capabilities{
		Tags:        maxTags,
		Attachments: true,
		Inline:      true,
		InlineNames: true,
		Size:        maxBody,
		Base64:      true,
		Copies:      true,
		Names:       true,
		Variables:   true,
		Metadata:    true,
		Headers:     true,
		HeaderNames: true,
	}
}

// MaxRecipients implements models.Adapter.
func (p *Adapter) MaxRecipients() int { return maxRecipients }

// MaxWebhook implements models.Adapter.
func (p *Adapter) MaxWebhook() int64 { return maxWebhook }

// WebhookMethods implements models.Adapter.
func (p *Adapter) WebhookMethods() []string { return nil }

// Close implements models.Adapter.
func (p *Adapter) Close() { p.client.Close() }
