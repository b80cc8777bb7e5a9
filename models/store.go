package models

import (
	"context"
	"iter"
	"time"
)

// Store is the truth. The contract is written for what Cassandra can serve:
// every read is one partition or a cursor over one, and the only exclusive step
// is a compare-and-set in one partition (Append, AppendCommand, Claim, and the
// commit of a batch).
//
// All methods may be called by many goroutines and processes at once. Every
// write except those is idempotent: doing it again with the same arguments
// is doing it once. A write that returned nil survives a crash of the process
// and of the machine. Implementations repeat idempotent writes on their own;
// every method may return ErrUnavailable (nothing is known to have been done;
// call again later) and, after Close, ErrClosed. Reads return what was written
// before they began, whichever process wrote it.
type Store interface {
	UserStore
	BatchStore
	RecordStore
	SummaryStore
	AgendaStore
	InboxStore
	CommandStore
	ClaimStore
	AddressIndexStore

	// Ping reports whether the store can serve. Errors: ErrUnavailable.
	Ping(ctx context.Context) error
	// Lease takes or renews the lease name for holder and reports whether it
	// holds it until ttl from now. At most one holder has it at a time; nothing
	// but efficiency may depend on it. A ttl of 0 gives it up. No clock of a
	// process makes it last longer, and where nobody but its holder's process
	// can work on the data, it ends with that.
	Lease(ctx context.Context, name, holder string, ttl time.Duration) (bool, error)
	// PutTransient keeps what a process says about itself under kind and name
	// until ttl from now; a newer report replaces an older one. Reports reads
	// all of a kind that have not ended, by name.
	PutTransient(ctx context.Context, kind, name string, value []byte, ttl time.Duration) error
	Transients(ctx context.Context, kind string) (map[string][]byte, error)
	// Report reads one. A PutTransient with a ttl of 0 removes it. Errors:
	// ErrNotFound (there is none, or it has ended).
	Transient(ctx context.Context, kind, name string) ([]byte, error)
	// Close waits for running calls and frees everything. Calling it again
	// does nothing.
	Close() error
}

// UserStore keeps users and API keys.
type UserStore interface {
	// CreateUser stores a user. Errors: ErrExists (name is taken; it is decided
	// by compare-and-set), ErrInvalid.
	CreateUser(ctx context.Context, u User) error
	// UserByName finds a user by name, User by id. Errors: ErrNotFound.
	UserByName(ctx context.Context, name string) (User, error)
	User(ctx context.Context, id string) (User, error)
	// Users lists all users by name.
	Users(ctx context.Context) ([]User, error)

	// CreateKey stores a key.
	CreateKey(ctx context.Context, k Key) error
	// KeyByHash finds a key by the hash of its secret, revoked ones too.
	// Errors: ErrNotFound.
	KeyByHash(ctx context.Context, hash string) (Key, error)
	// Keys lists the keys of a user, oldest first, revoked ones too.
	Keys(ctx context.Context, user string) ([]Key, error)
	// RevokeKey marks a key as revoked at a time; the first revocation stands.
	// Errors: ErrNotFound.
	RevokeKey(ctx context.Context, user, key string, at time.Time) error
}

// BatchStore keeps batches and their recipients. A batch is accepted like this:
// Schedule an agenda entry, PutChunk for every chunk but the first, PutBatch
// with the first chunk. Only with that last write the batch exists.
type BatchStore interface {
	// PutChunk stores the recipients of a chunk, which are the same whenever it
	// is put. They are not visible to anybody before PutBatch. Where the batch
	// exists already, or never can, it changes nothing: it brings back neither
	// what was abandoned nor what was redacted.
	PutChunk(ctx context.Context, c Chunk) error
	// PutBatch stores the batch with its first chunk (whose ID is the batch's)
	// and makes it exist, in the user's list too. It is decided against
	// AbandonBatch by compare-and-set when the batch has more than one chunk.
	// Errors: ErrNotFound (the batch was abandoned: nothing will be sent),
	// ErrOutcomeUnknown (it may exist; repeating settles it).
	PutBatch(ctx context.Context, b Batch, first Chunk) error
	// AbandonBatch removes the chunks 0 to chunks-1 of a batch that was never
	// completed, so that it can never exist any more. It reports false, and
	// removes nothing, when the batch exists. A wrong number decides nothing: one
	// that is too low may leave recipients behind, which nobody can read.
	// ErrOutcomeUnknown: repeat.
	AbandonBatch(ctx context.Context, batch ID, chunks int) (bool, error)

	// Batch reads a batch. Errors: ErrNotFound.
	Batch(ctx context.Context, id ID) (Batch, error)
	// Batches lists batches of a user, newest first, with IDs smaller than
	// before (zero: from the newest), at most limit. A batch that exists when
	// the call begins is listed; one that cannot be read as Damaged.
	Batches(ctx context.Context, user string, before ID, limit int) ([]Batch, error)
	// Recipients reads the recipients of a chunk in order. Errors: ErrNotFound
	// (there are none, or they were removed by Redact).
	Recipients(ctx context.Context, chunk ID) ([]Recipient, error)
	// Redact removes the recipients of all chunks of a batch and then its
	// content (Batch.Redacted): who has no recipients cannot send. Ledger,
	// facts and summaries stay. Errors: ErrNotFound.
	Redact(ctx context.Context, batch ID) error
}

