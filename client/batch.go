package client

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"maps"
	"net/http"
	"time"
)

// Lane is how urgent a batch is. The server chooses [Urgent] for small batches and [Bulk] for others.
type Lane string

// The lanes.
const (
	Urgent Lane = "urgent"
	Bulk   Lane = "bulk"
)

// OnUnknown says what happens if it is unknown whether a provider took a mail.
type OnUnknown string

// The choices for an unknown outcome.
const (
	// Hold fails the mail with the reason outcome_unknown.
	Hold OnUnknown = "hold"
	// Resend sends the mail again, so that it may arrive twice.
	Resend OnUnknown = "resend"
)

// NewBatch is one mail to each of many recipients.
type NewBatch struct {
	// From is an address by RFC 5322, with or without a name. A template may have it, too.
	From string `json:"from,omitempty"`
	// ReplyTo are up to 10 addresses for replies.
	ReplyTo []string `json:"reply_to,omitempty"`
	// Template is what the message is made from instead of Subject, Text and HTML: "name" for the published version, or
	// "name@version". Language is a tag like "de-AT".
	Template string `json:"template,omitempty"`
	Language string `json:"language,omitempty"`
	// Subject is one line of at most 998 bytes. Subject, Text and HTML may have {{placeholders}}.
	Subject string `json:"subject,omitempty"`
	// Text and HTML are the bodies; one of them must be set.
	Text string `json:"text,omitempty"`
	HTML string `json:"html,omitempty"`
	// Headers are up to 100 header fields of your own. Their values are lines of at most 998 bytes and may have
	// {{placeholders}}.
	Headers map[string]string `json:"headers,omitempty"`
	// Tags are up to 10 words for statistics, of at most 255 bytes. A provider that takes fewer gets the first ones.
	Tags []string `json:"tags,omitempty"`
	// Category is the kind of mail.
	Category string `json:"category,omitempty"`
	// Metadata are up to 100 values of your own, with 16,384 bytes together. No recipient sees them.
	Metadata map[string]string `json:"metadata,omitempty"`
	// Attachments are up to 100 files with 25,000,000 bytes together.
	Attachments []Attachment `json:"attachments,omitempty"`
	// TrackOpens and TrackClicks let the provider see who opens the mail and clicks its links.
	TrackOpens  bool `json:"track_opens,omitempty"`
	TrackClicks bool `json:"track_clicks,omitempty"`
	// Unsubscribe says whether recipients can unsubscribe by a link. By default they can if the mail is bulk, has a
	// category, and the server has a public URL.
	Unsubscribe *bool `json:"unsubscribe,omitempty"`
	// To are the recipients. Repeated addresses are dropped unless AllowDuplicates is set.
	To []Recipient `json:"to,omitempty"`
	// Together makes the batch one mail to all addresses, instead of one to each in To. It is needed if To has several.
	Together bool `json:"together,omitempty"`
	// CC and BCC are addresses, with or without a name, that get one mail together with To. They are at most 50 with it.
	// The others do not see those in BCC.
	CC              []string `json:"cc,omitempty"`
	BCC             []string `json:"bcc,omitempty"`
	AllowDuplicates bool     `json:"allow_duplicates,omitempty"`
	// Providers are the names of the providers that may be used, in the order in which they are tried. The default is
	// all, by weight.
	Providers []string  `json:"providers,omitempty"`
	Lane      Lane      `json:"lane,omitempty"`
	OnUnknown OnUnknown `json:"on_unknown,omitempty"`
	// DeliverAt is when the mail is sent, at most a year from now. The default is at once.
	DeliverAt time.Time `json:"deliver_at,omitzero"`
	// TimeZone is the time zone of a SendWindow that names none: an IANA name, like Europe/Vienna.
	TimeZone string `json:"time_zone,omitempty"`
	// SendWindow is when mail may leave. The default is that of the user, if there is one; see [AnyTime].
	SendWindow *SendWindow `json:"send_window,omitempty"`
	// ExpiresAt is when the mail expires: what no provider has taken by then fails. It is at most 30 days after DeliverAt,
	// or from now; the default is 7 days.
	ExpiresAt time.Time `json:"expires_at,omitzero"`
}

