package client

import (
	"context"
	"iter"
	"maps"
	"net/url"
	"time"
)

// State is the state of the mail to one recipient.
type State string

// The states of a log.
const (
	Queued    State = "queued" // it waits at Safedelivr
	Sent      State = "sent"   // a provider accepted it and has not reported the result
	Delivered State = "delivered"
	Failed    State = "failed"
	Cancelled State = "cancelled"
)

// LogFields are what lists of one batch have of the mail to one recipient.
type LogFields struct {
	ID    string `json:"id" schema:"BatchId"`
	Email string `json:"email"` // Empty if the address was erased.
	Name  string `json:"name,omitempty"`
	// Where a mail to several addresses, with `cc` or `bcc`, names this one. Absent for other mail.
	Role       string `json:"role,omitempty" enum:"to,cc,bcc"`
	Subject    string `json:"subject"` // As the recipient gets it. Empty if the content was removed.
	State      State  `json:"state"`
	Reason     string `json:"reason,omitempty"`      // Why the log failed: the cause of its last failure. Stable.
	ReasonText string `json:"reason_text,omitempty"` // For people: why the log failed, or what it waits for.
	// What ended the attempts, if `reason` alone did not end them.
	EndedBy string `json:"ended_by,omitempty" enum:"no_provider_left,retries_used_up"`
	Detail  string `json:"detail,omitempty"` // The text of the provider.
	// The providers that were tried. `true` if the provider delivered the mail.
	Providers map[string]bool `json:"providers"`
	// The providers that were tried, in that order. One that was tried again after another is there again.
	Route    []string `json:"route"`
	Attempts int      `json:"attempts" min:"0"` // Attempts for this recipient.
	// Success at a provider that does not report deliveries.
	Unconfirmed bool `json:"unconfirmed,omitempty"`
	// The mail was sent again while an outcome was unknown.
	PossibleDuplicate bool `json:"possible_duplicate,omitempty"`
	Copies            int  `json:"copies"` // Known deliveries.
	// When the mail to this recipient is sent. Absent: at once.
	DeliverAt time.Time         `json:"deliver_at,omitzero"`
	Waits     *Wait             `json:"waits,omitempty"`
	Metadata  map[string]string `json:"metadata,omitempty"`
	// Your id of the message, if you gave it one. It is there as long as the content is kept.
	MessageID string `json:"message_id,omitempty"`
	// The Message-ID of the mail, in angle brackets, if `headers` had one.
	RFCMessageID string `json:"rfc_message_id,omitempty"`
}

// FoundLog is what lists of the logs of all batches have.
type FoundLog struct {
	LogFields
	BatchID string    `json:"batch_id" schema:"BatchId"`
	User    string    `json:"user,omitempty"` // ID of the user who sent it. Missing if that is you.
	Created time.Time `json:"created_at"`
}

// Log is what is known of the mail to one recipient. The fields that lists do not have are empty in lists.
type Log struct {
	FoundLog
	SendWindow *SendWindow `json:"send_window,omitempty"`
	ExpiresAt  time.Time   `json:"expires_at,omitzero"`
	Timeline   []Moment    `json:"timeline"`
	// What providers that were tried could not carry of the message, and which providers could not carry it at all.
	LeftOut []LeftOut `json:"left_out,omitempty"`
}

// LeftOut is what a provider could not carry of a message.
type LeftOut struct {
	Provider string `json:"provider"`
	Text     string `json:"text"` // For people.
}

// Moment is one thing that happened to a mail.
type Moment struct {
	At time.Time `json:"at"`
	// `accepted`: the batch was accepted. `attempt`: a call to a provider began. `repeat`: the call was made again, to
	// learn its outcome. `answer`: the provider answered. `event`: the provider reported an event. `end`: nothing more
	// is tried. `cancel` and `release`: a command.
	What           string  `json:"what" enum:"accepted,attempt,repeat,answer,event,end,cancel,release"`
	Attempt        int     `json:"attempt,omitempty" min:"1"` // Counts the attempts for this recipient: 1 is the first.
	Provider       string  `json:"provider,omitempty"`
	Class          string  `json:"class,omitempty"`           // Class of the answer, like `accepted` or `unavailable`.
	Event          string  `json:"event,omitempty"`           // Kind of the event, like `delivered` or `bounced`.
	Reason         string  `json:"reason,omitempty"`          // Why the attempt or the log failed. Stable.
	Status         int     `json:"status,omitempty"`          // HTTP or SMTP status code.
	EnhancedStatus string  `json:"enhanced_status,omitempty"` // Enhanced SMTP status code, like `5.1.1`.
	BounceClass    string  `json:"bounce_class,omitempty"`    // The provider's class of a bounce.
	TookMS         float64 `json:"took_ms,omitempty"`         // Duration of the call.
	Text           string  `json:"text,omitempty"`            // Text of the provider or of the receiving server.
	Because        string  `json:"because,omitempty"`         // The reason for this step.
	// Of a release: who gave the command, if that is still known: a user's id, or `cli:` and a name.
	By    string `json:"by,omitempty"`
	Async bool   `json:"async,omitempty"` // Of a bounce: the receiving server had accepted the mail before.
	Guess bool   `json:"guess,omitempty"` // Of a bounce: only its address says which attempt it is about.
}

// LogOptions choose logs by what happened to them. The zero value chooses all.
type LogOptions struct {
	ListOptions
	State  State
	Reason string
	// Provider is one that was tried, and Result the result of its newest attempt: delivered, refused, failed, waiting or
	// unknown.
	Provider string
	Result   string
	// Rerouted logs were tried at more than one provider. Those with a PossibleDuplicate were sent again while an outcome
	// was unknown. Doubled ones are known to have arrived more than once.
	Rerouted, PossibleDuplicate, Doubled bool
}

// query returns the parameters of a list.
func (o *LogOptions) query() url.Values {
	return parameters(map[string]string{
		"state":              string(o.State),
		"reason":             o.Reason,
		"provider":           o.Provider,
		"result":             o.Result,
		"rerouted":           flag(o.Rerouted),
		"possible_duplicate": flag(o.PossibleDuplicate),
		"doubled":            flag(o.Doubled),
	})
}

// FindOptions choose logs of all batches. The zero value chooses all of the caller.
type FindOptions struct {
	LogOptions
	// Email is a complete address, or a domain with an @ before it. Part is a part of an address. Case does not matter.
	Email, Part string
	// Tag is one of the batch.
	Tag string
	// From and To bound the time of acceptance: [From, To).
	From, To time.Time
	// Everyone chooses the mail of all users. It needs the scope operate.
	Everyone bool
}

// Logs returns the logs of a batch, in the order of its recipients.
func (c *Client) Logs(ctx context.Context, batchID string, o LogOptions) iter.Seq2[Log, error] {
	l := listing{path: route("batches", batchID, "logs"), name: "logs", query: o.query()}
	return list[Log](ctx, c, l, o.ListOptions)
}

// SearchLogs returns logs of all batches, newest first. By its address a log is found from its first attempt on, until
// its address is removed.
func (c *Client) SearchLogs(ctx context.Context, o FindOptions) iter.Seq2[Log, error] {
	query := o.query()
	maps.Copy(query, parameters(map[string]string{
		"email":    o.Email,
		"q":        o.Part,
		"tag":      o.Tag,
		"from":     moment(o.From),
		"to":       moment(o.To),
		"everyone": flag(o.Everyone),
	}))
	return list[Log](ctx, c, listing{path: route("logs"), name: "logs", query: query}, o.ListOptions)
}
