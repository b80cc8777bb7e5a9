// Package sendgrid is the adapter for Twilio SendGrid: Mail Send v3, the Event Webhook, the Email Logs API and
// suppressions.
//
// It uses the SDK's message types (helpers/mail), its GetRequest and rest.Client, with its
// own HTTP client. It does not use sendgrid.Client, which writes the body of each call into
// one shared struct, so that concurrent calls lose mails and double others
// (sendgrid-go #474).
package sendgrid

import (
	"crypto/ecdsa"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
)

// The limits of SendGrid (Mail Send v3, "Limitations").
const (
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
	Lag:        10 * time.Minute,
	Repeat:     24 * time.Hour, // docs: Event Webhook
	Key:        parseKey,
	Authorize:  kind.Bearer,
	Header:     verifyHeader,
	Verify:     verify,
	Carries: models.Capabilities{
		Tags:        10, // categories
		Attachments: true,
		Inline:      true,
		InlineNames: true,
		Size:        maxBody,
		Base64:      true,
		MessageID:   true,
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
}

// New returns the adapter for a provider. The error names all mistakes in its settings.
var New = kind.New[*ecdsa.PublicKey, Adapter](&Spec)
