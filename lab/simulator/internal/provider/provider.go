// Package provider is what the kinds of simulated providers have in common. A kind is a [Provider]: tables of answers,
// events, suppression lists and routes, and functions where kinds differ. The simulator reads requests, applies faults,
// keeps mail and sends webhooks.
package provider

import (
	"net/http"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
)

// A Customer is a customer account at a simulated provider.
type Customer struct {
	Name string `json:"name"` // path prefix; a-z 0-9 - _
	Kind string `json:"kind"`
	// Key is the API key; requests with another one get 401 or 403. Mailjet: both keys, with a colon between. Amazon SES:
	// ID:SECRET of an access key.
	Key string `json:"key"`
	// Mailgun: the sending domain, another one gets 404. The others: the authenticated domain.
	Domain     string `json:"domain,omitempty"`
	WebhookURL string `json:"webhook_url,omitempty"` // where events are posted; empty = nowhere
	// SigningKey signs webhooks. Mailgun: the HTTP webhook signing key, required if there is a WebhookURL. SendGrid: an
	// ECDSA P-256 private key, PEM or base64 of PKCS#8; empty = one is made. Postmark, Mailjet and SparkPost:
	// user:password, which webhooks carry; empty = none. Brevo and SMTP2GO: the same, or a bearer token. Resend: whsec_
	// and base64, Mailtrap: any text; empty = one is made. Amazon SES: unused.
	SigningKey string `json:"signing_key,omitempty"`
	// SMTP and LMTP: path of a Maildir that gets the reports about mail that was accepted. Empty = none are made.
	Maildir   string `json:"maildir,omitempty"`
	PublicKey string `json:"public_key,omitempty"` // verifies webhooks; empty if the signing key is a shared secret
}

// An Account is a Customer with what the simulator lends to the imitation.
type Account struct {
	Customer
	IDs      IDs
	Webhooks *Webhooks
	Lists    *Lists
	Keys     *Keys
	Options  Options

	// Scale turns simulated into real time.
	Scale func(time.Duration) time.Duration
	// Log returns the events that happened up to the given time, oldest first.
	Log func(until time.Time) []message.Event

	lookups limiter
}

// A Provider imitates a provider for one account. It is safe for concurrent use.
type Provider struct {
	*Account
	Stages   *Stages
	Suppress []List
	Hooks    Hooks

	Routes []Route
	Header map[string]string // of every answer
	// Statuses are the answers of a status, Conditions those under a condition. See Provider.Refused.
	Statuses   map[int]Answer
	Conditions map[ConditionKind]Answer
	// Unauthorized returns the status of the answer to a request without the key of the account, and 0 otherwise.
	Unauthorized func(r *http.Request) int
	// KeyLifetime is how long the answer to a call with an idempotency key is kept, in simulated time. 0 means that there
	// are no such keys.
	KeyLifetime time.Duration
	// Key returns the idempotency key of a call; nil = that of the header Idempotency-Key.
	Key func(r *http.Request, c *Call) string
	// ID returns the id of a batch as the API answers it; nil = a UUID.
	ID func(b *message.Batch) string
}

// Complete fills in what a kind has left open: its batches have UUIDs, its keys are in a header, and each webhook has
// one event.
func (p *Provider) Complete() {
	if p.ID == nil {
		p.ID = func(b *message.Batch) string { return p.IDs.UUID(b.Serial) }
	}
	if p.Key == nil {
		p.Key = func(r *http.Request, _ *Call) string { return r.Header.Get("Idempotency-Key") }
	}
	if p.Hooks.Events == 0 {
		p.Hooks.Batching = Batching{Single: true, Events: 1, EventBytes: 1200}
	}
}

// A Condition is a state of an account or a limit that makes a provider refuse calls.
type Condition struct {
	Kind       ConditionKind
	Status     int           // for HasStatus
	RetryAfter time.Duration // for RateLimited and Full, real time; 0 = not given
}

// A ConditionKind names a Condition.
type ConditionKind uint8

// The kinds of conditions.
const (
	HasStatus ConditionKind = iota + 1 // a status that has no answer in Provider.Statuses
	Garbage                            // answer 200 with a body that is not the provider's
	NoCredits
	Unverified
	Blocked
	RateLimited
	RateUntil // RateLimited, with a time; follows it
	NotAllowed
	Full
	FullUntil // Full, with a time; follows it
	LargeBatch
	TooLarge
	LookedUpTooOften
	KeyBusy    // a call with the same idempotency key is not finished
	KeyReused  // the idempotency key had another body
	KeyInvalid // not an idempotency key
	KeyKnown   // the idempotency key had the same body; without an answer, the first one is repeated
)