// AttachmentInfo describes an attachment of a batch.
type AttachmentInfo struct {
	Filename    string `json:"filename"`
	ContentType string `json:"content_type"`
	ContentID   string `json:"content_id,omitempty"` // Of an inline image.
	Size        int64  `json:"size"`                 // Bytes.
	SHA256      string `json:"sha256"`               // SHA-256 of the bytes, in hex.
}

// Recipient is whom a mail goes to.
type Recipient struct {
	// Email is an address by RFC 5322, with or without a name.
	Email string `json:"email"`
	Name  string `json:"name,omitempty"`
	// Vars are the values of placeholders: strings, numbers and booleans, and for templates also lists and objects. The
	// placeholders name and email have a value without them.
	Vars map[string]any `json:"vars,omitempty"`
	// Metadata are up to 100 values of your own, with 16,384 bytes together, which come back with the log.
	Metadata map[string]string `json:"metadata,omitempty"`
	// Headers are header fields in place of those of the batch with the same names.
	Headers map[string]string `json:"headers,omitempty"`
	// DeliverAt, TimeZone, SendWindow and ExpiresAt are in place of those of the batch, for this recipient. A batch may
	// have 1,000 different ones.
	DeliverAt  time.Time   `json:"deliver_at,omitzero"`
	TimeZone   string      `json:"time_zone,omitempty"`
	SendWindow *SendWindow `json:"send_window,omitempty"`
	ExpiresAt  time.Time   `json:"expires_at,omitzero"`
}

// OwnTimes counts the recipients of a batch who have times of their own.
type OwnTimes struct {
	Recipients int `json:"recipients"` // Recipients with times of their own.
	// When the first recipient of the batch, with or without own times, may leave.
	First time.Time `json:"first"`
	Last  time.Time `json:"last"` // When the last one may leave.
}

// Accepted is a batch that is stored and will be sent.
type Accepted struct {
	ID         string     `json:"id" schema:"BatchId"`
	State      BatchState `json:"state"`
	Recipients int        `json:"recipients"`
	Duplicates int        `json:"duplicates"`         // Dropped repetitions of addresses.
	Suppressed int        `json:"suppressed"`         // Recipients on a suppression list. Their logs have failed.
	Rejected   *Rejected  `json:"rejected,omitempty"` // Recipients that were left out. Absent without `mode=permissive`.
	Lane       Lane       `json:"lane"`
	// The limit that made the batch bulk although it would be urgent: too much other urgent mail leaves in the same
	// hour.
	LaneLimit string    `json:"lane_limit,omitempty" schema:"LimitName"`
	Created   time.Time `json:"created_at"`
	DeliverAt time.Time `json:"deliver_at,omitzero"` // When it is sent. Absent: at once.
	ExpiresAt time.Time `json:"expires_at"`          // After this time nothing is handed over to a provider.
	OwnTimes  *OwnTimes `json:"own_times,omitempty"` // Of a batch with recipients who have times of their own.
}

// BatchState says how far a batch is.
type BatchState string

// The states of a batch.
const (
	BatchScheduled BatchState = "scheduled"
	BatchQueued    BatchState = "queued"
	BatchSending   BatchState = "sending"
	BatchSent      BatchState = "sent"
	BatchDone      BatchState = "done"
	// BatchDamaged is the state of a batch in a list whose stored form cannot be read.
	BatchDamaged BatchState = "damaged"
)

