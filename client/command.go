package client

import (
	"context"
	"net/http"
	"time"
)

// Commands take effect within a second at every worker and are written into the audit trail, with the reason that the
// caller gives as why. They are idempotent.

// BatchControlResult says what a command about a batch or a log changed.
type BatchControlResult struct {
	BatchID string `json:"batch_id" schema:"BatchId"`
	// The log that was released, if it was one.
	LogID   string `json:"log_id,omitempty" schema:"BatchId"`
	Command string `json:"command" schema:"CommandKind"`
	// `true` if this was a dry run: `changed` and `recipients` say what the command would do, and the rest is the present
	// state.
	DryRun bool `json:"dry_run,omitempty"`
	// `false` if the command had nothing to change: it was in effect before, or no log has failed or is held.
	Changed bool `json:"changed"`
	// Recipients that the command reaches. A stop or a cancellation withholds their mail, and a resumption lets it go out.
	// A retry or a release sends it again, and new times apply to it. 0 if nothing changed; `null` if they could not be
	// counted.
	Recipients *int `json:"recipients"`
	// Whether the batch is stopped after the command.
	Stopped bool `json:"stopped"`
	// Whether the batch is cancelled after the command.
	Cancelled bool `json:"cancelled"`
	// Recipients of calls that have started and have no answer yet. `null` if they could not be counted.
	InFlight *int `json:"in_flight"`
	// For people: for example that mail may arrive twice, that calls are in flight, or what the mail still waits for.
	Warning string `json:"warning,omitempty"`
	// Of a change of the times, like the next two: the time after it. Absent if the batch is sent at once.
	DeliverAt  time.Time   `json:"deliver_at,omitzero"`
	SendWindow *SendWindow `json:"send_window,omitempty" schema:"SendWindow"`
	ExpiresAt  time.Time   `json:"expires_at,omitzero"`
}

// ControlResult says what a command about one thing changed.
type ControlResult struct {
	// Name of the user or the provider, ID of the rule or the message, or the address.
	Name    string `json:"name"`
	Command string `json:"command" schema:"CommandKind"`
	// `false` if the command was already in effect.
	Changed bool `json:"changed"`
}

// Reschedule has new times of a batch. It has DeliverAt, ExpiresAt or SendWindow.
type Reschedule struct {
	// When the mail is sent, as in a new batch: at most 365 days from now.
	DeliverAt time.Time `json:"deliver_at,omitzero" schema:"LocalTime"`
	// After this time nothing is handed over, as in a new batch.
	ExpiresAt time.Time `json:"expires_at,omitzero" schema:"LocalTime"`
	// When mail may leave, as in a new batch. `null` and `none` remove the window: the mail may leave at any time.
	SendWindow *SendWindow `json:"send_window,omitempty" schema:"WindowOrNone"`
	// IANA name of a time zone, like `Europe/Vienna`: of times without an offset, and of `send_window`.
	TimeZone string `json:"time_zone,omitempty"`
	Why      string `json:"why,omitempty" max:"500"` // Reason for the audit trail.
}

// RescheduleBatch changes the times of a batch that has not begun, until two seconds before its mail may leave for the
// first time (batch_begun). After it returns nothing leaves before the new time.
func (c *Client) RescheduleBatch(
	ctx context.Context, id string, r Reschedule, options ...CallOption,
) (out BatchControlResult, err error) {
	return out, c.send(ctx, http.MethodPatch, route("batches", id), r, &out, options)
}

// Release chooses held mail by time and provider.
type Release struct {
	// Name of a provider: release only mail that is held at it. Default: any provider.
	Provider string `json:"provider,omitempty"`
	// Earliest time of acceptance.
	From time.Time `json:"from" required:"true"`
	// Latest time of acceptance, at most 31 days after `from`.
	To time.Time `json:"to" required:"true"`
	// Reason for the audit trail.
	Why string `json:"why,omitempty" max:"500"`
}

// ReleaseResult says what was released.
type ReleaseResult struct {
	// `true` if this was a dry run: nothing was released.
	DryRun bool `json:"dry_run,omitempty"`
	// Released batches.
	Batches int `json:"batches"`
	// Recipients to whom mail is sent again.
	Recipients int `json:"recipients"`
	// For people. Empty if no batch was released.
	Warning string `json:"warning"`
}

// Block is a rule that keeps mail from being sent if the mail meets all fields that are set.
type Block struct {
	ID       string    `json:"id"`
	Provider string    `json:"provider,omitempty"`
	User     string    `json:"user,omitempty"`
	Sender   string    `json:"sender,omitempty"`
	Domain   string    `json:"domain,omitempty"`
	Fail     bool      `json:"fail,omitempty"`
	By       string    `json:"by,omitempty"`
	Why      string    `json:"why,omitempty"`
	At       time.Time `json:"at,omitzero"`
}

// BlockList has all block rules, oldest first.
type BlockList struct {
	Blocks []Block `json:"blocks"`
}

// NewBlock is a Block to add. At least one of the first four fields must be set.
type NewBlock struct {
	// Name of a provider. The rule then blocks mail only at this provider.
	Provider string `json:"provider,omitempty"`
	// ID or name of a user.
	User string `json:"user,omitempty"`
	// Address of a sender, or @domain for a whole domain.
	Sender string `json:"sender,omitempty"`
	// Domain of the recipient.
	Domain string `json:"domain,omitempty"`
	// `true`: blocked mail fails with reason `blocked`. `false`: it waits.
	Fail bool `json:"fail,omitempty"`
	// Reason for the audit trail.
	Why string `json:"why,omitempty" max:"500"`
}

// RestoreHold holds all mail that was accepted before a restore from a backup.
type RestoreHold struct {
	// Mail that was accepted before this time is held.
	Before time.Time `json:"before"`
	At     time.Time `json:"at"`
	// Who gave the command: the ID of a user, or `cli:` and a name.
	By  string `json:"by"`
	Why string `json:"why,omitempty"`
}

// HoldList has the holds in effect, oldest first.
type HoldList struct {
	Holds []RestoreHold `json:"holds"`
}

// LiftResult says what a command about holds changed.
type LiftResult struct {
	Command string `json:"command" schema:"CommandKind"`
	// `false` if nothing was held.
	Changed bool `json:"changed"`
}

// NewErasure names an address to erase, and the next part.
type NewErasure struct {
	// The address.
	Email string `json:"email" required:"true"`
	// `next_cursor` of the part before. Default: the first part.
	Cursor string `json:"cursor,omitempty"`
	// Reason for the audit trail.
	Why string `json:"why,omitempty" max:"500"`
}

// Erasure is what a part of an erasure has done.
type Erasure struct {
	Done bool `json:"done"`
	// Cursor of the next part; empty after the last.
	Next string `json:"next_cursor"`
	// Batches that were read.
	Batches int `json:"batches"`
	// Recipients that have lost the address.
	Recipients int `json:"recipients"`
	// Webhook posts that named the address.
	Posts int `json:"posts"`
	// Damaged batches: the address may be in them.
	Unreadable int `json:"unreadable"`
}
