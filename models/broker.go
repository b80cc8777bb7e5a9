package models

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Queue names one queue of the broker. Every provider has four: its own and its log
// retries, urgent and bulk each. Batches have two, events one.
type Queue struct {
	Kind     MessageKind
	Provider string // of provider and log queues only
	Lane     Lane   // empty for events
}

// Name returns the queue's name without the broker's prefix: "batch.urgent",
// "sg.bulk", "log.sg.bulk", "event".
func (q Queue) Name() string {
	switch q.Kind {
	case EventMessage:
		return "event"
	case BatchMessage:
		return "batch." + string(q.Lane)
	case LogMessage:
		return "log." + q.Provider + "." + string(q.Lane)
	case ProviderMessage:
	}
	return q.Provider + "." + string(q.Lane)
}

// Binding returns the topic pattern of the routing keys that the queue takes.
func (q Queue) Binding() string {
	switch q.Kind {
	case EventMessage:
		return "event.#"
	case BatchMessage:
		return "batch.#"
	case LogMessage:
		return "log." + q.Provider + ".#"
	case ProviderMessage:
	}
	return q.Provider + ".#"
}

// Queues returns all queues for the given providers.
func Queues(providers []string) []Queue {
	out := []Queue{{Kind: EventMessage}}
	for _, lane := range []Lane{Urgent, Bulk} {
		out = append(out, Queue{Kind: BatchMessage, Lane: lane})
		for _, p := range providers {
			out = append(out, Queue{Kind: ProviderMessage, Provider: p, Lane: lane},
				Queue{Kind: LogMessage, Provider: p, Lane: lane})
		}
	}
	return out
}

// Disposition says what the broker does with a message after its handler.
type Disposition struct {
	kind  int
	delay time.Duration
	why   string
}

// Done ends the message.
func Done() Disposition { return Disposition{} }

// Later delivers the message again after about d. No worker waits for it.
func Later(d time.Duration) Disposition { return Disposition{kind: 1, delay: d} }

// Park puts the message into the parking lot, for review by an operator. ParkedWhy cuts
// the reason.
func Park(why string) Disposition { return Disposition{kind: 2, why: ParkedWhy(why)} }

// IsDone reports whether the message is done. IsDone, IsLater and IsPark are for
// implementations of Broker.
func (d Disposition) IsDone() bool { return d.kind == 0 }

// IsLater reports whether to deliver the message again, and after how long.
func (d Disposition) IsLater() (time.Duration, bool) { return d.delay, d.kind == 1 }

// IsPark reports whether to park the message, and why.
func (d Disposition) IsPark() (string, bool) { return d.why, d.kind == 2 }

// Handler processes one message. Its return value decides what the broker does with the message;
// nothing else acknowledges. A panic is a failed delivery: the message is delivered
// again after a delay, and is parked after MaxDeliveries.
type Handler func(ctx context.Context, m Message) Disposition

// Run calls the handler. If it panics, panicked is the text of the panic, cut by
// ParkedWhy, and never empty.
func (h Handler) Run(ctx context.Context, m Message) (disposition Disposition, panicked string) {
	defer func() {
		if v := recover(); v != nil {
			if panicked = ParkedWhy(fmt.Sprint(v)); panicked == "" {
				panicked = "panic"
			}
		}
	}()
	return h(ctx, m), ""
}

// MaxDeliveries bounds how often a message whose handler panics is delivered before
// it is parked.
const MaxDeliveries = 20

// Parked is a message in the parking lot.
type Parked struct {
	ID      string // opaque, for Unpark and Discard
	Message Message
	Raw     []byte    // the body, if it is not a Message
	Key     string    // routing key
	Why     string    // why it was parked; empty: unknown
	At      time.Time // when it was parked; zero: unknown
}

// MaxParkedWhy bounds the reason why a message was parked, in bytes. The text of a
// handler or of a panic may have any length, and must fit into one frame of the broker.
const MaxParkedWhy = 1024

