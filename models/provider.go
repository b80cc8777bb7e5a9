package models

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Call is the input of one provider call.
type Call struct {
	Batch      ID
	Attempt    int // number of the attempt; sent with every recipient
	Content    *Content
	Files      [][]byte        // the bytes of Content.Attachments
	Recipients []CallRecipient // no address twice, ignoring case
	StartBy    time.Time       // the request's body must begin before this; zero: no limit
}

// Passed reports whether t is past by the monotonic or by the wall clock: the monotonic
// clock stops while the machine sleeps, and the wall clock can be set.
func Passed(t time.Time) bool {
	now := time.Now()
	return !now.Before(t) || !now.Round(0).Before(t.Round(0))
}

// CallRecipient is a recipient and the ID of its log.
type CallRecipient struct {
	Log  ID
	Role Role // in one mail to all recipients of the call; empty: each has a mail of its own
	Recipient
}

// Together reports whether the call has one mail to all its recipients. The first one is then in
// To, and has the values of the placeholders.
func (c *Call) Together() bool { return len(c.Recipients) > 0 && c.Recipients[0].Role != "" }

// Numbers returns the numbers of the recipients in their chunk.
func (c *Call) Numbers() Set {
	var s Set
	for i := range c.Recipients {
		s.Add(c.Recipients[i].Log.Recipient())
	}
	return s
}

// Capabilities are what a kind of provider carries of a message besides sender, subject and
// bodies.
type Capabilities struct {
	Tags        int   // tags of a message; the rest is left out
	Attachments bool  // files
	Inline      bool  // files that HTML shows (cid:)
	InlineNames bool  // names of inline files that are not their content IDs; otherwise these are the names
	Size        int64 // bytes of a message with its attachments; 0: no limit is known
	Base64      bool  // attachments count for Size as base64
	Copies      bool  // one mail to several recipients, with Cc and Bcc
	OneReply    bool  // only one reply-to address
	Tracking    bool  // open and click tracking
	UTF8        bool  // addresses with characters beyond ASCII before the @ (RFC 6531)
	MessageID   bool  // the Message-ID; otherwise it is added to References
	OwnTracking bool  // opens and clicks are tracked as its own settings say, and not as the message does

	// Of each recipient of a call:
	Names       bool // the display name; otherwise it is left out
	NameMarks   bool // commas and semicolons in names, also of senders; otherwise they become spaces
	Variables   bool // values of placeholders
	Metadata    bool // values that come back with its events: of its log and of the attempt
	Headers     bool // values of header fields
	HeaderNames bool // header fields that other recipients do not have
}

// LeftOut says what a provider leaves out of a message to recipients with some names, or "".
func (c Capabilities) LeftOut(m *Content, names ...string) string {
	var out []string
	if n := len(m.Tags) - c.Tags; n > 0 {
		out = append(out, fmt.Sprintf("%d of %d tags: it takes %d", n, len(m.Tags), c.Tags))
	}
	if slugs := m.Slugs(len(m.Tags)); c.Tags > 0 && !slices.Equal(slugs, m.Tags) {
		out = append(out, "some characters of tags: they become "+strings.Join(slugs, ", "))
	}
	if !c.MessageID && FindHeader(m.Headers, MessageIDField) >= 0 {
		out = append(out, "Message-ID: it sets its own, and References has yours")
	}
	tracks := m.TrackOpens || m.TrackClicks
	switch {
	case tracks && c.OwnTracking:
		out = append(out, "the tracking of opens and clicks: its own settings decide")
	case tracks && !c.Tracking:
		out = append(out, "the tracking of opens and clicks")
	}
	named := func(a Attachment) bool { return a.ContentID != "" && a.ContentID != a.Filename }
	if !c.InlineNames && slices.ContainsFunc(m.Attachments, named) {
		out = append(out, "names of inline images: their content ids are used instead")
	}
	if !c.Names {
		out, names = append(out, "the names of recipients"), nil
	}
	names = append(names[:len(names):len(names)], m.From.Name)
	for i := range m.ReplyTo {
		names = append(names, m.ReplyTo[i].Name)
	}
	if !c.NameMarks && strings.ContainsAny(strings.Join(names, ""), ",;") {
		out = append(out, "commas and semicolons in names: they become spaces")
	}
	return strings.Join(out, "; ")
}

