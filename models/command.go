package models

import (
	"iter"
	"slices"
	"strings"
	"time"
)

// CommandKind is a kind of command. Its text is part of the API: the audit trail shows it. What else is known of a
// kind is in commandKinds.
type CommandKind string

// The kinds of command.
const (
	StopBatch    CommandKind = "batch.stop"    // no new call for the batch
	ResumeBatch  CommandKind = "batch.resume"  // ends a stop
	CancelBatch  CommandKind = "batch.cancel"  // cancels unsent mail permanently
	RetryBatch   CommandKind = "batch.retry"   // sends failed mail again if that is safe
	ReleaseBatch CommandKind = "batch.release" // sends mail with an unknown outcome again; it may double

	TryBatch CommandKind = "batch.try" // mail that waits for a retry is due at once

	RescheduleBatch CommandKind = "batch.reschedule" // changes the times of a batch that has not begun

	PauseUser  CommandKind = "user.pause" // no new call for any batch of the user
	ResumeUser CommandKind = "user.resume"
	SetSenders CommandKind = "user.senders" // sets the addresses that the user may send from

	SetDefaults CommandKind = "user.defaults" // sets the time zone and the window of batches that name none

	SetLimits CommandKind = "user.limits" // sets the limits of the user or of one key

	DisableUser CommandKind = "user.disable"      // no key, session or login; accepted mail goes on
	EnableUser  CommandKind = "user.enable"       // ends a disable; the sessions stay ended
	EndSessions CommandKind = "user.end_sessions" // ends all sessions of the user that began before

	ProviderOffline CommandKind = "provider.offline" // no call through the provider
	ProviderDrain   CommandKind = "provider.drain"   // only mail that no other provider may send
	ProviderOnline  CommandKind = "provider.online"  // ends offline and drain
	ProviderProbe   CommandKind = "provider.probe"   // clears all findings and probes the provider at once

	AddBlock    CommandKind = "block.add"
	RemoveBlock CommandKind = "block.remove"

	HoldOld   CommandKind = "hold.add"  // no new call for batches accepted before a time
	LiftHolds CommandKind = "hold.lift" // ends all holds

	EraseAddress  CommandKind = "address.erase"  // an address is being erased; recipients are read again
	AddressErased CommandKind = "address.erased" // it was erased

	// These change no rule. They are recorded for the audit trail.
	AddedUser  CommandKind = "user.add"
	CreatedKey CommandKind = "key.create"
	RevokedKey CommandKind = "key.revoke"
	Requeued   CommandKind = "parked.requeue"
	Discarded  CommandKind = "parked.discard"

	RemovedSuppression CommandKind = "suppression.remove" // Subject of these has the hash of the address
	ProviderUnlist     CommandKind = "provider.unlist"    // removed from the provider's suppression lists

	CreatedEndpoint  CommandKind = "endpoint.create" // Subject of these has the ID of the endpoint
	ChangedEndpoint  CommandKind = "endpoint.change"
	RemovedEndpoint  CommandKind = "endpoint.remove"
	EnabledEndpoint  CommandKind = "endpoint.enable"
	DisabledEndpoint CommandKind = "endpoint.disable"
	RotatedEndpoint  CommandKind = "endpoint.rotate"
	ReplayedEndpoint CommandKind = "endpoint.replay"
)

// commandEffect says what a command changes.
type commandEffect int

const (
	recorded  commandEffect = iota // nothing: the command is only in the audit trail
	changes                        // rules, so that no mail is withheld that could be sent before
	withholds                      // rules, so that mail is withheld that could be sent before
)

// commandKinds is what is known of each kind of command. A kind that is not here is one of a newer version, at which
// every process stops reading the command log. Words say what the command did, for people.
var commandKinds = []struct {
	kind   CommandKind
	words  string
	effect commandEffect
}{
	{StopBatch, "stopped a batch", withholds},
	{ResumeBatch, "resumed a batch", changes},
	{CancelBatch, "cancelled a batch", withholds},
	{TryBatch, "had a batch tried at once", changes},
	{RetryBatch, "retried the failed messages of a batch", changes},
	{ReleaseBatch, "released messages of a batch", changes},
	{RescheduleBatch, "changed the times of a batch", withholds},
	{PauseUser, "paused a user", withholds},
	{ResumeUser, "resumed a user", changes},
	{SetSenders, "set the senders of a user", changes},
	{SetDefaults, "set the time zone and the hours of a user", changes},
	{SetLimits, "set the limits of a user", changes},
	{DisableUser, "disabled a user", changes},
	{EnableUser, "enabled a user", changes},
	{EndSessions, "ended the sessions of a user", changes},
	{ProviderOffline, "took a provider offline", withholds},
	{ProviderDrain, "drained a provider", withholds},
	{ProviderOnline, "brought a provider online", changes},
	{ProviderProbe, "probed a provider", changes},
	{AddBlock, "added a block rule", withholds},
	{RemoveBlock, "removed a block rule", changes},
	{HoldOld, "put older batches on hold", withholds},
	{LiftHolds, "lifted all holds", changes},
	{EraseAddress, "began to erase an address", withholds},
	{AddressErased, "erased an address", changes},
	{AddedUser, "added a user", recorded},
	{CreatedKey, "created a key", recorded},
	{RevokedKey, "revoked a key", recorded},
	{Requeued, "requeued a parked message", recorded},
	{Discarded, "discarded a parked message", recorded},
	{RemovedSuppression, "removed an address from a suppression list", recorded},
	{ProviderUnlist, "removed an address from the suppression lists of a provider", recorded},
	{CreatedEndpoint, "added an endpoint", recorded},
	{ChangedEndpoint, "changed an endpoint", recorded},
	{RemovedEndpoint, "removed an endpoint", recorded},
	{EnabledEndpoint, "enabled an endpoint", recorded},
	{DisabledEndpoint, "disabled an endpoint", recorded},
	{RotatedEndpoint, "gave an endpoint a new secret", recorded},
	{ReplayedEndpoint, "had updates posted to an endpoint again", recorded},
}

