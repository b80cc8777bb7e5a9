package provider

import (
	"log/slog"
	"net/http"
	"time"
)

// Options configure a Simulator. The zero value is usable.
type Options struct {
	// RecipientKey is the metadata key (SendGrid custom arg, Mailgun v: variable)
	// whose value identifies a copy. If it is empty or a message lacks it, the address
	// in lower case identifies the copy.
	RecipientKey string

	// TimeScale is how many simulated seconds pass in a real one; 0 means 1. It
	// applies to every time that the providers define: flush timers, deferral, retry
	// schedules. It does not apply to Latency, EventDelay, look-ups, the Delay of a
	// fault, and the timestamps of events.
	TimeScale float64

	// EventDelay is the real time from acceptance (plus Latency) to the first event.
	// With 0 an event can overtake the answer to its call.
	EventDelay time.Duration

	Latency     time.Duration // real time until a call is answered; mail is stored at its beginning
	KeepContent bool          // keep rendered subject and bodies of copies; off for large runs

	LookupLag        time.Duration // real time until a look-up shows an event
	LookupWindow     time.Duration // real time for which look-ups show an event; 0 = without end
	LookupsPerSecond int           // look-ups of an account before it gets 429; 0 = without limit
	NoLogs           bool          // the key may not use Mailgun's and SendGrid's Logs APIs: 403
	NoLists          bool          // the key may not use the suppression lists: 403

	// Suppress puts addresses that bounced, complained or unsubscribed on the account's
	// suppression lists, as the providers do, so that the next mail to them is dropped. Without
	// it the lists have only what Simulator.Suppress adds.
	Suppress bool

	Logger *slog.Logger // nil = none
	Seed   uint64       // of everything random; 0 = a new one each time

	WebhookWorkers int               // parallel webhook requests per account; 0 = 8
	WebhookTimeout time.Duration     // 0 = 10s
	Transport      http.RoundTripper // for webhooks; nil = a new one

	FlushEvery time.Duration // SendGrid: how long events are collected, simulated time; 0 = 30s
	FlushCount int           // SendGrid: how many events are collected at most; 0 = 2000

	// The providers' documentation leaves these open.

	ResignRetries     bool // a repeated webhook has a new timestamp and signature
	NewEventIDOnRetry bool // SendGrid: a repeated event has another sg_event_id
	NoVersionHeaders  bool // Brevo: events do not bring back the header fields of message versions
	RetryDelivered    bool // Mailgun: delivered is retried like other events

	CallLogSize int // calls kept per account; 0 = 100,000
}