// Batch is a batch with its counts.
type Batch struct {
	ID      string     `json:"id" schema:"BatchId"`
	User    string     `json:"user,omitempty"` // ID of the owner. Only present if it is not you.
	State   BatchState `json:"state"`
	Stopped bool       `json:"stopped,omitempty"` // Nothing is handed over until the batch is resumed.
	// Who stopped the batch: the ID of a user, `safedelivr` if too much of it bounced, or `cli:` and a name. If it is
	// another user or `cli:`, only an operator can resume the batch.
	StoppedBy  string    `json:"stopped_by,omitempty"`
	StoppedAt  time.Time `json:"stopped_at,omitzero"`
	StoppedWhy string    `json:"stopped_why,omitempty"` // The reason that was given.
	Cancelled  bool      `json:"cancelled,omitempty"`   // Mail that was not handed over is never sent.
	// Who cancelled the batch: the ID of a user, or `cli:` and a name.
	CancelledBy  string    `json:"cancelled_by,omitempty"`
	CancelledAt  time.Time `json:"cancelled_at,omitzero"`
	CancelledWhy string    `json:"cancelled_why,omitempty"` // The reason that was given.
	// What the batch waits for: the command that withholds it, or what its mail waits for first. In a list it is
	// present only if a command withholds the batch.
	Waits   *Wait  `json:"waits,omitempty"`
	Subject string `json:"subject"`
	// Of a batch with one recipient: the subject as it gets it.
	RenderedSubject string            `json:"rendered_subject,omitempty"`
	From            Address           `json:"from"`
	ReplyTo         []Address         `json:"reply_to,omitempty"`
	Template        *TemplateUse      `json:"template,omitempty"` // That the content was made from.
	Tags            []string          `json:"tags,omitempty" schema:"Tag"`
	Attachments     []AttachmentInfo  `json:"attachments,omitempty"`
	Category        string            `json:"category,omitempty"`
	Metadata        map[string]string `json:"metadata,omitempty"`
	Lane            Lane              `json:"lane,omitempty"`
	// The limit that made the batch bulk although it would be urgent: too much other urgent mail leaves in the same
	// hour.
	// Via is the API of another service, like `mailgun`, or the protocol `smtp`, by which it came. Empty: the own API.
	Via        string    `json:"via,omitempty"`
	LaneLimit  string    `json:"lane_limit,omitempty" schema:"LimitName"`
	OnUnknown  OnUnknown `json:"on_unknown,omitempty"`
	Providers  []string  `json:"providers,omitempty"`
	Recipients int       `json:"recipients"`
	Duplicates int       `json:"duplicates"`
	To         int       `json:"to,omitempty"`       // Number of recipients in to of one mail. Absent if there is one.
	CC         int       `json:"cc,omitempty"`       // Number of recipients in cc. Absent if there is none.
	BCC        int       `json:"bcc,omitempty"`      // Number of recipients in bcc. Absent if there is none.
	Rejected   *Rejected `json:"rejected,omitempty"` // Recipients that were left out. Absent: none.
	Counts     Counts    `json:"counts"`
	Created    time.Time `json:"created_at"`
	DeliverAt  time.Time `json:"deliver_at,omitzero"` // When it is sent. Absent: at once.
	// The next `deliver_at` of the batch or of a recipient. Absent: all have come, or nothing is sent any more.
	DueAt      time.Time   `json:"due_at,omitzero"`
	SendWindow *SendWindow `json:"send_window,omitempty"`
	ExpiresAt  time.Time   `json:"expires_at,omitzero"`
	OwnTimes   *OwnTimes   `json:"own_times,omitempty"` // Of a batch with recipients who have times of their own.
}

