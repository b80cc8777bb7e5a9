package models

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

// Call is what an adapter needs for one provider call.
type Call struct {
	Batch      ID
	Attempt    int // number of the attempt; travels with every recipient
	Content    *Content
	Recipients []CallRecipient // no address twice, whatever its case
	StartBy    time.Time       // the request's body begins to leave before this or never; zero: whenever
}

// Passed reports whether t is past by either clock: the monotonic one does not
// run while the machine sleeps, and the other may be set.
func Passed(t time.Time) bool {
	now := time.Now()
	return !now.Before(t) || !now.Round(0).Before(t.Round(0))
}

// CallRecipient is a recipient and its log's ID, whose Recipient() is its
// number in the chunk.
type CallRecipient struct {
	Log ID
	Recipient
}

// Numbers is the set of the recipients' numbers.
func (c *Call) Numbers() Set {
	var s Set
	for i := range c.Recipients {
		s.Add(c.Recipients[i].Log.Recipient())
	}
	return s
}

// Adapter is an adapter for one provider at one email provider. It translates
// and classifies; it never retries and never decides.
//
// All methods may be called by many goroutines at once.
type Adapter interface {
	// Send makes one provider call at most and says what became of it, for
	// every recipient of the call exactly once. It sends nothing when the call
	// cannot be expressed (RejectedHereClass or RejectedRequest). Between
	// Unavailable and Unknown decides whether the request left completely.
	// It returns soon after ctx ends. Recipients never see each other. It
	// never panics on what the provider answers. Texts hold no addresses.
	Send(ctx context.Context, c *Call) []Part

	// MaxRecipients is how many recipients one call may hold.
	MaxRecipients() int

	// Verify checks that a webhook post comes from the provider, over the raw
	// body, and that it is fresh. A refusal is a *WebhookError. On success it
	// returns what a replay would carry again, or "". Of posts that were signed
	// at the same time it begins with the same group, up to a '.', if it has one.
	Verify(h http.Header, body []byte, now time.Time) (replay string, err error)

	// Parse reads a verified post. It never panics and never gives up the good
	// events of a post for the sake of a bad one.
	Parse(body []byte) Parsed

	// Close frees connections.
	Close()
}

// EventLookup is an Adapter that can be asked for what it reported before. What is
// found is evidence; that nothing is found proves nothing.
type EventLookup interface {
	// LookUp calls post for every event in [from, to), oldest first, of one
	// recipient's address or (empty) of all, each as a body that Parse reads. The
	// events have the ids that their webhooks have. It ends with the first error,
	// of post too.
	LookUp(ctx context.Context, from, to time.Time, recipient string, post func(body []byte) error) error
	// LookupLag is after how long an event is sure to be found.
	LookupLag() time.Duration
}

// Parsed is what a webhook post holds.
type Parsed struct {
	Events  []ParsedEvent
	Skipped []string // one line for everything in the post that is no event of ours, without addresses
}

// ParsedEvent is an event and the log it names. Event.Recipient and
// Event.Provider are set by the caller.
type ParsedEvent struct {
	Log   ID
	Event Event
}

// WebhookError refuses a webhook post.
type WebhookError struct {
	Status int    // the HTTP status that makes this provider stop or repeat, as meant
	Code   string // not_configured, bad_signature, stale, malformed
	Detail string
}

// Error implements error.
func (e *WebhookError) Error() string {
	return fmt.Sprintf("webhook refused: %s: %s", e.Code, e.Detail)
}

// EventSource says whether a provider reports events.
type EventSource string

// The event sources.
const (
	EventsWebhook EventSource = "webhook"
	EventsNone    EventSource = "none" // accepted counts as success, unconfirmed
)

// Provider is one set of credentials at one provider, without its secrets.
type Provider struct {
	Name        string        // also its namespace in routing keys
	Kind        string        // "sendgrid", "mailgun"
	Weight      int           // share in the round robin, 1 to 1,000
	Concurrency int           // calls at once, of all workers together, 1 to 1,000
	Rate        float64       // recipients/s of all workers together; 0: no limit
	CallRate    float64       // calls/s of all workers together; 0: no limit
	ChunkLimit  int           // recipients per call, at most the provider's
	Timeout     time.Duration // of one call
	Events      EventSource

	// EvidenceWindow is how long an unknown outcome waits for evidence; 0: as
	// the engine's configuration says.
	EvidenceWindow time.Duration
}
