// Package providers is the table of the kinds of provider. Each has a folder with its adapter and a line in Kinds.
// Nothing else in the program names one.
package providers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/brevo"
	"github.com/safedelivr/safedelivr/providers/internal/inspect"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/settings"
	"github.com/safedelivr/safedelivr/providers/mailgun"
	"github.com/safedelivr/safedelivr/providers/mailjet"
	"github.com/safedelivr/safedelivr/providers/mailtrap"
	"github.com/safedelivr/safedelivr/providers/postmark"
	"github.com/safedelivr/safedelivr/providers/resend"
	"github.com/safedelivr/safedelivr/providers/sendgrid"
	"github.com/safedelivr/safedelivr/providers/ses"
	"github.com/safedelivr/safedelivr/providers/smtp"
	"github.com/safedelivr/safedelivr/providers/smtp2go"
	"github.com/safedelivr/safedelivr/providers/sparkpost"
)

type (
	// Settings configure one provider.
	Settings = settings.Settings
	// A Mistake is a wrong setting of a provider.
	Mistake = settings.Mistake
	// Account is what was found out about an account at a provider.
	Account = inspect.Account
	// A Finding is one thing that was found out.
	Finding = inspect.Finding
	// A Domain is a sender domain at the provider.
	Domain = inspect.Domain
	// A Record is a DNS record that the provider wants.
	Record = inspect.Record
	// A State says whether something is as it should be.
	State = inspect.State
)

// The states of a Finding.
const (
	OK      = inspect.OK
	Wrong   = inspect.Wrong
	Warning = inspect.Warning
	Unknown = inspect.Unknown
)

// A Kind is a kind of provider, with the constructor of its adapter.
type Kind struct {
	Name    string // as in Settings.Kind
	Short   string // the usual name of a provider of the kind
	Title   string // for people
	Domain  bool   // its providers need Settings.Domain
	Pair    bool   // its providers need Settings.SecretKey
	Region  bool   // its providers have Settings.Amazon, and no API key
	Server  bool   // its providers are mail servers, without an API
	LooksUp bool   // its adapters implement models.EventLookup
	Carries models.Capabilities
	Boxes   []models.EventBox // what to choose at the provider so that it reports every kind of event

	Check func(Settings) []error // all mistakes in the settings, in words, without secrets
	New   func(Settings) (models.Adapter, error)
}

// Kinds lists the kinds of provider, one line each.
func Kinds() []Kind {
	return []Kind{
		of(&sendgrid.Spec, sendgrid.New),
		of(&mailgun.Spec, mailgun.New),
		of(&postmark.Spec, postmark.New),
		of(&resend.Spec, resend.New),
		of(&brevo.Spec, brevo.New),
		of(&mailtrap.Spec, mailtrap.New),
		of(&mailjet.Spec, mailjet.New),
		of(&sparkpost.Spec, sparkpost.New),
		of(&smtp2go.Spec, smtp2go.New),
		of(&ses.Spec, ses.New),
		server("smtp", "SMTP", smtp.Carries()),
		server("lmtp", "LMTP", smtp.CarriesLMTP()),
	}
}

// server returns a kind of mail server.
func server(name, title string, carries models.Capabilities) Kind {
	return Kind{Name: name, Short: name, Title: title, Server: true, Carries: carries, Check: smtp.Check,
		New: adapt(smtp.New)}
}

// of returns a kind by what its folder says.
func of[K any, P models.Adapter](s *kind.Spec[K], open func(Settings) (P, error)) Kind {
	_, looksUp := any(*new(P)).(models.EventLookup) // of the type: it is nil
	return Kind{Name: s.Name, Short: s.Short, Title: s.Title, Domain: s.Domain, Pair: s.Pair, Region: s.Region,
		LooksUp: looksUp, Carries: s.Carries, Boxes: s.Events.Boxes(), Check: s.Check, New: adapt(open)}
}

// adapt turns the constructor of an adapter into one that returns models.Adapter.
func adapt[P models.Adapter](open func(Settings) (P, error)) func(Settings) (models.Adapter, error) {
	return func(s Settings) (models.Adapter, error) {
		p, err := open(s)
		if err != nil {
			return nil, err // a nil P in the interface would not be nil
		}
		return p, nil
	}
}

// Names returns the names of the kinds.
func Names() (out []string) {
	for _, k := range Kinds() {
		out = append(out, k.Name)
	}
	return out
}

// Find returns the kind of that name.
func Find(name string) (Kind, bool) {
	for _, k := range Kinds() {
		if k.Name == name {
			return k, true
		}
	}
	return Kind{}, false
}

// Check returns all mistakes in the settings of a provider, each a Mistake.
func Check(s Settings) []error {
	k, ok := Find(s.Kind)
	if !ok {
		return []error{Mistake{Setting: "kind", Text: fmt.Sprintf("%q must be one of %s", s.Kind,
			strings.Join(Names(), ", "))}}
	}
	return k.Check(s)
}

// New returns the adapter for a provider. The error names all mistakes in its settings.
func New(s Settings) (models.Adapter, error) {
	if err := errors.Join(Check(s)...); err != nil {
		return nil, fmt.Errorf("provider %s: %w", s.Name, err)
	}
	k, _ := Find(s.Kind)
	return k.New(s)
}

// Inspect finds out about the account of an adapter at its provider. Webhooks must go to webhookURL, if it is not
// empty. An error means that the provider could not be asked.
func Inspect(ctx context.Context, a models.Adapter, webhookURL string) (Account, error) {
	i, ok := a.(inspect.Inspector)
	if !ok {
		return Account{}, errors.New("this kind of provider cannot be checked")
	}
	account, err := i.Inspect(ctx, webhookURL)
	wrong := func(f Finding) bool { return f.State == Wrong }
	if lists, ok := a.(models.ProviderLists); ok && err == nil && !slices.ContainsFunc(account.Findings, wrong) {
		inspectLists(ctx, lists, &account)
	}
	return account, err
}

// inspectLists finds out which suppression lists the key may not read.
func inspectLists(ctx context.Context, a models.ProviderLists, account *Account) {
	var refused []string
	now := time.Now()
	for _, l := range a.Lists() {
		_, err := a.ReadList(ctx, models.ListQuery{List: l.Name, From: now, To: now})
		if errors.Is(err, models.ErrNoLists) {
			refused = append(refused, l.Name)
		}
	}
	if len(refused) > 0 {
		account.Add(Warning, "key", "may not read the suppression lists "+strings.Join(refused, ", ")+
			", so that addresses on them are found only by mail that is dropped",
			"Give it the permission to read and change suppressions at the provider.")
	}
}

// SetKeys replaces the API key and the keys of webhooks of an adapter while it is in use, and nothing else. The
// settings must have passed Check. Calls in flight keep the keys that they began with.
func SetKeys(a models.Adapter, s Settings) {
	if holder, ok := a.(interface{ SetKeys(Settings) }); ok {
		holder.SetKeys(s)
	}
}