// Refuses says why a provider cannot carry the message of a batch, or "".
func (c Capabilities) Refuses(b *Batch) string {
	m := &b.Content
	switch {
	case !c.UTF8 && slices.ContainsFunc(append(m.ReplyTo[:len(m.ReplyTo):len(m.ReplyTo)], m.From), Address.beyondASCII):
		return "it takes no addresses with characters beyond ASCII"
	case c.OneReply && len(m.ReplyTo) > 1:
		return "it takes one reply-to address"
	case !c.Variables && m.personal():
		return "it takes no variables of recipients"
	case !c.Headers && (b.OwnHeaders != "" || personal(m.Headers)):
		return "it takes no header fields of recipients"
	case !c.HeaderNames && b.OwnHeaders == DifferentNames:
		return "the mails to all recipients have header fields of the same names there"
	}
	size := m.Size()
	for i := range m.Attachments {
		a := &m.Attachments[i]
		switch {
		case !c.Attachments:
			return "it takes no attachments"
		case a.ContentID != "" && !c.Inline:
			return "it takes no inline images"
		case c.Base64:
			size += (a.Size+2)/3*4 - a.Size
		}
	}
	if c.Size > 0 && size > c.Size {
		return fmt.Sprintf("the message has %d bytes there: it takes %d", size, c.Size)
	}
	return ""
}

// personal reports whether subject or bodies differ from recipient to recipient.
func (c *Content) personal() bool {
	return len(Placeholders(c.Subject))+len(Placeholders(c.Text))+len(Placeholders(c.HTML)) > 0
}

// personal reports whether the values of header fields differ from recipient to recipient.
func personal(headers []Header) bool {
	return slices.ContainsFunc(headers, func(h Header) bool { return len(Placeholders(h.Value)) > 0 })
}

func (a Address) beyondASCII() bool { return !ASCII(a.Email) }

// ASCII reports whether s is ASCII.
func ASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// Adapter calls the API of one provider. It translates and classifies; it never retries
// and never decides.
//
// All methods may be called by many goroutines at once.
type Adapter interface {
	// Send makes at most one provider call and returns its result, with each
	// recipient in exactly one part. If the call cannot be expressed, it sends
	// nothing (RejectedHereClass or RejectedRequest). If no answer came, the result
	// is Unknown if the whole request was sent, else Unavailable, with NotComposed if the
	// start-by passed before the request was ready. Send returns soon after ctx ends.
	// Recipients do not see each other, but for those in To and Cc of one mail to all. Such
	// a mail goes to all of its recipients or to none. Send does not panic on any answer.
	// Texts have no addresses.
	Send(ctx context.Context, c *Call) []Part

	// MaxRecipients returns the maximum number of recipients of a call.
	MaxRecipients() int

	// MaxWebhook returns the size in bytes of the largest webhook that is accepted. It
	// is larger than any that the provider sends.
	MaxWebhook() int64

	// WebhookMethods returns the HTTP methods of webhooks besides POST.
	WebhookMethods() []string

	// RepeatStatus returns the only HTTP status after which the provider repeats a webhook. It returns 0 if the provider
	// repeats after every status but a success, or after that of a refusal.
	RepeatStatus() int

	// VerifyHeader refuses a webhook whose header alone shows that Verify would refuse
	// it, so that its body need not be read. w has no body. A refusal is a *WebhookError.
	VerifyHeader(w *Webhook) error

	// Verify checks that a webhook was sent by the provider and is fresh. ctx bounds a call
	// to the provider, if that needs one. A refusal is a *WebhookError.
	Verify(ctx context.Context, w *Webhook) (Verified, error)

	// Parse parses a verified webhook. It never panics, and returns the valid events
	// even if others are not valid.
	Parse(body []byte) Parsed

	// Close frees connections.
	Close()
}

