// Package mailgun is the adapter for Mailgun: Messages v3, webhooks, the Logs API and the
// Events API.
//
// It uses mailgun-go v4 for messages, with its own HTTP client that keeps status and
// headers: the SDK's errors have no headers, and no status if an answer cannot be read.
// It reads webhooks with its own types: the SDK drops an event with one odd field, and
// verifies with an empty key.
package mailgun

import (
	"errors"
	"strings"
	"sync/atomic"
	"time"

	sdk "github.com/mailgun/mailgun-go/v4"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/settings"
	"github.com/safedelivr/safedelivr/providers/internal/transport"
)

// The limits of Mailgun (Messages API, "Sending").
const (
	maxRecipients = sdk.MaxNumberOfRecipients
	maxTags       = sdk.MaxNumberOfTags
	maxMessage    = 25_000_000 // bytes of a message
	maxRequest    = 52_400_000 // bytes of a request (documented: 52.4 MiB)
	maxOptions    = 16_000     // bytes of all o:, h: and v: parameters together
	maxWebhook    = 1 << 20    // bytes of a post, which has one event without the mail's content
)

const (
	defaultBase = "https://api.mailgun.net"
	version     = "/v3" // the SDK wants it in the base URL
)

// The names of the log and of the attempt, as recipient variable and as v: parameter, so
// that the user-variables of every event have them. Recipients can see them in the header
// X-Mailgun-Variables, where they reveal nothing.
const (
	logKey     = "sd_log"
	attemptKey = "sd_attempt"
)

// An Adapter is one provider of the kind Mailgun, for one domain. It implements
// models.Adapter and models.EventLookup.
type Adapter struct {
	keys    atomic.Pointer[keys]
	domain  string
	base    string // with the version
	timeout time.Duration
	client  *transport.Client

	logsRefused atomic.Int64 // time when the Logs API refused the key, in Unix nanoseconds
}

var (
	_ models.Adapter  = (*Adapter)(nil)
	_ models.Composer = (*Adapter)(nil)
)

// keys are replaced as a whole while the adapter is in use.
type keys struct {
	api     string
	before  string           // the key that calls in flight may have; "" at first
	sdk     *sdk.MailgunImpl // with the API key
	webhook [][]byte         // each verifies webhooks; empty: the provider gets none
}

// Check returns all mistakes in the settings. Their texts have no secrets.
func Check(s settings.Settings) []error {
	errs := s.Check()
	wrong := func(setting, text string) { errs = append(errs, settings.Mistake{Setting: setting, Text: text}) }
	switch {
	case s.Domain == "":
		wrong("domain", "required: Mailgun sends for one domain")
	case !validDomain(s.Domain):
		// Mailgun answers a domain with a slash with 200 and sends nothing.
		wrong("domain", "must be a name like mg.example.com, of letters, digits, '-' and '.'")
	}
	if strings.TrimSpace(s.WebhookKey) != s.WebhookKey {
		wrong("webhook_key", "begins or ends with white space")
	}
	if strings.TrimSpace(s.WebhookKeyOld) != s.WebhookKeyOld {
		wrong("webhook_key_old", "begins or ends with white space")
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

// New returns the adapter for a provider. The error names all mistakes in its settings.
func New(s settings.Settings) (*Adapter, error) {
	if err := errors.Join(Check(s)...); err != nil {
		return nil, err
	}
	s = s.WithDefaults()
	base := defaultBase
	if s.BaseURL != "" {
		base, _ = settings.Base(s.BaseURL)
	}
	p := &Adapter{
		domain:  s.Domain,
		base:    base + version,
		timeout: s.Timeout,
		client:  transport.NewClient(s.MaxConns),
	}
	p.SetKeys(s)
	return p, nil
}

// SetKeys replaces the API key and the keys of webhooks by those of settings that Check has accepted. Calls in flight
// keep theirs.
func (p *Adapter) SetKeys(s settings.Settings) {
	k := &keys{api: s.APIKey, sdk: sdk.NewMailgun(p.domain, s.APIKey)}
	k.sdk.SetAPIBase(p.base)
	client := *p.client.HTTP
	client.Transport = fileWriter{client.Transport}
	k.sdk.SetClient(&client)
	for _, key := range []string{s.WebhookKey, s.WebhookKeyOld} {
		if key != "" {
			k.webhook = append(k.webhook, []byte(key))
		}
	}
	if old := p.keys.Load(); old != nil {
		k.before = old.api
	}
	p.keys.Store(k)
	p.logsRefused.Store(0)
}

// Carries returns what every provider of this kind carries. A call has one list of header fields, so that the mails to
// all recipients have fields of the same names.
func Carries() models.Capabilities {
	return models.Capabilities{
		Tags:        maxTags,
		Attachments: true,
		Inline:      true,
		Size:        maxMessage,
		Copies:      true,
		Names:       true,
		NameMarks:   true,
		Variables:   true,
		Metadata:    true,
		Headers:     true,
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
