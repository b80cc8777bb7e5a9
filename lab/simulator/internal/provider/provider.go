// Package provider is the contract between the simulator and the providers that
// it imitates. The simulator reads requests, applies faults, keeps mail and sends
// webhooks. A provider supplies what differs: routes, checks, texts, ids, the
// events of an outcome, and the form of webhooks.
package provider

import (
	"net/http"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
)

// An Account is a customer account at a provider, with what the simulator lends
// to it.
type Account struct {
	Name       string
	Key        string // API key
	Domain     string // sending domain
	SigningKey string // empty = the provider makes one

	IDs      IDs
	Webhooks *Webhooks
	Lists    *Lists
	Options  Options

	// Scale turns simulated into real time.
	Scale func(time.Duration) time.Duration
	// Log returns the events that happened up to the given time, oldest first.
	Log func(until time.Time) []message.Event
}

// Options are the simulator's options that concern providers.
type Options struct {
	LookupLag         time.Duration
	LookupWindow      time.Duration // 0 = without end
	LookupsPerSecond  int           // 0 = without limit
	NoLogs            bool
	NoLists           bool
	FlushEvery        time.Duration
	FlushCount        int
	NewEventIDOnRetry bool
	RetryDelivered    bool
}

// A Provider imitates one provider for one account. It is safe for concurrent
// use.
type Provider interface {
	// Describe returns what never changes.
	Describe() Description
	// Endpoint returns how the request is read if it is one to send mail, and nil
	// otherwise. The path begins after the account's name.
	Endpoint(r *http.Request, path []string) *Endpoint
	// Serve answers a request that has no Endpoint.
	Serve(w http.ResponseWriter, r *http.Request, path []string)
	// ID returns the id of the batch as the API answers it.
	ID(b *message.Batch) string
	// Accepted returns the answer to a call that was stored.
	Accepted(b *message.Batch) Answer
	// Refused returns the answer to a call under the condition.
	Refused(c Condition) Answer

	WebhookSender
}

// A WebhookSender determines where webhooks go, what they hold and when they are
// repeated.
type WebhookSender interface {
	// URLs returns where an event of the stage is posted. It may be nowhere.
	URLs(s *message.Stage) []string
	// Writer returns a function that appends the event of a copy. Tries is the
	// number of posts that failed before.
	Writer(e *message.Event, tries int) func(dst []byte, c *message.Copy) []byte
	// Sign returns body and header of the request that makes the post.
	Sign(p Post) (body []byte, header http.Header, err error)
	// Acknowledged reports whether the status ends a post with success.
	Acknowledged(status int) bool
	// Retry returns how long after a failed post the next one follows. Age is the
	// time since the event. Both are simulated time. The status is 0 if there was
	// no answer. Retry returns false if the post is not repeated.
	Retry(s *message.Stage, status, tries int, age time.Duration) (gap time.Duration, ok bool)
}

// A Description is what never changes of an account.
type Description struct {
	Domain     string
	SigningKey string
	PublicKey  string // verifies webhooks; empty if the signing key is a shared secret
	Stages     *message.Stages
	HasLog     bool // there is a look-up API, so events are kept although no webhook is sent
	Batching   Batching
	Listing    map[message.Outcome]Listing // the suppression lists that outcomes put an address on
}

// Batching is how events are collected into webhook requests.
type Batching struct {
	Single     bool          // each request has one event; otherwise a list of them
	Events     int           // the most events in a request
	Every      time.Duration // how long events are collected, simulated time; 0 = not at all
	Bytes      int           // the largest body; 0 = no limit
	EventBytes int           // the usual size of an event

	Open, Separator, Close string // frame the events in the body
}

// A Post is one webhook request to be signed.
type Post struct {
	Body   []byte         // the events in their frame
	Event  *message.Event // of the first event
	Copy   uint32         // index of the first copy
	Time   int64          // of the signature, Unix seconds
	Nonce  uint64         // differs between requests that are not repeats of each other
	Forged bool           // the signature must not fit
}

// A Condition is a state of an account or a limit that makes a provider refuse
// calls.
type Condition struct {
	Kind       ConditionKind
	Status     int           // for HasStatus
	RetryAfter time.Duration // for RateLimited and Full, real time; 0 = not given
}

// A ConditionKind names a Condition.
type ConditionKind uint8

// The kinds of conditions.
const (
	HasStatus ConditionKind = iota + 1 // answer a status with the provider's text for it
	Garbage                            // answer 200 with a body that is not the provider's
	NoCredits
	Unverified
	Blocked
	RateLimited
	NotAllowed
	Full
	LargeBatch
	TooLarge
)
