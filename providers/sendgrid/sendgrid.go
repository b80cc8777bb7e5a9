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

	"github.com/sendgrid/rest"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/settings"
)

// The limits of SendGrid (Mail Send v3, "Limitations").
const (
	maxTags          = 10         // categories
	maxBody          = 30_000_000 // bytes of a request
	maxSubstitutions = 10_000     // bytes per personalization
)

// Spec describes SendGrid.
var Spec = kind.Spec[*ecdsa.PublicKey]{
	Name:       "sendgrid",
	Short:      "sg",
	Title:      "SendGrid",
	URL:        "https://api.sendgrid.com",
	Recipients: 1000,
	Webhook:    4 << 20, // SendGrid sends events once it has 768 kB of them
	Events:     events,
	Suppress:   lists,
	Key:        parseKey,
	Authorize:  kind.Bearer,
	Carries: models.Capabilities{
		Tags:        maxTags,
		Attachments: true,
		Inline:      true,
		InlineNames: true,
		Size:        maxBody,
		Base64:      true,
		Tracking:    true,
		Copies:      true,
		Names:       true,
		Variables:   true,
		Metadata:    true,
		Headers:     true,
		HeaderNames: true,
	},
}

// An Adapter is one provider of the kind SendGrid.
type Adapter struct {
	kind.Base[*ecdsa.PublicKey]
	rest *rest.Client
}

var (
	_ models.Adapter       = (*Adapter)(nil)
	_ models.Composer      = (*Adapter)(nil)
	_ models.EventLookup   = (*Adapter)(nil)
	_ models.ProviderLists = (*Adapter)(nil)
)

// New returns the adapter for a provider. The error names all mistakes in its settings.
func New(s settings.Settings) (*Adapter, error) {
	p := &Adapter{}
	if err := p.Open(&Spec, s); err != nil {
		return nil, err
	}
	p.rest = &rest.Client{HTTPClient: p.Client.HTTP}
	return p, nil
}
