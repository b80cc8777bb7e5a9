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

// Log is what is known of the mail to one recipient. Lists leave out Timeline, and lists of one batch also BatchID and
// Created.
type Log struct {
	ID    string `json:"id"`
	Email string `json:"email"`
	Name  string `json:"name,omitempty"`
	// Role is to, cc or bcc in a mail to several addresses, and empty for other mail.
	Role  string `json:"role,omitempty"`
	State State  `json:"state"`
	// Reason says in one stable word why the mail failed, and ReasonText in a sentence.
	Reason     string `json:"reason,omitempty"`
	ReasonText string `json:"reason_text,omitempty"`
	// EndedBy is no_provider_left or retries_used_up, if one of these ended a mail that failed for Reason.
	EndedBy string `json:"ended_by,omitempty"`
	// Detail is what the provider said.
	Detail string `json:"detail,omitempty"`
	// Providers has the providers that were tried, and whether each one delivered.
	Providers map[string]bool `json:"providers"`
	// Route has them in the order in which they were tried.
	Route             []string `json:"route"`
	Attempts          int      `json:"attempts"`
	Unconfirmed       bool     `json:"unconfirmed,omitempty"`
	PossibleDuplicate bool     `json:"possible_duplicate,omitempty"`
	// Waits says what a queued mail waits for.
	Waits *Wait `json:"waits,omitempty"`
	// Copies counts the copies that are known to be delivered.
	Copies int `json:"copies"`
	// Subject is as the recipient gets it.
	Subject string `json:"subject"`
	BatchID string `json:"batch_id,omitempty"`
	// User is the id of the log's user if that is not the caller.
	User    string    `json:"user,omitempty"`
	Created time.Time `json:"created_at,omitzero"`
	// DeliverAt, SendWindow and ExpiresAt are the times of this recipient. A zero DeliverAt is at once. Lists of logs do
	// not have the others.
	DeliverAt  time.Time   `json:"deliver_at,omitzero"`
	SendWindow *SendWindow `json:"send_window,omitempty"`
	ExpiresAt  time.Time   `json:"expires_at,omitzero"`

	Timeline []Moment `json:"timeline,omitempty"`
	// Metadata is that of the recipient.
	Metadata map[string]string `json:"metadata,omitempty"`
	// MessageID is your id of the message, if you gave it one.
	MessageID string `json:"message_id,omitempty"`
	// LeftOut has what providers that were tried could not carry of the message.
	LeftOut []LeftOut `json:"left_out,omitempty"`
}

// LeftOut is what a provider could not carry of a message.
type LeftOut struct {
	Provider string `json:"provider"`
	Text     string `json:"text"`
}

// Moment is one thing that happened to a mail.
type Moment struct {
	At time.Time `json:"at"`
	// What happened: accepted, attempt, repeat, answer, event, end, cancel or release.
	What string `json:"what"`
	// Attempt counts the attempts for this recipient: 1 is the first.
	Attempt  int    `json:"attempt,omitempty"`
	Provider string `json:"provider,omitempty"`
	Class    string `json:"class,omitempty"`
	Event    string `json:"event,omitempty"`
	Reason   string `json:"reason,omitempty"`
	// Status is that of HTTP or SMTP.
	Status         int     `json:"status,omitempty"`
	EnhancedStatus string  `json:"enhanced_status,omitempty"`
	BounceClass    string  `json:"bounce_class,omitempty"`
	TookMS         float64 `json:"took_ms,omitempty"`
	Text           string  `json:"text,omitempty"`
	// Because says why this was decided.
	Because string `json:"because,omitempty"`
	// By is who gave the command of a release, if that is still known.
	By    string `json:"by,omitempty"`
	Async bool   `json:"async,omitempty"`
	// Guess says that only the address links the event to its attempt.
	Guess bool `json:"guess,omitempty"`
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
	// Rerouted logs were tried at more than one provider, those with a PossibleDuplicate were sent again while an
	// outcome was unknown, and Doubled ones are known to have arrived more than once.
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

// Log returns the whole story of one recipient.
func (c *Client) Log(ctx context.Context, id string, options ...CallOption) (Log, error) {
	var out Log
	return out, c.get(ctx, route("logs", id), nil, &out, options)
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