// ParkedWhy returns text as the reason why a message is parked: valid UTF-8, cut to
// MaxParkedWhy bytes.
func ParkedWhy(text string) string {
	text = strings.ToValidUTF8(text[:min(len(text), 2*MaxParkedWhy)], "\uFFFD")
	if len(text) <= MaxParkedWhy {
		return text
	}
	const more = "…"
	end := MaxParkedWhy - len(more)
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + more
}

// Depth says how full a queue is.
type Depth struct {
	Queue   Queue
	Ready   int // waiting
	Unacked int // with a handler; -1 if the broker does not know
}

// MaxWoken bounds the users of one wake.
const MaxWoken = 1000

// WakeKey is the routing key of wakes.
const WakeKey = "feed"

// ValidateWake returns ErrInvalid if there is no wake of these users.
func ValidateWake(users []string) error {
	if len(users) == 0 || len(users) > MaxWoken {
		return fmt.Errorf("%w: a wake of %d users", ErrInvalid, len(users))
	}
	return nil
}

// Broker wakes consumers. It promises little, because the store holds the truth:
// messages may be lost in a crash, doubled, late or out of order.
//
// All methods may be called by many goroutines at once. After Close they return
// ErrClosed.
type Broker interface {
	// Publish hands messages to the broker, in order. It returns nil only if every
	// message is in the queue that its key and lane lead to or, with NotBefore in
	// the future, in a delay that leads there. A message without an At gets one
	// (Message.Stamp); the caller's messages are not changed. It never blocks
	// longer than ctx or, without a deadline in ctx, a few seconds. Errors:
	// ErrUnroutable (no such queue; the other messages may have been taken),
	// ErrUnavailable (the broker is away, blocked or full; some messages may have
	// been taken), ErrInvalid (nothing was sent).
	Publish(ctx context.Context, ms ...Message) error

	// Subscribe runs h for messages of q, at most concurrency at once, until ctx
	// ends. Then it starts no more handlers, waits for the running ones, and
	// returns nil. If the broker is lost, it continues when the broker is back. A
	// message whose handler did not return (crash, lost connection) is delivered
	// again, possibly elsewhere and at the same time. A message is delivered at most
	// 50 ms before its NotBefore. Errors: ErrInvalid, ErrClosed.
	Subscribe(ctx context.Context, q Queue, concurrency int, h Handler) error

	// Wake calls the subscribers of all processes because the feeds of 1 to MaxWoken users
	// have grown. A wake waits for no subscriber: one that is not running, or that has
	// many wakes to handle, does not get it. Errors: ErrUnavailable, ErrInvalid.
	Wake(ctx context.Context, users ...string) error

	// SubscribeWakes calls h with the users of each wake, one wake after the other,
	// until ctx ends. Then it returns nil. If the broker is lost, it continues when the
	// broker is back. Errors: ErrClosed.
	SubscribeWakes(ctx context.Context, h func(users []string)) error

	// Depths returns how full the queues are. A broker need not know how old the
	// oldest message is: workers find out. Errors: ErrUnavailable.
	Depths(ctx context.Context) ([]Depth, error)

	// Parked returns up to limit parked messages, oldest first if the broker knows
	// their times. A broker that keeps them in memory keeps only the newest
	// thousands. Errors: ErrUnavailable.
	Parked(ctx context.Context, limit int) ([]Parked, error)

	// Unpark publishes a parked message again; Discard drops it. If several callers
	// in any processes do that to one message at once, one of them succeeds and the
	// others get ErrNotFound. Errors: ErrNotFound, ErrUnavailable.
	Unpark(ctx context.Context, id string) error
	Discard(ctx context.Context, id string) error

	// Purge empties every queue and delay, but not the parking lot. Wakes are in none.
	Purge(ctx context.Context) error

	// Ping returns nil if messages can be published now. Errors: ErrUnavailable with
	// the reason.
	Ping(ctx context.Context) error

	// Close ends publishing and subscriptions and waits for running handlers.
	// Calling it again does nothing.
	Close() error
}

// MessageKind is the kind of a message.
type MessageKind string

