// Package kind has what the adapters of all kinds share: their keys, calls, answers, queries and events. An adapter
// embeds a Base, and adds its tables and what is different at its provider.
package kind

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
	"github.com/safedelivr/safedelivr/providers/internal/settings"
	"github.com/safedelivr/safedelivr/providers/internal/transport"
)

// The names of the log and of the attempt in the metadata of a mail, which its events bring back.
const (
	LogKey     = "sd_log"
	AttemptKey = "sd_attempt"
)

// A Spec describes a kind. K is a key that verifies webhooks.
type Spec[K any] struct {
	Name       string // of the kind
	Short      string // the usual name of a provider of the kind
	Title      string // of the provider, for people
	URL        string // of the API
	Queries    string // of the API that answers queries, if that is another one
	Recipients int    // of a call, at most
	Webhook    int64  // bytes of a webhook, at most
	OnlyAfter  int    // the only status after which it repeats a webhook; 0: after every one that is no success
	Carries    models.Capabilities
	Events     Events
	Suppress   []models.ProviderList // its suppression lists
	Lag        time.Duration         // of its log of events
	Repeat     time.Duration         // for which it repeats every webhook that was not received
	KnowsKeys  time.Duration         // how long it knows an idempotency key; see Keyed
	Domain     bool                  // it needs the setting domain
	Pair       bool                  // it needs the setting secret_key: its API key is user:password then
	Region     bool                  // it needs a region and an access key of two parts in place of an API key
	Key        func(text string) (K, error)
	Authorize  func(h http.Header, key string) // adds the API key to a request
	// Mistakes returns those in the settings of a kind without an API key. It is nil for the others.
	Mistakes func(o settings.Settings) []error

	// Header verifies what the header of a webhook shows, and Verify the rest. Either may be nil.
	Header func(keys []K, w *models.Webhook) error
	Verify func(ctx context.Context, keys []K, w *models.Webhook) (models.Verified, error)
}

// Check returns all mistakes in the settings. Their texts have no secrets.
func (s *Spec[K]) Check(o settings.Settings) []error {
	check := o.Check
	if s.Mistakes != nil {
		check = func() []error { return append(o.CheckCommon(), s.Mistakes(o)...) }
	}
	errs := check()
	switch {
	case s.Domain && o.Domain == "":
		errs = append(errs, settings.Mistake{Setting: "domain", Text: "required: " + s.Title + " sends for one domain"})
	case s.Domain && !settings.ValidDomain(o.Domain):
		errs = append(errs, settings.Mistake{Setting: "domain",
			Text: "must be a name like mg.example.com, of letters, digits, '-' and '.'"})
	}
	switch {
	case s.Pair && o.SecretKey == "":
		errs = append(errs, settings.Mistake{Setting: "secret_key", Text: "required: the second part of the API key"})
	case s.Pair && !settings.Visible(o.SecretKey):
		errs = append(errs, settings.Mistake{Setting: "secret_key", Text: settings.NoKey})
	}
	for _, key := range [2][2]string{{"webhook_key", o.WebhookKey}, {"webhook_key_old", o.WebhookKeyOld}} {
		if key[1] == "" {
			continue
		}
		if _, err := s.Key(key[1]); err != nil {
			errs = append(errs, settings.Mistake{Setting: key[0], Text: err.Error()})
		}
	}
	return errs
}

// Bearer adds an API key as a bearer token.
func Bearer(h http.Header, key string) { h.Set("Authorization", "Bearer "+key) }

// Basic adds an API key of two parts, user:password.
func Basic(h http.Header, key string) {
	h.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(key)))
}

// A Base is the part of an adapter that all kinds have. Its methods implement those of models.Adapter that need no more
// than a Spec.
type Base[K any] struct {
	*Spec[K]
	Root    string // URL of the API, without a slash at its end
	queries string // that of the API that answers queries
	Sender  string // domain, if the kind needs one
	Timeout time.Duration
	Client  *transport.Client
	keys    atomic.Pointer[Keys[K]]
}

// Keys are replaced as a whole while the adapter is in use.
type Keys[K any] struct {
	API     string
	Webhook []K       // each verifies webhooks; empty: the provider gets none
	secrets [4]string // parts of the API key, and of the one before, which calls in flight may have
}

// New returns the constructor of the adapters of a kind. Its error names all mistakes in the settings.
func New[K, A any, P interface {
	*A
	Open(s *Spec[K], o settings.Settings) error
}](s *Spec[K]) func(o settings.Settings) (P, error) {
	return func(o settings.Settings) (P, error) {
		p := P(new(A))
		if err := p.Open(s, o); err != nil {
			return nil, err
		}
		return p, nil
	}
}