// Request is a request to a provider, without credentials.
type Request struct {
	Method, URL, ContentType string
	Body                     []byte
}

// Composer is implemented by an Adapter that can show what it sends.
type Composer interface {
	// Compose returns the request that Send makes for c, or the parts of a call that cannot
	// be expressed. It sends nothing.
	Compose(c *Call) (Request, []Part)
}

// EventLookup is implemented by an Adapter that can query past events. An event that
// is found is evidence; a query without a result proves nothing.
type EventLookup interface {
	// LookUp calls post for the events that q selects. Each body can be parsed by Parse,
	// and has the IDs of the webhooks. LookUp ends with the first error, also of post.
	// Errors: ErrNoLookup, ErrPartialLogs (a query for one recipient may find the rest).
	LookUp(ctx context.Context, q LookupQuery, post func(body []byte) error) error
	// LookupLag returns the time after which an event is expected to be found.
	LookupLag() time.Duration
	// Repeats returns how long the provider repeats every webhook that was not received.
	// An outage that is shorter needs no look-up. It is 0 if some are never repeated.
	Repeats() time.Duration
}

// LookupQuery selects events. From and To bound the time of the event. A provider that
// knows only when it accepted the mail finds the events of mail from From to SentBy.
type LookupQuery struct {
	From, To  time.Time
	SentBy    time.Time   // when the mail was accepted at the latest; zero: To
	Recipient string      // address, as it was sent; empty: of all recipients
	Chunks    map[ID]bool // whose events are wanted; nil: of all. Other events may be found, too

	// Attempts are the numbers of the attempts whose events are wanted, by their chunk. Of a chunk without any, those
	// of all attempts are.
	Attempts map[ID][]int
}

// Until returns when the mail of the query was accepted at the latest.
func (q *LookupQuery) Until() time.Time {
	if q.SentBy.IsZero() {
		return q.To
	}
	return q.SentBy
}

// Want reports whether events of a chunk are wanted.
func (q *LookupQuery) Want(chunk ID) bool { return q.Chunks == nil || q.Chunks[chunk] }

// ProviderLists is implemented by an Adapter whose provider keeps suppression lists of its own.
type ProviderLists interface {
	// Lists returns the lists, in the order in which they are read.
	Lists() []ProviderList
	// ReadList returns a page of a list. Errors: ErrNoLists, ErrInvalid (the provider refuses
	// the query, for example because its cursor is too old).
	ReadList(ctx context.Context, q ListQuery) (ListPage, error)
	// Unlist removes an address from a list. It is no error if the list does not have it.
	// Errors: ErrNoLists.
	Unlist(ctx context.Context, list, address string) error
}

// ProviderList is a suppression list of a provider.
type ProviderList struct {
	Name string // in the provider's API
	// Reason says why we suppress the addresses of the list, too. Empty: the provider goes on
	// to deliver to them, and so do we.
	Reason SuppressionReason
}

// ListQuery selects a page of a list: of the entries that began from From to To. A provider that
// cannot select them by time returns all entries.
type ListQuery struct {
	List     string
	From, To time.Time // From may be zero: from the first entry
	Cursor   string    // empty: the first page; else Next of the page before
}

// ListPage is a page of a list.
type ListPage struct {
	Entries []Listed
	Next    string // cursor of the next page; empty: this is the last one
	Skipped int    // entries that cannot be read
}

// Listed is an entry of a list of a provider.
type Listed struct {
	Email    string
	Category string            // the kind of mail that the recipient does not want; empty: all
	Reason   SuppressionReason // empty: it is none that holds everywhere
	Text     string            // what the provider says, without addresses; may be empty
	At       time.Time         // when it began
}