// The kinds of message.
const (
	BatchMessage    MessageKind = "batch"    // dispatch a chunk through any provider
	ProviderMessage MessageKind = "provider" // dispatch a chunk through one provider
	LogMessage      MessageKind = "log"      // dispatch one recipient through one provider
	EventMessage    MessageKind = "event"    // process an inbox entry
)

// Message wakes a consumer. It carries IDs and no content. Losing, doubling, delaying
// or reordering messages costs only time.
type Message struct {
	Kind      MessageKind `json:"k"`
	Provider  string      `json:"a,omitempty"` // of provider, log and event messages: the namespace
	ID        ID          `json:"id"`          // chunk, log or inbox entry
	Retry     int         `json:"r,omitempty"` // #num of the routing key
	Lane      Lane        `json:"l,omitempty"` // not of events
	NotBefore time.Time   `json:"nb,omitzero"` // earliest delivery
	At        time.Time   `json:"at,omitzero"` // when it was queued; the broker sets it
}

// Stamp sets At, unless it is set, to now. If NotBefore is later than At, it sets At to
// NotBefore.
func (m *Message) Stamp(now time.Time) {
	if m.At.IsZero() {
		m.At = now.UTC().Round(0)
	}
	if m.NotBefore.After(m.At) {
		m.At = m.NotBefore.UTC().Round(0)
	}
}

// Key returns the routing key: batch.<uuid>, <ns>.<uuid> or log.<ns>.<uuid>, with
// .retry.N from the first retry on, or event.<ns>.
func (m *Message) Key() string {
	var b strings.Builder
	b.Grow(64)
	switch m.Kind {
	case EventMessage:
		return "event." + m.Provider
	case BatchMessage:
		b.WriteString("batch.")
	case LogMessage:
		b.WriteString("log.")
		b.WriteString(m.Provider)
		b.WriteByte('.')
	case ProviderMessage:
		b.WriteString(m.Provider)
		b.WriteByte('.')
	}
	b.WriteString(m.ID.String())
	if m.Retry > 0 {
		b.WriteString(".retry.")
		b.WriteString(strconv.Itoa(m.Retry))
	}
	return b.String()
}

// Validate returns an error if m cannot be published.
func (m *Message) Validate() error {
	switch m.Kind {
	case BatchMessage, ProviderMessage, LogMessage, EventMessage:
	default:
		return fmt.Errorf("%w: message kind %q", ErrInvalid, m.Kind)
	}
	if m.ID.IsZero() {
		return fmt.Errorf("%w: message without an id", ErrInvalid)
	}
	if m.Kind != BatchMessage && !ValidProviderName(m.Provider) {
		return fmt.Errorf("%w: message for provider %q", ErrInvalid, m.Provider)
	}
	if m.Kind != EventMessage && !m.Lane.Valid() {
		return fmt.Errorf("%w: message in lane %q", ErrInvalid, m.Lane)
	}
	if m.Retry < 0 {
		return fmt.Errorf("%w: message with retry %d", ErrInvalid, m.Retry)
	}
	return nil
}

// ValidProviderName reports whether s can be the name of a provider. The name is one
// word of the routing keys: 1 to 32 characters of a-z, 0-9 and '-', beginning with a
// letter. The names batch, log, event and feed are reserved.
func ValidProviderName(s string) bool {
	if s == "" || len(s) > 32 || s == "batch" || s == "log" || s == "event" || s == WakeKey {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		if !(c >= 'a' && c <= 'z') && (i == 0 || !(c >= '0' && c <= '9' || c == '-')) {
			return false
		}
	}
	return true
}

// MatchKey reports whether a topic binding matches a routing key. In a binding '*'
// matches one word and '#' any number of words.
func MatchKey(binding, key string) bool {
	return matchWords(strings.Split(binding, "."), strings.Split(key, "."))
}

func matchWords(b, k []string) bool {
	for len(b) > 0 {
		if b[0] == "#" {
			for i := 0; i <= len(k); i++ {
				if matchWords(b[1:], k[i:]) {
					return true
				}
			}
			return false
		}
		if len(k) == 0 || b[0] != "*" && b[0] != k[0] {
			return false
		}
		b, k = b[1:], k[1:]
	}
	return len(k) == 0
}
