// Package providers is the table of email providers. Each has a folder with its
// adapter and a line in Kinds; nothing else in the program names one.
package providers

import (
	"errors"
	"fmt"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/settings"
	"github.com/safedelivr/safedelivr/providers/mailgun"
	"github.com/safedelivr/safedelivr/providers/sendgrid"
)

// Settings configure one provider at one provider.
type Settings = settings.Settings

// A Kind is a provider that providers can be opened at.
type Kind struct {
	Name          string // as in Settings.Kind and models.Provider
	Title         string // for people
	MaxRecipients int    // of one call
	New           func(Settings) (models.Adapter, error)
	Check         func(Settings) []error // all mistakes in the settings, in words, without secrets
	Door          Door
}

// Door says what a provider's webhooks make of our answers.
type Door struct {
	OK      int // the post is stored
	Failed  int // it is not, through a fault of ours: the provider is to repeat it
	MaxBody int // bytes that a post may have
}

// Kinds lists the providers: one line each.
func Kinds() []Kind {
	return []Kind{
		{"sendgrid", "SendGrid", sendgrid.MaxRecipients, adapt(sendgrid.New), sendgrid.Check, Door{OK: 200, Failed: 503, MaxBody: 5 << 20}},
		{"mailgun", "Mailgun", mailgun.MaxRecipients, adapt(mailgun.New), mailgun.Check, Door{OK: 200, Failed: 503, MaxBody: 5 << 20}},
	}
}

// adapt makes a constructor one of models.Adapter.
func adapt[P models.Adapter](make func(Settings) (P, error)) func(Settings) (models.Adapter, error) {
	return func(s Settings) (models.Adapter, error) {
		p, err := make(s)
		if err != nil {
			return nil, err // a nil P within the interface would not be nil
		}
		return p, nil
	}
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

// Check reports all mistakes in the settings of a provider, with its name.
func Check(s Settings) []error {
	k, ok := Find(s.Kind)
	if !ok {
		names := []string{}
		for _, k := range Kinds() {
			names = append(names, k.Name)
		}
		return []error{fmt.Errorf("provider %q: kind %q is not one of %s", s.Name, s.Kind, strings.Join(names, ", "))}
	}
	var errs []error
	for _, err := range k.Check(s) {
		errs = append(errs, fmt.Errorf("provider %q: %w", s.Name, err))
	}
	return errs
}

// New returns the adapter for a provider. The error names everything that is
// wrong with its settings.
func New(s Settings) (models.Adapter, error) {
	if err := errors.Join(Check(s)...); err != nil {
		return nil, err
	}
	k, _ := Find(s.Kind)
	return k.New(s)
}