// Parsed is the content of a webhook.
type Parsed struct {
	Events  []ParsedEvent
	Unnamed []UnnamedEvent // events that name no log, and may be about one of ours
	Skipped []string       // a line, without addresses, for everything else in the webhook
}

// ParsedEvent is an event and its log. The caller sets Event.Recipient and
// Event.Provider.
//
// An event that names only its chunk and its attempt has the ID of the chunk in place of that of a log. It is about the
// recipient of the attempt with the address. See Entry.RecipientOf.
type ParsedEvent struct {
	Log     ID     // of one mail to several recipients: that of the first
	Address string // of the recipient; empty: not known, which a chunk does not allow
	Event   Event
}

// UnnamedEvent is an event that does not name its log, and what the provider says instead.
// Event has no attempt.
type UnnamedEvent struct {
	MessageID string // as Part.MessageID of the answer to the call; empty: not known
	Address   string // of the recipient; empty: not known
	Event     Event
}

// Webhook is a request to the URL of a provider's webhooks.
type Webhook struct {
	Method string
	URL    string // the configured public URL, with the query of the request
	Header http.Header
	Body   []byte // as it came
	At     time.Time
}

// Verified is what Verify says about a genuine webhook.
type Verified struct {
	// Replay is a value that a replay of the webhook would have, too, or "". If it has a '.',
	// the part before it is the same for webhooks that were signed at the same time.
	Replay string

	// Status is 0 for a webhook with events, which is stored. Otherwise the webhook only wants
	// this answer, as at the set-up of a webhook, and is not stored.
	Status      int
	ContentType string
	Answer      []byte
}

// WebhookError is the refusal of a webhook.
type WebhookError struct {
	Status int    // HTTP status that makes this provider stop or repeat, as intended
	Code   string // not_configured, bad_signature, stale, malformed
	Detail string
}

// Error implements error.
func (e *WebhookError) Error() string {
	return fmt.Sprintf("webhook refused: %s: %s", e.Code, e.Detail)
}

// EventBox is a choice at a provider that decides whether it reports events of some kinds.
type EventBox struct {
	Label string // the provider's words
	Kinds []EventKind
}

// EventSource says whether a provider reports events.
type EventSource string

// The event sources.
const (
	EventsWebhook EventSource = "webhook"
	EventsNone    EventSource = "none" // accepted counts as delivered, unconfirmed
)

// Provider is the configuration of a provider, without its secrets.
type Provider struct {
	Name        string        // also its namespace in routing keys
	Kind        string        // "sendgrid", "mailgun"
	Weight      int           // weight in the round robin, 1 to 1,000
	Concurrency int           // concurrent calls of all workers, 1 to 1,000
	Rate        float64       // recipients/s of all workers; 0: no limit
	CallRate    float64       // calls/s of all workers; 0: no limit
	ChunkLimit  int           // recipients per call, at most the adapter's maximum
	Timeout     time.Duration // of one call
	Events      EventSource
	Carries     Capabilities

	// EvidenceWindow is how long an unknown outcome waits for evidence; 0: the
	// engine's default.
	EvidenceWindow time.Duration
	// KeyLifetime is how long the provider answers the same call as it answered the first one; 0: it has
	// no keys. An adapter has a method of this name then, and composes equal bytes for equal calls.
	KeyLifetime time.Duration
}

// Refuses says why the provider cannot carry the message of a batch, or "". An envelope is one
// call, so that its addresses must fit into a call, and into the rate of a second.
func (p *Provider) Refuses(b *Batch) string {
	if b.Envelope != nil {
		switch n := b.Recipients; {
		case !p.Carries.Copies:
			return "it takes no message to several addresses"
		case p.ChunkLimit > 0 && p.ChunkLimit < n:
			return fmt.Sprintf("the message has %d addresses: a call has at most %d", n, p.ChunkLimit)
		case p.Rate > 0 && p.Rate < float64(n):
			return fmt.Sprintf("the message has %d addresses: its rate is %g a second", n, p.Rate)
		}
	}
	return p.Carries.Refuses(b)
}
