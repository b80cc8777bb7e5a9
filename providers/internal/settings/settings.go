// Package settings holds the settings of a provider and the checks that are the same
// for all adapters.
package settings

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/settings"
)

// Settings configure one provider.
type Settings struct {
	Name          string             // of the provider; used in routing keys
	Kind          string             // name of its kind
	APIKey        string             // secret
	Domain        string             // sending domain, if the kind needs one
	BaseURL       string             // of the API, with or without the version path; empty: the default of the kind
	WebhookKey    string             // verifies webhooks: a public key (SendGrid) or a secret (Mailgun)
	WebhookKeyOld string             // verifies webhooks too, while the key is changed; may be empty
	Events        models.EventSource // empty: EventsWebhook, and then WebhookKey must be set
	Timeout       time.Duration      // of one call; 0: DefaultTimeout
	MaxConns      int                // idle connections that are kept; 0: DefaultMaxConns. Set it to the concurrency

	settings.Pair   // of kinds whose API key has two parts
	settings.Server // of SMTP and LMTP
	settings.OAuth  // in place of passwords
	settings.Bounces
	settings.Amazon // of Amazon SES
}

// The defaults of Settings.
const (
	DefaultTimeout  = 30 * time.Second
	DefaultMaxConns = 64
)

// WithDefaults returns s with defaults for empty fields.
func (s Settings) WithDefaults() Settings {
	if s.Events == "" {
		s.Events = models.EventsWebhook
	}
	if s.Timeout == 0 {
		s.Timeout = DefaultTimeout
	}
	if s.MaxConns == 0 {
		s.MaxConns = DefaultMaxConns
	}
	return s
}

// A Mistake is a wrong setting.
type Mistake struct {
	Setting string // as in the configuration of a provider, like api_key
	Text    string // without secrets, so it can be logged
}

// Error implements error.
func (m Mistake) Error() string { return m.Setting + ": " + m.Text }

// Verifiable reports whether the settings have what verifies webhooks.
func (s Settings) Verifiable() bool { return s.WebhookKey != "" || len(s.Topics) > 0 }

// Check returns the mistakes that do not depend on the kind, for one with an API key.
func (s Settings) Check() []error {
	errs := append(s.CheckCommon(), s.CheckVerifier("webhook_key")...)
	switch {
	case s.APIKey == "":
		errs = append(errs, Mistake{"api_key", "required: the API key of the provider"})
	case !Visible(s.APIKey):
		errs = append(errs, Mistake{"api_key", NoKey})
	}
	return errs
}

// CheckCommon returns the mistakes that do not depend on the kind.
func (s Settings) CheckCommon() []error {
	s = s.WithDefaults()
	var errs []error
	wrong := func(setting, format string, args ...any) {
		errs = append(errs, Mistake{setting, fmt.Sprintf(format, args...)})
	}
	if !models.ValidProviderName(s.Name) {
		wrong("name", "%q: want 1 to 32 of a-z 0-9 -, beginning with a letter; batch, log, event and feed are taken", s.Name)
	}
	if s.BaseURL != "" {
		if _, err := Base(s.BaseURL); err != nil {
			wrong("base_url", "%s", err)
		}
	}
	switch {
	case s.Events != models.EventsWebhook && s.Events != models.EventsNone:
		wrong("events", "%q must be webhook or none", s.Events)
	}
	if s.WebhookKeyOld != "" && s.WebhookKey == "" {
		wrong("webhook_key", "required if webhook_key_old is set")
	}
	if s.Timeout < 0 {
		wrong("timeout", "%s is negative", s.Timeout)
	}
	if s.MaxConns < 0 {
		wrong("concurrency", "%d must be at least 1", s.MaxConns)
	}
	return errs
}

// CheckVerifier returns the mistake that webhooks are expected and cannot be verified. setting is what verifies them.
func (s Settings) CheckVerifier(setting string) []error {
	if s.WithDefaults().Events != models.EventsWebhook || s.Verifiable() {
		return nil
	}
	return []error{Mistake{setting, "required: without it webhooks cannot be verified " +
		"(set events to none if the provider cannot reach this server)"}}
}

// ValidDomain reports whether s is a name of letters, digits, '-' and '.'. Mailgun answers a domain with a slash with
// 200 and sends nothing.
func ValidDomain(s string) bool {
	other := func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '.')
	}
	return len(s) <= 253 && strings.Contains(s, ".") && !strings.Contains(s, "..") && strings.Trim(s, ".-") == s &&
		!strings.ContainsFunc(s, other)
}

// Loopback reports whether a host is this machine.
func Loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Base checks the base URL of an API and returns it without the version path and
// without a slash at its end. The error does not show the URL, which may have a
// password.
func Base(text string) (string, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return "", errors.New("must be an http:// or https:// URL with a host")
	case u.User != nil:
		return "", errors.New("holds a user name or password; the key belongs elsewhere")
	case u.RawQuery != "" || u.Fragment != "":
		return "", errors.New("holds a query or fragment")
	}
	u.Path = strings.TrimRight(u.Path, "/")
	u.Path = strings.TrimRight(strings.TrimSuffix(u.Path, "/v3"), "/")
	u.RawPath = ""
	return u.String(), nil
}

// NoKey says what is wrong with a key that is not Visible.
const NoKey = "holds spaces, line breaks or characters that no key has"

// Visible reports whether s consists of printable ASCII characters without spaces.
func Visible(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}