// Wait says what queued mail waits for.
type Wait struct {
	Code string `json:"code" schema:"WaitCode"`
	Text string `json:"text"` // For people.
	// When the wait ends at the latest, or when the mail is tried again. Absent if that is unknown.
	Until    time.Time `json:"until,omitzero"`
	Provider string    `json:"provider,omitempty"` // The provider that the mail waits for, if it is one.
	BlockID  string    `json:"block_id,omitempty"` // The block rule that the mail waits for.
	// If a command withholds it: who gave the command, as the ID of a user, or `cli:` and a name.
	By    string    `json:"by,omitempty"`
	Why   string    `json:"why,omitempty"`  // If a command withholds it: the reason that was given.
	Since time.Time `json:"since,omitzero"` // If a command withholds it: when the command was given.
	// Number of the retry that follows. Absent if the next attempt is none.
	Retry   int `json:"retry,omitempty" min:"1"`
	Retries int `json:"retries,omitempty" min:"1"` // How many retries there may be at most. Present with `retry`.
}

// Address is an address with an optional name.
type Address struct {
	Email string `json:"email"`
	Name  string `json:"name,omitempty"`
}

// Counts are numbers of recipients. Accepted is always the sum of Queued, Sent, Delivered,
// Failed and Cancelled.
type Counts struct {
	Accepted int64 `json:"accepted"`
	// Logs that wait here.
	Queued int64 `json:"queued"`
	// Logs that a provider accepted and has not reported on. `queued` and `sent` together have no final state.
	Sent      int64 `json:"sent"`
	Delivered int64 `json:"delivered"`
	Failed    int64 `json:"failed"`
	Cancelled int64 `json:"cancelled"`
	// Successes at providers that do not report deliveries.
	Unconfirmed int64 `json:"unconfirmed"`
	// Recipients that were tried at more than one provider.
	Rerouted int64 `json:"rerouted"`
	// Recipients that were tried again while an outcome was unknown.
	PossibleDuplicates int64 `json:"possible_duplicates"`
	// Recipients that are known to have got the mail more than once.
	Doubled int64 `json:"doubled"`
	// Failed recipients by reason.
	FailedReasons map[string]int64 `json:"failed_reasons"`
	// Recipients about whom a provider reported an event of a kind, at least once.
	Events EventCounts `json:"events"`
	// Counts by provider.
	Providers map[string]ProviderCounts `json:"providers"`
}

// Ended returns the number of recipients who are delivered or failed.
func (c Counts) Ended() int64 { return c.Delivered + c.Failed }

// Open returns the number of recipients who are queued or sent.
func (c Counts) Open() int64 { return c.Queued + c.Sent }

// Of returns the number of recipients in a state.
func (c Counts) Of(s State) int64 {
	return map[State]int64{
		Queued: c.Queued, Sent: c.Sent, Delivered: c.Delivered, Failed: c.Failed, Cancelled: c.Cancelled,
	}[s]
}

// EventCounts are numbers of recipients with an event of a kind. A recipient may have bounced at one provider and got
// the mail from another.
type EventCounts struct {
	Deferred     int64 `json:"deferred"`
	Bounced      int64 `json:"bounced"`
	Complained   int64 `json:"complained"`
	Unsubscribed int64 `json:"unsubscribed"`
	Opened       int64 `json:"opened"`
	Clicked      int64 `json:"clicked"`
}

// ProviderCounts are numbers of recipients at one provider.
type ProviderCounts struct {
	// Recipients that were tried at this provider.
	Tried int64 `json:"tried"`
	// Recipients that the provider delivered to.
	Delivered int64 `json:"delivered"`
	// Recipients that the provider refused in their last attempt at it.
	Refused int64 `json:"refused"`
	// Recipients that the provider accepted and could not deliver to.
	Failed int64 `json:"failed"`
	// Recipients that the provider accepted and that have no final event yet.
	Waiting int64 `json:"waiting"`
	// Recipients of calls without an answer yet: the calls run, or their worker stopped.
	Pending int64 `json:"pending"`
	// Recipients whose outcome at the provider is unknown.
	Unknown int64 `json:"unknown"`
}

// CreateBatch sends a mail to many recipients. The server stores the whole batch before it answers. After an error with
// any code but acceptance_unknown, nothing of it will be sent.
func (c *Client) CreateBatch(ctx context.Context, b NewBatch, options ...CallOption) (Accepted, error) {
	var out Accepted
	return out, c.post(ctx, route("batches"), b, &out, options)
}