// CommandStore keeps the journal of orders.
type CommandStore interface {
	// AppendCommand adds c to the journal as line c.Number, which must be one
	// more than the highest there is, by compare-and-set. Exactly one of
	// several callers with the same number succeeds; the others get a
	// *CommandConflictError with the winner's line. Appending a line again with
	// the same Token succeeds. Time-outs are settled as those of Append.
	// Errors: ErrOutcomeUnknown, ErrInvalid (the number leaves a gap).
	AppendCommand(ctx context.Context, c Command) error
	// Controls reads the lines after number after, ascending, at most limit.
	// Every line whose append returned nil before is seen.
	Commands(ctx context.Context, after, limit int) ([]Command, error)
}

// Claim says for which ID a request is worked off that its client may repeat.
type Claim struct {
	ID     ID        `json:"id"`
	Hash   string    `json:"h"` // of the request
	At     time.Time `json:"at"`
	Answer []byte    `json:"-"` // what was answered at the end; nil: it is not known
}

// ClaimStore keeps idempotency keys.
type ClaimStore interface {
	// Claim claims a key by compare-and-set, for ttl, and returns what stands
	// under it: c, or what an earlier caller claimed, with the answer if there
	// is one. Claiming again with the same ID and hash returns the same.
	// Errors: ErrOutcomeUnknown (repeating settles it).
	Claim(ctx context.Context, key string, c Claim, ttl time.Duration) (Claim, error)
	// Claimed returns what stands under a key, with the answer if there is one, and
	// claims nothing. It may miss a claim that is being made. Errors: ErrNotFound.
	Claimed(ctx context.Context, key string) (Claim, error)
	// PutAnswer keeps the answer to the request that has claimed the key for this
	// ID. It changes nothing where the key stands for another.
	PutAnswer(ctx context.Context, key string, id ID, answer []byte, ttl time.Duration) error
	// Unclaim frees a key, if it still stands for this ID.
	Unclaim(ctx context.Context, key string, id ID) error
}

// AddressIndex holds short fingerprints of the addresses of a chunk, by which mail to
// an address is found: see Fingerprint.
type AddressIndex struct {
	Chunk        ID
	Fingerprints []byte
}

// AddressIndexStore finds chunks by addresses. It may miss a chunk for a short while
// after its acceptance.
type AddressIndexStore interface {
	// PutAddressIndex keeps the fingerprints of a chunk of a user.
	PutAddressIndex(ctx context.Context, user string, p AddressIndex) error
	// Prints yields the fingerprints of the user's chunks accepted in the UTC
	// hour that holds t, in any order.
	AddressIndexes(ctx context.Context, user string, t time.Time) iter.Seq2[AddressIndex, error]
	// AddressIndexHours lists the hours, newest first, that begin before t and hold
	// any prints of the user, at most limit.
	AddressIndexHours(ctx context.Context, user string, before time.Time, limit int) ([]time.Time, error)
	// DropAddressIndexes removes the fingerprints of an hour.
	DropAddressIndexes(ctx context.Context, user string, t time.Time) error
}