// Open makes the base usable.
func (b *Base[K]) Open(spec *Spec[K], s settings.Settings) error {
	if err := errors.Join(spec.Check(s)...); err != nil {
		return err
	}
	s = s.WithDefaults()
	b.Spec, b.Root, b.Sender = spec, spec.URL, s.Domain
	b.Timeout, b.Client = s.Timeout, transport.NewClient(s.MaxConns)
	if s.BaseURL != "" {
		b.Root, _ = settings.Base(s.BaseURL)
	}
	b.queries = queriesBeside(b.Root, spec.Queries)
	b.SetKeys(s)
	return nil
}

// queriesBeside returns where queries go if the API is at root. It is another host of the provider, if there is one and
// root is a part of its domain, like the API of another stream.
func queriesBeside(root, other string) string {
	at, err1 := url.Parse(root)
	host, err2 := url.Parse(other)
	if err1 == nil && err2 == nil && other != "" && strings.HasSuffix(at.Hostname(), "."+host.Hostname()) {
		return other
	}
	return root
}

// SetKeys replaces the API key and the keys of webhooks by those of settings that Check has accepted. Calls in flight
// keep theirs.
func (b *Base[K]) SetKeys(s settings.Settings) {
	var webhook []K
	for _, text := range [2]string{s.WebhookKey, s.WebhookKeyOld} {
		if text == "" {
			continue
		}
		if key, err := b.Key(text); err == nil {
			webhook = append(webhook, key)
		}
	}
	parts := []string{s.APIKey, s.SecretKey}
	if !b.Pair {
		parts = parts[:1]
	}
	b.Replace(webhook, parts...)
}

// Replace replaces what verifies webhooks, and the parts of the API key, or the secret in its place.
func (b *Base[K]) Replace(webhook []K, parts ...string) {
	k := &Keys[K]{API: strings.Join(parts, ":"), Webhook: webhook}
	copy(k.secrets[:2], parts)
	if old := b.keys.Load(); old != nil {
		copy(k.secrets[2:], old.secrets[:2])
	}
	b.keys.Store(k)
}

// Keys returns the keys to use now.
func (b *Base[K]) Keys() *Keys[K] { return b.keys.Load() }

// Words returns a text for storing: without addresses and without the API key.
func (b *Base[K]) Words(text string) string { return parse.Text(text, b.keys.Load().secrets[:]...) }

// MaxRecipients implements models.Adapter.
func (b *Base[K]) MaxRecipients() int { return b.Recipients }

// MaxWebhook implements models.Adapter.
func (b *Base[K]) MaxWebhook() int64 { return b.Webhook }

// WebhookMethods implements models.Adapter: only POST.
func (b *Base[K]) WebhookMethods() []string { return nil }

// RepeatStatus implements models.Adapter.
func (b *Base[K]) RepeatStatus() int { return b.OnlyAfter }

// VerifyHeader implements models.Adapter. Webhooks of a provider without a key are repeated until it has one.
func (b *Base[K]) VerifyHeader(w *models.Webhook) error {
	keys := b.Keys().Webhook
	switch {
	case len(keys) == 0:
		return Refuse(http.StatusServiceUnavailable, "not_configured", "this provider has no webhook key")
	case b.Header == nil:
		return nil
	}
	return b.Header(keys, w)
}

// Verify implements models.Adapter.
func (b *Base[K]) Verify(ctx context.Context, w *models.Webhook) (v models.Verified, err error) {
	if err := b.VerifyHeader(w); err != nil || b.Spec.Verify == nil {
		return v, err
	}
	return b.Spec.Verify(ctx, b.Keys().Webhook, w)
}

// LookupLag implements models.EventLookup.
func (b *Base[K]) LookupLag() time.Duration { return b.Lag }

// Repeats implements models.EventLookup.
func (b *Base[K]) Repeats() time.Duration { return b.Repeat }

// Lists implements models.ProviderLists.
func (b *Base[K]) Lists() []models.ProviderList { return slices.Clone(b.Suppress) }

// List returns the list with a name. Errors: models.ErrInvalid.
func (b *Base[K]) List(name string) (models.ProviderList, error) {
	at := slices.IndexFunc(b.Suppress, func(l models.ProviderList) bool { return l.Name == name })
	if at < 0 {
		return models.ProviderList{}, models.ErrInvalid
	}
	return b.Suppress[at], nil
}

// Close implements models.Adapter.
func (b *Base[K]) Close() { b.Client.Close() }

// A Keyed is the Base of a provider with idempotency keys.
type Keyed[K any] struct{ Base[K] }

// KeyLifetime returns how long after a call the same call, with the same bytes, gets the answer of the first one and
// sends nothing again.
func (b *Keyed[K]) KeyLifetime() time.Duration { return b.KnowsKeys }

// Account names the account without showing its key. A provider with idempotency keys does not know those of another
// account.
func (b *Keyed[K]) Account() string {
	sum := sha256.Sum256([]byte(b.Root + " " + b.Keys().API))
	return hex.EncodeToString(sum[:8])
}
