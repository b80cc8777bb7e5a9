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

// commandEffect says what a command changes.
type commandEffect int

const (
	recorded  commandEffect = iota // nothing: the command is only in the audit trail
	changes                        // rules, so that no mail is withheld that could be sent before
	withholds                      // rules, so that mail is withheld that could be sent before
)

// knownKind is what is known of a kind of command. Words say what the command did, for people.
type knownKind struct {
	kind   CommandKind
	effect commandEffect
	words  string
}

// commandKinds are the kinds that this version knows. At another one, which is of a newer version, every process stops
// reading the command log.
var commandKinds []knownKind

// known adds a kind to commandKinds.
func known(kind CommandKind, effect commandEffect, words string) CommandKind {
	commandKinds = append(commandKinds, knownKind{kind, effect, words})
	return kind
}

// The kinds of command. Those that are only recorded are for the audit trail.
var (
	StopBatch       = known("batch.stop", withholds, "stopped a batch") // no new call for the batch
	ResumeBatch     = known("batch.resume", changes, "resumed a batch")
	CancelBatch     = known("batch.cancel", withholds, "cancelled a batch") // its unsent mail, permanently
	TryBatch        = known("batch.try", changes, "had a batch tried at once")
	RetryBatch      = known("batch.retry", changes, "retried the failed messages of a batch") // if that is safe
	ReleaseBatch    = known("batch.release", changes, "released messages of a batch")         // they may double
	RescheduleBatch = known("batch.reschedule", withholds, "changed the times of a batch")    // that has not begun

	PauseUser   = known("user.pause", withholds, "paused a user") // no new call for any batch of the user
	ResumeUser  = known("user.resume", changes, "resumed a user")
	SetSenders  = known("user.senders", changes, "set the senders of a user")
	SetDefaults = known("user.defaults", changes, "set the time zone and the hours of a user")
	SetLimits   = known("user.limits", changes, "set the limits of a user")           // or of one key
	DisableUser = known("user.disable", changes, "disabled a user")                   // accepted mail goes on
	EnableUser  = known("user.enable", changes, "enabled a user")                     // the sessions stay ended
	EndSessions = known("user.end_sessions", changes, "ended the sessions of a user") // those that began before

	ProviderOffline = known("provider.offline", withholds, "took a provider offline") // no call through the provider
	ProviderDrain   = known("provider.drain", withholds, "drained a provider")        // mail that others may send
	ProviderOnline  = known("provider.online", changes, "brought a provider online")  // ends offline and drain
	ProviderProbe   = known("provider.probe", changes, "probed a provider")           // clears all findings

	AddBlock      = known("block.add", withholds, "added a block rule")
	RemoveBlock   = known("block.remove", changes, "removed a block rule")
	HoldOld       = known("hold.add", withholds, "put older batches on hold") // no new call for them
	LiftHolds     = known("hold.lift", changes, "lifted all holds")
	EraseAddress  = known("address.erase", withholds, "began to erase an address") // recipients are read again
	AddressErased = known("address.erased", changes, "erased an address")

	AddedUser  = known("user.add", recorded, "added a user")
	CreatedKey = known("key.create", recorded, "created a key")
	RevokedKey = known("key.revoke", recorded, "revoked a key")
	Requeued   = known("parked.requeue", recorded, "requeued a parked message")
	Discarded  = known("parked.discard", recorded, "discarded a parked message")

	// Subject of the first of these has the hash of the address.
	RemovedSuppression = known("suppression.remove", recorded, "removed an address from a suppression list")
	ProviderUnlist     = known("provider.unlist", recorded,
		"removed an address from the suppression lists of a provider")

	// Subject of these has the ID of the endpoint. service/endpoints finds them by their verbs.
	_ = known("endpoint.create", recorded, "added an endpoint")
	_ = known("endpoint.change", recorded, "changed an endpoint")
	_ = known("endpoint.remove", recorded, "removed an endpoint")
	_ = known("endpoint.enable", recorded, "enabled an endpoint")
	_ = known("endpoint.disable", recorded, "disabled an endpoint")
	_ = known("endpoint.rotate", recorded, "gave an endpoint a new secret")
	_ = known("endpoint.replay", recorded, "had updates posted to an endpoint again")
)

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
