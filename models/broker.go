package models

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Queue names one queue of the broker. Every provider has four (its own and its
// log retries, urgent and bulk); the generic consumer has two, events one.
type Queue struct {
	Kind     MessageKind
	Provider string // of provider and log queues
	Lane     Lane   // not of events
}

// Name is the queue's name without the broker's prefix: "batch.urgent",
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

// Binding is the topic pattern of the routing keys that the queue takes.
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

// Queues lists all queues for the given providers.
func Queues(providers []string) []Queue {
	out := []Queue{{Kind: EventMessage}}
	for _, lane := range []Lane{Urgent, Bulk} {
		out = append(out, Queue{Kind: BatchMessage, Lane: lane})
		for _, a := range providers {
			out = append(out, Queue{Kind: ProviderMessage, Provider: a, Lane: lane}, Queue{Kind: LogMessage, Provider: a, Lane: lane})
		}
	}
	return out
}

// Disposition is what becomes of a message after its handler.
type Disposition struct {
	kind  int
	delay time.Duration
	why   string
}

// Done ends the message.
func Done() Disposition { return Disposition{} }

// Later brings the message back after about d, without holding a worker.
func Later(d time.Duration) Disposition { return Disposition{kind: 1, delay: d} }

// Park puts the message aside for a person, with the reason, cut by ParkedWhy.
func Park(why string) Disposition { return Disposition{kind: 2, why: ParkedWhy(why)} }

// IsDone reports whether the message is over. IsDone, IsLater and IsPark tell
// implementations what the handler said.
func (d Disposition) IsDone() bool { return d.kind == 0 }

// IsLater reports whether the message is to come back, and after how long.
func (d Disposition) IsLater() (time.Duration, bool) { return d.delay, d.kind == 1 }

// IsPark reports whether the message is to be put aside, and why.
func (d Disposition) IsPark() (string, bool) { return d.why, d.kind == 2 }

// Handler works off one message. Its return value decides the message's fate;
// nothing else acknowledges. A panic is a failed delivery: the message comes
// back after a delay, and is parked after MaxDeliveries.
type Handler func(ctx context.Context, m Message) Disposition

// Run calls the handler. A panic is told by its text, cut by ParkedWhy, which is
// never empty.
func (h Handler) Run(ctx context.Context, m Message) (said Disposition, died string) {
	defer func() {
		if v := recover(); v != nil {
			if died = ParkedWhy(fmt.Sprint(v)); died == "" {
				died = "panic"
			}
		}
	}()
	return h(ctx, m), ""
}

// MaxDeliveries bounds how often a message whose handler dies is delivered
// before it is parked.
const MaxDeliveries = 20

// Parked is a message that was put aside.
type Parked struct {
	ID      string // opaque, for Unpark and Discard
	Message Message
	Raw     []byte // the body, where it is not a Message
	Key     string
	Why     string
	At      time.Time
}

// MaxParkedWhy bounds, in bytes, why a message was parked. What a handler says or
// dies of may be of any length, and what goes along with a message must fit into
// one frame of the broker.
const MaxParkedWhy = 1024

// ParkedWhy is a text as the reason for which a message is parked: valid UTF-8 of at
// most MaxParkedWhy bytes, the beginning of what is longer.
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

// Depth is how full a queue is.
type Depth struct {
	Queue   Queue
	Ready   int // waiting
	Unacked int // with a handler; -1 where the broker cannot tell
}

// Broker wakes consumers. It promises little, because the store is the truth:
// messages may be lost in a crash, doubled, late or out of order.
//
// All methods may be called by many goroutines at once. After Close they return
// ErrClosed.
type Broker interface {
	// Publish hands messages to the broker, in order. It returns nil only when
	// every one is in the queue that its key and lane lead to (or, with
	// NotBefore in the future, in a delay that leads there). A message without
	// an At gets one (Message.Stamp), and is handed over with it; the messages
	// of the caller are left as they are. Errors:
	// ErrUnroutable (no such queue; the others may have been taken),
	// ErrUnavailable (broker away, blocked or full: some may have been taken),
	// ErrInvalid (nothing was sent). It never blocks longer than ctx, and
	// without a deadline in ctx not longer than a few seconds.
	Publish(ctx context.Context, ms ...Message) error

	// Subscribe runs h for messages of q, at most concurrency at once, until
	// ctx ends; then no new message is started, running handlers are waited
	// for, and Subscribe returns nil. It survives the loss of the broker and
	// goes on when that is back. A message whose handler did not return
	// (crash, lost connection) is delivered again, possibly elsewhere and at
	// the same time. NotBefore is kept: a message is never handed over early
	// by more than 50 ms. Errors: ErrInvalid, ErrClosed.
	Subscribe(ctx context.Context, q Queue, concurrency int, h Handler) error

	// Depths tells how full the queues are. How old the oldest message is, no
	// broker has to know: workers find it out (QueueTimes). Errors:
	// ErrUnavailable.
	Depths(ctx context.Context) ([]Depth, error)

	// Parked lists up to limit parked messages, oldest first where the broker
	// can tell. A broker that has them in memory alone keeps some thousands, the
	// newest. Errors: ErrUnavailable.
	Parked(ctx context.Context, limit int) ([]Parked, error)

	// Unpark publishes a parked message again; Discard drops it. Of several who do
	// that to one message at once, in whatever process, one succeeds, and the others
	// get ErrNotFound. Errors: ErrNotFound, ErrUnavailable.
	Unpark(ctx context.Context, id string) error
	Discard(ctx context.Context, id string) error

	// Purge empties every queue and delay, the parking lot excepted.
	Purge(ctx context.Context) error

	// Ping reports whether messages can be published right now. Errors:
	// ErrUnavailable with the reason.
	Ping(ctx context.Context) error

	// Close ends publishing and subscriptions; running handlers are waited for.
	Close() error
}