// RecordStore keeps what was decided about a chunk and what happened to it.
type RecordStore interface {
	// Append adds e to the ledger of a chunk as entry e.Number, which must be
	// one more than the highest there is, by compare-and-set. Exactly one of
	// several callers with the same number succeeds; the others get a
	// *ConflictError with the winner's entry. Appending an entry again with
	// the same Token succeeds. When nil is returned, the entry is durable and
	// every later Record sees it. Time-outs of the deciding write are settled
	// by repeating it until ctx ends; then ErrOutcomeUnknown: the entry may
	// stand or may appear later. A number that leaves a gap is ErrInvalid.
	Append(ctx context.Context, chunk ID, e Entry) error
	// PutFacts stores facts, each under its chunk and key. A fact that is
	// there already stays as it is.
	PutFacts(ctx context.Context, facts ...ChunkFact) error
	// Record reads the ledger, ascending, and all facts of a chunk, in any
	// order. A chunk nothing is known of has none of either.
	Record(ctx context.Context, chunk ID) ([]Entry, []Fact, error)
	// Ledger reads the ledger alone, ascending.
	Ledger(ctx context.Context, chunk ID) ([]Entry, error)
}

// ChunkFact is a fact and the chunk it belongs to.
type ChunkFact struct {
	Chunk ID
	Fact  Fact
}

// SummaryStore keeps what was counted. See Summary for the meaning of versions.
type SummaryStore interface {
	// PutSummaries stores chunk summaries; one whose rank is lower than the
	// stored one's changes nothing.
	PutSummaries(ctx context.Context, ss ...ChunkSummary) error
	// Summaries yields the stored summaries of a batch in order of chunks,
	// from chunk number from on. It ends after the first error.
	Summaries(ctx context.Context, user string, batch ID, from int) iter.Seq2[ChunkSummary, error]
	// RollUp counts the children of a span anew and stores the sum, unless a
	// higher rank is stored. It returns what is stored then.
	RollUp(ctx context.Context, span Span) (Summary, error)
	// Nodes reads the stored sums of a user at a level, of spans that begin in
	// [from, to), ascending.
	Nodes(ctx context.Context, user string, level Level, from, to time.Time) ([]Node, error)
}

// AgendaStore keeps the time index of everything unfinished, in Shards shards.
type AgendaStore interface {
	// Schedule writes agenda entries. An entry whose Due lies more than a
	// minute back is written as due now, so that it will be read.
	Schedule(ctx context.Context, es ...AgendaEntry) error
	// Agenda yields the entries of a shard with Due in [from, to), ascending.
	Agenda(ctx context.Context, shard int, from, to time.Time) iter.Seq2[AgendaEntry, error]
	// AgendaMark is the time up to which a shard was worked off, as last set by
	// SetAgendaMark (zero: never), and never later than now by the store's clock.
	// Marks only move forward; one that lies in the future, as by a clock that was
	// ahead, is replaced by the next. Entries with Due before the mark less
	// 2 x LateWriters may be gone.
	AgendaMark(ctx context.Context, shard int) (time.Time, error)
	SetAgendaMark(ctx context.Context, shard int, t time.Time) error
	// Shards is the number of shards, fixed for the life of the store.
	Shards() int
}

// InboxStore keeps webhook posts. Entries end by age, never by being worked
// off.
type InboxStore interface {
	// PutInbox stores an entry durably. Concurrent calls share a commit.
	PutInbox(ctx context.Context, in Inbox) error
	// Inbox reads entries by ID, in the order of ids; one that does not exist is
	// left out.
	Inbox(ctx context.Context, ids ...ID) ([]Inbox, error)
	// InboxDone marks entries as worked off.
	InboxDone(ctx context.Context, ids ...ID) error
	// Pending yields the IDs of entries of a shard (ID.Shard) that arrived in
	// [from, to) and are not marked as worked off, with their provider.
	Pending(ctx context.Context, shard int, from, to time.Time) iter.Seq2[Inbox, error]
	// Posts yields the IDs of all entries that arrived in [from, to), worked off
	// or not, with their provider. The order is not set.
	Posts(ctx context.Context, from, to time.Time) iter.Seq2[Inbox, error]
	// ReplayMark records what came under which key, and returns for each the
	// digest of the oldest entry (by ID) that is recorded under its key. Several
	// digests of one entry under a key are recorded by one call: of these the same
	// one is always returned. A record lasts for at least 48 hours, however old
	// its entry was, and for as long as that is kept.
	GuardReplays(ctx context.Context, ws ...ReplayMark) (firsts []string, err error)
}
