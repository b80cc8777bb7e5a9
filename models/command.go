package models

import (
	"strings"
	"time"
)

// CommandKind is what a command asks for. The words are part of the API: the audit
// trail shows them.
type CommandKind string

// The actions.
const (
	StopBatch    CommandKind = "batch.stop"    // no new call for it
	ResumeBatch  CommandKind = "batch.resume"  // ends a stop
	CancelBatch  CommandKind = "batch.cancel"  // what was not handed over yet is cancelled; for ever
	RetryBatch   CommandKind = "batch.retry"   // what failed and can be sent again without risk goes out again
	ReleaseBatch CommandKind = "batch.release" // what is held for an unknown outcome goes out again, and may double

	PauseUser  CommandKind = "user.pause" // no new call for any batch of the user
	ResumeUser CommandKind = "user.resume"
	SetSenders CommandKind = "user.senders" // which addresses the user may send from

	ProviderOffline CommandKind = "provider.offline" // no call through the provider
	ProviderDrain   CommandKind = "provider.drain"   // only mail that no other provider may take
	ProviderOnline  CommandKind = "provider.online"  // ends both
	ProviderProbe   CommandKind = "provider.probe"   // forgets all findings about it: it is tried at once

	AddBlock    CommandKind = "block.add"
	RemoveBlock CommandKind = "block.remove"

	HoldOld   CommandKind = "hold.add"  // no new call for batches that were accepted before a time
	LiftHolds CommandKind = "hold.lift" // ends all holds

	// The rest changes no rule: it is written down for the audit trail.
	CreatedKey CommandKind = "key.create"
	RevokedKey CommandKind = "key.revoke"
	Requeued   CommandKind = "parked.requeue"
	Discarded  CommandKind = "parked.discard"
)

// Withholds reports whether the action keeps mail from going out that went out
// before.
func (a CommandKind) Withholds() bool {
	switch a { //nolint:exhaustive // the others let it go, or do not concern it
	case StopBatch, CancelBatch, PauseUser, ProviderOffline, ProviderDrain, AddBlock, HoldOld:
		return true
	}
	return false
}

// Command is one line of the journal of orders, which only grows: numbers 1, 2,
// 3, …. A line is appended by compare-and-set on its number and never changes.
// The journal is the audit trail, too.
type Command struct {
	Number int         `json:"n"`
	Token  Token       `json:"t"` // who appended: settles an append whose outcome is unknown
	At     time.Time   `json:"at"`
	By     string      `json:"by"`            // a user's id, or "cli:" and the name of who ran the command
	Why    string      `json:"why,omitempty"` // in the words of who ordered it
	Kind   CommandKind `json:"do"`

	Batch    ID        `json:"b,omitzero"`
	Log      ID        `json:"l,omitzero"` // of a release: only this log
	User     string    `json:"u,omitempty"`
	Provider string    `json:"a,omitempty"` // of provider actions; of a release: only what is held at this provider
	Senders  []string  `json:"s,omitempty"` // of user.senders: addresses, or @domain for all of a domain
	Block    *Block    `json:"bl,omitempty"`
	Before   time.Time `json:"bf,omitzero"` // of hold.add
	Subject  string    `json:"o,omitempty"` // of actions that are only written down: what it was about
	Request  ID        `json:"q,omitzero"`  // of a retry or release: the request's, however often that is repeated
}

// Block is a rule that keeps mail from going out. It meets mail that all of its
// set fields meet.
type Block struct {
	ID       string    `json:"id"`
	Provider string    `json:"provider,omitempty"`
	User     string    `json:"user,omitempty"`
	Sender   string    `json:"sender,omitempty"` // an address, or @domain
	Domain   string    `json:"domain,omitempty"` // of the recipient
	Fail     bool      `json:"fail,omitempty"`   // mail fails with reason blocked; otherwise it waits
	By       string    `json:"by,omitempty"`
	Why      string    `json:"why,omitempty"`
	At       time.Time `json:"at,omitzero"`
}

// Meets reports whether a block meets mail of b to a recipient through an
// provider. An empty provider or recipient means any: then a rule that names
// one does not meet.
func (bl *Block) Meets(b *Batch, provider, recipient string) bool {
	return (bl.Provider == "" || bl.Provider == provider) && (bl.User == "" || bl.User == b.User) &&
		(bl.Sender == "" || SenderMatches(bl.Sender, b.Content.From.Email)) &&
		(bl.Domain == "" || strings.EqualFold(bl.Domain, DomainOf(recipient)))
}

// SenderMatches reports whether a pattern, an address or @domain, covers an
// address.
func SenderMatches(pattern, address string) bool {
	if strings.HasPrefix(pattern, "@") {
		return strings.EqualFold(pattern[1:], DomainOf(address))
	}
	return strings.EqualFold(pattern, address)
}

// DomainOf is what stands behind the last @ of an address.
func DomainOf(address string) string {
	return address[strings.LastIndexByte(address, '@')+1:]
}

// CommandConflictError is returned by Store.AppendCommand to a caller that lost the
// race for a number. Winner is the command that has the number.
type CommandConflictError struct{ Winner Command }

// Error implements error.
func (e *CommandConflictError) Error() string { return "the command log has this number already" }