// StreamBatch is CreateBatch for recipients that are too many to hold in memory: b.To must be empty, and each element
// of to is sent when it is produced. It stops to early if the request ends.
func (c *Client) StreamBatch(
	ctx context.Context, b NewBatch, to iter.Seq[Recipient], options ...CallOption,
) (Accepted, error) {
	var out Accepted
	if len(b.To) > 0 {
		return out, fmt.Errorf("StreamBatch: the batch itself has %d recipients", len(b.To))
	}
	head, err := json.Marshal(b)
	if err != nil {
		return out, err
	}
	r, w := io.Pipe()
	written := make(chan struct{})
	go func() {
		defer close(written)
		_ = w.CloseWithError(writeRecipients(w, head, to)) // the reader of the pipe gets the error
	}()
	call := newCall(http.MethodPost, route("batches"), options)
	call.body = r
	err = c.do(ctx, call, &out)
	_ = r.Close() // the writer stops if the answer came early
	<-written
	return out, err
}

// CreateBatchJSON is CreateBatch for a batch that is encoded as JSON already, as api/openapi.yaml describes it.
func (c *Client) CreateBatchJSON(ctx context.Context, body io.Reader, options ...CallOption) (Accepted, error) {
	call := newCall(http.MethodPost, route("batches"), options)
	call.body = body
	var out Accepted
	return out, c.do(ctx, call, &out)
}

// writeRecipients writes the batch whose other members are in head.
func writeRecipients(to io.Writer, head []byte, recipients iter.Seq[Recipient]) error {
	w := bufio.NewWriter(to)
	_, _ = w.Write(head[:len(head)-1]) // errors of the buffer stay until Flush
	_, _ = w.WriteString(`,"to":[`)
	comma := ""
	for r := range recipients {
		raw, err := json.Marshal(r)
		if err != nil {
			return err
		}
		_, _ = w.WriteString(comma)
		if _, err := w.Write(raw); err != nil {
			return err
		}
		comma = ","
	}
	_, _ = w.WriteString("]}")
	return w.Flush()
}

// BatchOptions choose batches. The zero value chooses all of the caller.
type BatchOptions struct {
	// State is scheduled, queued, sending, sent, done, stopped or cancelled. Those that are scheduled have mail whose
	// time has not come, and are listed in the order of time.
	State string
	// Subject and Sender are parts of the subject and of the sender's address, in any case.
	Subject, Sender string
	// Tag is one of the batch.
	Tag string
	// User is the id of another user, and Everyone chooses the batches of all users. Both need the scope operate.
	User     string
	Everyone bool
	// From and To bound the time of acceptance: [From, To).
	From, To time.Time
	// Recipients chooses the batches that have, for each of these properties, a recipient with it.
	Recipients LogOptions
}

// FindBatches returns batches, newest first or, if they are scheduled, next due first.
func (c *Client) FindBatches(ctx context.Context, o BatchOptions) iter.Seq2[Batch, error] {
	query := o.Recipients.query()
	query.Del("state")
	maps.Copy(query, parameters(map[string]string{
		"state":           o.State,
		"recipient_state": string(o.Recipients.State),
		"subject":         o.Subject,
		"sender":          o.Sender,
		"tag":             o.Tag,
		"user":            o.User,
		"everyone":        flag(o.Everyone),
		"from":            moment(o.From),
		"to":              moment(o.To),
	}))
	return list[Batch](ctx, c, listing{path: route("batches"), name: "batches", query: query}, o.Recipients.ListOptions)
}

// Batches returns the caller's batches, newest first.
func (c *Client) Batches(ctx context.Context, o ListOptions) iter.Seq2[Batch, error] {
	return list[Batch](ctx, c, listing{path: route("batches"), name: "batches"}, o)
}