// CommandKinds returns each kind of command with the words that say what it did.
func CommandKinds() iter.Seq2[CommandKind, string] {
	return func(yield func(CommandKind, string) bool) {
		for _, k := range commandKinds {
			if !yield(k.kind, k.words) {
				return
			}
		}
	}
}

// effect returns what commands of the kind change, and whether the kind is known.
func (a CommandKind) effect() (commandEffect, bool) {
	for _, k := range commandKinds {
		if k.kind == a {
			return k.effect, true
		}
	}
	return recorded, false
}

// Known reports whether this version of the program knows the kind. It must not ignore a
// command that it does not know.
func (a CommandKind) Known() bool { _, ok := a.effect(); return ok }

// Withholds reports whether the command withholds mail that could be sent before.
func (a CommandKind) Withholds() bool { e, _ := a.effect(); return e == withholds }

// Recorded reports whether the command changes no rule. It is known, and only in the audit trail.
func (a CommandKind) Recorded() bool { e, ok := a.effect(); return ok && e == recorded }

// BySafedelivr is the name of the service in Command.By: a worker gave the command.
const BySafedelivr = "safedelivr"

// Command is one entry of the command log, which only grows: numbers 1, 2, 3, ….
// An entry is appended by compare-and-set on its number and never changes. The
// command log is also the audit trail.
type Command struct {
	Number int         `json:"n"`
	Token  Token       `json:"t"` // names the append, to resolve an unknown outcome
	At     time.Time   `json:"at"`
	By     string      `json:"by"`            // a user's ID, "cli:" and a user name of the system, or BySafedelivr
	Why    string      `json:"why,omitempty"` // the reason that was given
	Kind   CommandKind `json:"do"`

	Batch    ID           `json:"b,omitzero"`
	Log      ID           `json:"l,omitzero"`  // of a retry or release: only this log
	Logs     Set          `json:"ls,omitzero"` // of a retry or release: only these recipients of the chunk of Log
	Chunks   []int        `json:"c,omitempty"` // of a retry or release: only these chunks, ascending; empty: all
	User     string       `json:"u,omitempty"`
	Provider string       `json:"a,omitempty"` // of provider commands; of a release: only mail held at this provider
	Senders  []string     `json:"s,omitempty"` // of user.senders: addresses, or @domain
	Block    *Block       `json:"bl,omitempty"`
	Before   time.Time    `json:"bf,omitzero"`  // of hold.add
	Limits   Limits       `json:"lm,omitempty"` // of user.limits
	Subject  string       `json:"o,omitempty"`  // of recorded actions and user.limits: the key, message or erased domain
	Schedule *Schedule    `json:"sc,omitempty"` // of batch.reschedule
	Defaults SendDefaults `json:"df,omitzero"`  // of user.defaults
	Request  ID           `json:"q,omitzero"`   // of a retry or release: ID of the request, the same for its repeats
}

// Reaches reports whether a retry or release may apply to logs of a chunk of its batch.
func (c *Command) Reaches(chunk ID) bool {
	if !c.Log.IsZero() && c.Log.ChunkID() != chunk {
		return false
	}
	_, named := slices.BinarySearch(c.Chunks, chunk.ChunkNumber())
	return named || len(c.Chunks) == 0
}

// Names reports whether a retry or release may apply to recipient r of a chunk that it
// reaches.
func (c *Command) Names(r int) bool {
	if c.Logs.Empty() {
		return c.Log.IsZero() || c.Log.Recipient() == r
	}
	return c.Logs.Has(r)
}

// Block is a rule that withholds mail. It meets mail that matches all of its set
// fields.
type Block struct {
	ID       string    `json:"id"`
	Provider string    `json:"provider,omitempty"`
	User     string    `json:"user,omitempty"`
	Sender   string    `json:"sender,omitempty"` // an address, or @domain
	Domain   string    `json:"domain,omitempty"` // of the recipient
	Fail     bool      `json:"fail,omitempty"`   // mail fails with reason blocked instead of waiting
	By       string    `json:"by,omitempty"`
	Why      string    `json:"why,omitempty"`
	At       time.Time `json:"at,omitzero"`
}

// Meets reports whether the rule meets mail of b to a recipient through a provider. An
// empty provider or recipient means any; a rule that names one does not meet it.
func (bl *Block) Meets(b *Batch, provider, recipient string) bool {
	return (bl.Provider == "" || bl.Provider == provider) && (bl.User == "" || bl.User == b.User) &&
		(bl.Sender == "" || b.Content.From.Matches(bl.Sender)) &&
		(bl.Domain == "" || strings.EqualFold(bl.Domain, DomainOf(recipient)))
}

// Matches reports whether the address is a sender, or of its domain if that is @domain.
func (a Address) Matches(sender string) bool {
	if strings.HasPrefix(sender, "@") {
		return strings.EqualFold(sender[1:], DomainOf(a.Email))
	}
	return strings.EqualFold(sender, a.Email)
}

// DomainOf returns the part of an address after the last @.
func DomainOf(address string) string {
	return address[strings.LastIndexByte(address, '@')+1:]
}

// CommandConflictError is returned by Store.AppendCommand to a caller that lost the
// race for a number. Winner is the command that has the number.
type CommandConflictError struct{ Winner Command }

// Error implements error.
func (e *CommandConflictError) Error() string { return "the command log has this number already" }
