// Package mailgun is the adapter for Mailgun: Messages v3, webhooks, the Logs API and the
// Events API.
//
// It uses mailgun-go v4 for messages, with its own HTTP client: the SDK's errors have no headers, and no status if an
// answer cannot be read. All else is read with its own types: the SDK drops an event or a page with one odd field, and
// verifies with an empty key.
package mailgun

import (
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	sdk "github.com/mailgun/mailgun-go/v4"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/settings"
)

// The limits of Mailgun (Messages API, "Sending").
const (
	maxMessage = 25_000_000 // bytes of a message
	maxRequest = 52_400_000 // bytes of a request (documented: 52.4 MiB)
	maxOptions = 16_000     // bytes of all o:, h: and v: parameters together
)

// version is a part of the path that the SDK wants in the base URL.
const version = "/v3"

// Spec describes Mailgun. A call has one list of header fields, so that the mails to all recipients have fields of the
// same names. A webhook has one event without the mail's content. Those of delivered events are never repeated.
var Spec = kind.Spec[[]byte]{
	Name:       "mailgun",
	Short:      "mg",
	Title:      "Mailgun",
	URL:        "https://api.mailgun.net",
	Recipients: sdk.MaxNumberOfRecipients,
	Webhook:    1 << 20,
	Events:     events,
	Suppress:   lists,
	Lag:        30 * time.Minute,
	Domain:     true,
	Key:        parseKey,
	Verify:     verify,
	Authorize: func(h http.Header, key string) {
		r := http.Request{Header: h}
		r.SetBasicAuth("api", key)
	},
	Carries: models.Capabilities{
		Tags:        sdk.MaxNumberOfTags,
		Attachments: true,
		Inline:      true,
		Size:        maxMessage,
		MessageID:   true,
		Tracking:    true,
		Copies:      true,
		Names:       true,
		NameMarks:   true,
		Variables:   true,
		Metadata:    true,
		Headers:     true,
	},
}

// An Adapter is one provider of the kind Mailgun, for one domain.
type Adapter struct {
	kind.Base[[]byte]
	logsRefused atomic.Int64 // time when the Logs API refused the key, in Unix nanoseconds
}

// New returns the adapter for a provider. The error names all mistakes in its settings.
var New = kind.New[[]byte, Adapter](&Spec)

// SetKeys replaces the keys. The new API key may read the Logs API.
func (p *Adapter) SetKeys(s settings.Settings) {
	p.Base.SetKeys(s)
	p.logsRefused.Store(0)
}

func parseKey(text string) ([]byte, error) {
	if strings.TrimSpace(text) != text {
		return nil, errors.New("begins or ends with white space")
	}
	return []byte(text), nil
}
