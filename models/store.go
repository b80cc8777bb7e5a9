// Package models defines Safedelivr's types, their rules, and the contracts Store,
// Broker and Adapter. It imports nothing else of the project.
//
// Resolve is the state function: the state of every log of a chunk depends only on
// the chunk's recipients, its ledger (decisions) and its facts (what happened).
package models

import (
	"context"
	"errors"
	"iter"
	"time"
)

// Store holds the truth. The contract is written for what Cassandra can serve. Every read is of one partition or a
// cursor over one. The only exclusive step is a compare-and-set in one partition (Append, AppendCommand, AppendFeed,
// Claim, and the commit of a batch).
//
// All methods may be called by many goroutines and processes at once. All other
// writes are idempotent: a write with the same arguments can be repeated. A write
// that returned nil survives a crash of the process and of the machine. Reads
// return what was written before they began, whichever process wrote it.
//
// Implementations repeat idempotent writes on their own. Every method may return
// ErrUnavailable (nothing is known to have been done; call again later) and,
// after Close, ErrClosed.
type Store interface {
	userStore
	batchStore
	AttachmentStore
	recordStore
	SummaryStore
	agendaStore
	dueStore
	inboxStore
	CommandStore
	ClaimStore
	addressIndexStore
	SuppressionStore
	FeedStore
	DocumentStore

	// Ping returns nil if the store can serve. Errors: ErrUnavailable.
	Ping(ctx context.Context) error
	// Lease takes or renews the lease name for holder and reports whether holder
	// has it until ttl from now. At most one holder has a lease at a time, but only
	// efficiency may depend on that. A ttl of 0 gives the lease up. The clock of a
	// process never makes a lease last longer. If only one process can use the
	// data, its leases end with it.
	Lease(ctx context.Context, name, holder string, ttl time.Duration) (bool, error)
	// PutTransient stores a value under kind and name until ttl from now. It
	// replaces an older value. A ttl of 0 removes the value.
	PutTransient(ctx context.Context, kind, name string, value []byte, ttl time.Duration) error
	// Transients returns the values of a kind that have not ended, by name.
	Transients(ctx context.Context, kind string) (map[string][]byte, error)
	// Transient returns one value. Errors: ErrNotFound (there is none, or it has
	// ended).
	Transient(ctx context.Context, kind, name string) ([]byte, error)
	// Close waits for running calls and releases all resources. Calling it again
	// does nothing.
	Close() error
}

// userStore stores users and API keys.
type userStore interface {
	// CreateUser stores a user. Compare-and-set decides who gets a name. Errors:
	// ErrExists (the name is taken), ErrInvalid.
	CreateUser(ctx context.Context, u User) error
	// UserByName returns the user with a name, User the user with an ID. Errors:
	// ErrNotFound.
	UserByName(ctx context.Context, name string) (User, error)
	User(ctx context.Context, id string) (User, error)
	// Users returns all users, sorted by name.
	Users(ctx context.Context) ([]User, error)

	// CreateKey stores a key.
	CreateKey(ctx context.Context, k Key) error
	// KeyByHash returns the key with a hash of its secret, even if it is revoked.
	// Errors: ErrNotFound.
	KeyByHash(ctx context.Context, hash string) (Key, error)
	// Keys returns the keys of a user, revoked ones too, oldest first.
	Keys(ctx context.Context, user string) ([]Key, error)
	// RevokeKey marks a key as revoked at a time. Only the first revocation of a
	// key counts. Errors: ErrNotFound.
	RevokeKey(ctx context.Context, user, key string, at time.Time) error
	// RemoveKey removes a key for ever. It may be called again.
	RemoveKey(ctx context.Context, user, key string) error
}

// batchStore stores batches and their recipients. A batch is accepted in this
// order: Schedule an agenda entry, PutChunk for every chunk but the first, PutBatch
// with the first chunk. The batch exists only after that last write. If it is the only
// write, PutBatch can store the entry, too.
type batchStore interface {
	// PutChunk stores the recipients of a chunk. A repeat must have the same
	// recipients. They are not visible before PutBatch. If the batch exists already or
	// was abandoned, PutChunk changes nothing: abandoned and redacted recipients
	// never come back.
	PutChunk(ctx context.Context, c Chunk) error
	// PutBatch stores the batch with its first chunk, which has the batch's ID, and
	// makes it exist, in the user's list too. If the batch has more than one chunk,
	// compare-and-set decides between PutBatch and AbandonBatch. Errors:
	// ErrNotFound (the batch was abandoned: nothing will be sent),
	// ErrOutcomeUnknown (it may exist; a repeat finds out). The entries are scheduled
	// before the batch exists. After an error they may be.
	PutBatch(ctx context.Context, b Batch, first Chunk, entries ...AgendaEntry) error
	// AbandonBatch removes the chunks 0 to chunks-1 of a batch that was never
	// completed. The batch can never exist after that. If the batch exists,
	// AbandonBatch returns false and removes nothing. A wrong number of chunks does
	// not change the decision; one that is too low may leave recipients behind,
	// which no call can read. Errors: ErrOutcomeUnknown (a repeat finds out).
	AbandonBatch(ctx context.Context, batch ID, chunks int) (bool, error)

	// Batch returns a batch. Errors: ErrNotFound.
	Batch(ctx context.Context, id ID) (Batch, error)
	// Batches returns at most limit batches of a user with IDs less than before
	// (zero: from the newest), newest first. It returns every batch that exists when
	// the call begins. A batch that cannot be read is marked Damaged.
	Batches(ctx context.Context, user string, before ID, limit int) ([]Batch, error)
	// Recipients returns the recipients of a chunk in order. Errors: ErrNotFound
	// (there are none, or Redact removed them).
	Recipients(ctx context.Context, chunk ID) ([]Recipient, error)
	// Redact removes the recipients of all chunks of a batch, its attachments and then its
	// content (Batch.Redacted). Without recipients nothing can be sent. Ledger, facts and
	// summaries stay. Errors: ErrNotFound.
	Redact(ctx context.Context, batch ID) error

	// Erase removes an address, in any case, from a chunk. Its recipients lose address, name and variables and keep their
	// numbers. Texts of its ledger and facts name ErasedAddress instead. With the first chunk, so do the rejections of the
	// batch. It returns the recipients that have lost it in this call. It may be called again, and for a chunk without
	// recipients.
	Erase(ctx context.Context, chunk ID, address string) (Set, error)

	// BatchIDs returns at most limit IDs of a user's list that are less than before,
	// newest first. The list also has batches that do not exist: they are being stored,
	// were abandoned, or are purged in part.
	BatchIDs(ctx context.Context, user string, before ID, limit int) ([]ID, error)
	// BatchIDsAfter returns at most limit IDs of the same list that are greater than
	// after, oldest first.
	BatchIDsAfter(ctx context.Context, user string, after ID, limit int) ([]ID, error)
	// Purge removes all that is stored of a batch of a user, except the sums above its summaries. First go content and
	// recipients, then summaries, facts and ledgers, and last its entry of the list. From the first removal on the batch
	// does not exist, so that nothing of it can be sent. A repeat finishes what an error cut off. The caller ensures that
	// nothing is stored about the batch any more.
	Purge(ctx context.Context, user string, batch ID) error
}

// AttachmentStore stores the bytes of attachments, and the rejections of a batch in the same way: see RejectedPieces.
// They are stored before PutBatch, and are removed with the content: by AbandonBatch, Redact and Purge.
type AttachmentStore interface {
	// PutPiece stores a piece of the attachment of a batch that has this SHA-256. Pieces are
	// numbered from 0 and have up to PieceSize bytes. A repeat must have the same bytes. If the
	// batch exists already or was abandoned, PutPiece brings back nothing that was removed.
	PutPiece(ctx context.Context, batch ID, sha256 string, number int, piece []byte) error
	// Piece returns a piece. Errors: ErrNotFound (there is none, or it was removed).
	Piece(ctx context.Context, batch ID, sha256 string, number int) ([]byte, error)
}

// CommandStore stores the command log.
type CommandStore interface {
	// AppendCommand appends c to the command log by compare-and-set. c.Number must
	// be one more than the highest number in the log. If several callers append
	// with the same number, exactly one succeeds, and the others get a
	// *CommandConflictError with the winner's command. Appending a command again
	// with the same Token succeeds. Unknown outcomes are resolved as those of
	// Append. Errors: ErrOutcomeUnknown, ErrInvalid (the number leaves a gap).
	AppendCommand(ctx context.Context, c Command) error
	// Commands returns at most limit commands with numbers greater than after,
	// ascending. It returns every command whose append returned nil before, except
	// those that DropCommands removed.
	Commands(ctx context.Context, after, limit int) ([]Command, error)
	// PutRules stores the rules that the commands up to a number make. It changes
	// nothing if rules with a higher number are stored.
	PutRules(ctx context.Context, number int, rules []byte) error
	// Rules returns the stored rules and their number. Errors: ErrNotFound.
	Rules(ctx context.Context) (number int, rules []byte, err error)
	// DropCommands removes the commands up to a number. Rules with a higher number must
	// be stored, so the newest command is never removed. A removed number is never
	// given again. Errors: ErrInvalid (no such rules are stored).
	DropCommands(ctx context.Context, upTo int) error
}

// Claim assigns an ID to a request that its client may repeat.
type Claim struct {
	ID     ID        `json:"id"`
	Hash   string    `json:"h"` // of the request
	At     time.Time `json:"at"`
	Answer []byte    `json:"-"` // to the request; nil: none yet
}

// ClaimStore stores idempotency keys.
type ClaimStore interface {
	// Claim claims a key for ttl by compare-and-set and returns the claim of the key: c, or that of an earlier caller,
	// with its answer if there is one. Claiming again with the same ID and hash returns the same. Errors:
	// ErrOutcomeUnknown (a repeat finds out).
	Claim(ctx context.Context, key string, c Claim, ttl time.Duration) (Claim, error)
	// Claimed returns the claim of a key, with the answer if there is one. It may
	// miss a claim that is being made. Errors: ErrNotFound.
	Claimed(ctx context.Context, key string) (Claim, error)
	// PutAnswer stores the answer to the request that claimed the key for this ID.
	// It changes nothing if the key is claimed for another ID.
	PutAnswer(ctx context.Context, key string, id ID, answer []byte, ttl time.Duration) error
	// Unclaim frees a key if it is claimed for this ID.
	Unclaim(ctx context.Context, key string, id ID) error
}

// AddressIndex has the fingerprints of a chunk's addresses, to find mail to an address:
// see Fingerprint.
type AddressIndex struct {
	Chunk        ID
	Fingerprints []byte
}

// addressIndexStore finds chunks by addresses. It may miss a chunk for a short time
// after it was accepted.
type addressIndexStore interface {
	// PutAddressIndex stores the fingerprints of a chunk of a user. It replaces those that
	// were stored before.
	PutAddressIndex(ctx context.Context, user string, p AddressIndex) error
	// AddressIndexes yields the fingerprints of the user's chunks that were accepted
	// in the UTC hour that holds t and have IDs less than before (zero: all), newest
	// first.
	AddressIndexes(ctx context.Context, user string, t time.Time, before ID) iter.Seq2[AddressIndex, error]
	// AddressIndexHours returns at most limit hours that begin before a time and have
	// fingerprints of the user, newest first.
	AddressIndexHours(ctx context.Context, user string, before time.Time, limit int) ([]time.Time, error)
	// DropAddressIndexes removes the fingerprints of the UTC hour that holds t.
	DropAddressIndexes(ctx context.Context, user string, t time.Time) error
}

// recordStore stores the ledgers and facts of chunks.
type recordStore interface {
	// Append appends e to the ledger of a chunk by compare-and-set. e.Number must be
	// one more than the highest number in the ledger. If several callers append with
	// the same number, exactly one succeeds, and the others get a *ConflictError
	// with the winner's entry. Appending an entry again with the same Token
	// succeeds. After nil, the entry is durable and every later Record returns it.
	// If the deciding write times out, Append repeats it until ctx ends. Errors:
	// ErrOutcomeUnknown (the entry may be there or may appear later), ErrInvalid
	// (the number leaves a gap).
	Append(ctx context.Context, chunk ID, e Entry) error
	// PutFacts stores facts, each under its chunk and key. A fact that exists
	// already does not change.
	PutFacts(ctx context.Context, facts ...ChunkFact) error
	// Record returns the ledger of a chunk, ascending, and its facts, in any order.
	// An unknown chunk has neither.
	Record(ctx context.Context, chunk ID) ([]Entry, []Fact, error)
	// Ledger returns only the ledger of a chunk, ascending.
	Ledger(ctx context.Context, chunk ID) ([]Entry, error)
	// Calls returns the ledger of a chunk, ascending, and the outcomes that are stored
	// under OutcomeKey, in any order: the answers to its calls, without evidence and
	// events.
	Calls(ctx context.Context, chunk ID) ([]Entry, []Outcome, error)
}

// ChunkFact is a fact and the chunk it belongs to.
type ChunkFact struct {
	Chunk ID
	Fact  Fact
}

// SummaryStore stores summaries. See Summary for the meaning of versions.
type SummaryStore interface {
	// PutSummaries stores chunk summaries. A summary with a lower FullVersion than the
	// stored one changes nothing.
	PutSummaries(ctx context.Context, ss ...ChunkSummary) error
	// Summaries yields the stored summaries of a batch in the order of its chunks,
	// from chunk number from. It ends after the first error.
	Summaries(ctx context.Context, user string, batch ID, from int) iter.Seq2[ChunkSummary, error]
	// SecondSummaries yields the stored summaries of the user's chunks whose batches were
	// accepted in the second that holds t, in the order of their IDs. It ends after the
	// first error.
	SecondSummaries(ctx context.Context, user string, t time.Time) iter.Seq2[ChunkSummary, error]
	// RollUp adds up the children of a span and stores the sum, unless a sum with a
	// higher version is stored.
	RollUp(ctx context.Context, span Span) error
	// Nodes returns the stored sums of a user at a level whose spans begin in
	// [from, to), ascending.
	Nodes(ctx context.Context, user string, level Level, from, to time.Time) ([]Node, error)
	// DropSums removes the sums of the seconds, minutes and hours of the UTC day of a
	// user that holds t. The sum of the day stays.
	DropSums(ctx context.Context, user string, t time.Time) error
}

// agendaStore stores the time index of all unfinished work, in Shards shards.
type agendaStore interface {
	// Schedule stores agenda entries. An entry whose Due lies more than a minute in
	// the past is stored as due now, so that it will be read.
	Schedule(ctx context.Context, es ...AgendaEntry) error
	// Agenda yields the entries of a shard with Due in [from, to), ascending.
	Agenda(ctx context.Context, shard int, from, to time.Time) iter.Seq2[AgendaEntry, error]
	// AgendaMark returns the time up to which a shard was processed, as last set by
	// SetAgendaMark (zero: never). It is never later than now by the store's clock.
	AgendaMark(ctx context.Context, shard int) (time.Time, error)
	// SetAgendaMark sets the mark of a shard. Marks only move forward, but a mark that
	// lies in the future, because a clock was ahead, is replaced by the next. Entries
	// that were due 2 x LateWriters before the mark may be removed.
	SetAgendaMark(ctx context.Context, shard int, t time.Time) error
	// Shards returns the number of shards, which never changes for a store.
	Shards() int
}

// dueStore stores which batches of a user have mail whose time is to come, in the order of time: see Due.
type dueStore interface {
	// PutDue stores entries. An entry replaces one with the same time and batch.
	PutDue(ctx context.Context, user string, ds ...Due) error
	// Dues returns at most limit entries with IDs greater than from, ascending; if back, with IDs less than from,
	// descending.
	Dues(ctx context.Context, user string, from ID, back bool, limit int) ([]Due, error)
	// RemoveDue removes an entry. If there is none, it does nothing.
	RemoveDue(ctx context.Context, user string, id ID) error
	// DropDues removes the entries of a user with times before t.
	DropDues(ctx context.Context, user string, t time.Time) error
}

// inboxStore stores webhook posts. Entries are removed by age, not because they were
// processed.
type inboxStore interface {
	// PutInbox stores an entry. Concurrent calls share a commit.
	PutInbox(ctx context.Context, in Inbox) error
	// Inbox returns entries by ID, in the order of ids. Entries that do not exist are
	// left out.
	Inbox(ctx context.Context, ids ...ID) ([]Inbox, error)
	// InboxDone marks entries as processed.
	InboxDone(ctx context.Context, ids ...ID) error
	// Pending yields the entries of a shard (ID.Shard) that arrived in [from, to) and
	// are not marked as processed. They have only ID and Provider.
	Pending(ctx context.Context, shard int, from, to time.Time) iter.Seq2[Inbox, error]
	// Posts yields all entries that arrived in [from, to), processed or not, in any
	// order. They have only ID and Provider.
	Posts(ctx context.Context, from, to time.Time) iter.Seq2[Inbox, error]
	// EraseInbox replaces an address in the bodies of an entry by ErasedAddress. It
	// reports whether there was any. If the entry does not exist, it does nothing.
	EraseInbox(ctx context.Context, id ID, address string) (bool, error)
	// GuardReplays records marks and returns, for each, the digest of the oldest
	// entry (by ID) that is recorded under its key. Several digests of one entry
	// under a key must be recorded by one call: one of them is always returned then.
	// A record lasts for at least 48 hours, however old its entry was, and at least
	// as long as the entry is kept.
	GuardReplays(ctx context.Context, marks ...ReplayMark) (firsts []string, err error)
}

// Document is a named value of an owner.
type Document struct {
	Key     string
	Version int // from 1; each change adds 1
	Value   []byte
}

// MaxDocument is the size in bytes of the largest value of a document.
const MaxDocument = 2 << 20

// DocumentStore stores documents by owner and kind. Keys are sorted by their bytes.
type DocumentStore interface {
	// PutDocument stores a document by compare-and-set. d.Version must be one more than
	// the stored version, or 1 if there is none. A repeat with the same version and value
	// succeeds. Errors: ErrConflict (another version, or the same with another value, is
	// stored), ErrInvalid (no key, or a value larger than MaxDocument), ErrOutcomeUnknown
	// (a repeat finds out).
	PutDocument(ctx context.Context, owner, kind string, d Document) error
	// Document returns a document. Errors: ErrNotFound.
	Document(ctx context.Context, owner, kind, key string) (Document, error)
	// Documents returns at most limit documents with keys greater than after, ascending.
	Documents(ctx context.Context, owner, kind, after string, limit int) ([]Document, error)
	// DeleteDocument removes a document of any version. If there is none, it does nothing.
	DeleteDocument(ctx context.Context, owner, kind, key string) error

	// PutDocuments stores documents of one owner and kind with different keys, each for itself as
	// PutDocument does. It returns the indexes of those that were not stored because of another
	// version, in any order. After an error any of them may be stored; a repeat finds out.
	PutDocuments(ctx context.Context, owner, kind string, ds []Document) (conflicts []int, err error)
	// DocumentsOf returns the documents with these keys that exist, in any order.
	DocumentsOf(ctx context.Context, owner, kind string, keys []string) ([]Document, error)
	// RemoveDocuments removes those of the documents that still have their version. The values
	// do not count.
	RemoveDocuments(ctx context.Context, owner, kind string, ds []Document) error
}

// Valid reports whether a store can hold d.
func (d *Document) Valid() bool { return d.Key != "" && d.Version >= 1 && len(d.Value) <= MaxDocument }

// The errors of the contracts. Implementations wrap them once with the operation;
// callers test with errors.Is.
var (
	// ErrNotFound: the object does not exist, or belongs to another user.
	ErrNotFound = errors.New("not found")
	// ErrInvalid: the argument can never be accepted.
	ErrInvalid = errors.New("invalid")
	// ErrExists: an object with this name exists.
	ErrExists = errors.New("already exists")
	// ErrConflict: another caller has changed the object.
	ErrConflict = errors.New("changed by another caller")
	// ErrDamaged: a stored value cannot be read by this version. A retry does not
	// help. Other values can be read.
	ErrDamaged = errors.New("a stored value is damaged")
	// ErrNewer: a newer version of the program stored the value or sent the message.
	// Nothing is wrong with it: a process of that version can read it.
	ErrNewer = errors.New("stored by a newer version of safedelivr")
	// ErrUnavailable: the store or broker cannot be reached or is overloaded.
	// Nothing was done; the same call may succeed later.
	ErrUnavailable = errors.New("unavailable")
	// ErrOutcomeUnknown: a write was sent, and it is unknown whether it took effect.
	// Repeating the same call resolves that.
	ErrOutcomeUnknown = errors.New("outcome unknown")
	// ErrClosed: the store or broker was closed.
	ErrClosed = errors.New("closed")
	// ErrNoLookup: the provider's key or plan allows no look-ups.
	ErrNoLookup = errors.New("the provider allows no look-ups")
	// ErrNoLists: the provider's key may not read or change its suppression lists.
	ErrNoLists = errors.New("the provider's key may not use its suppression lists")
	// ErrPartialLogs: the provider lists only a part of the events that a query selects.
	ErrPartialLogs = errors.New("the provider lists only a part of its logs")
	// ErrUnroutable: no queue takes this message.
	ErrUnroutable = errors.New("no queue for this message")
)

// ConflictError is returned by Store.Append to a caller that lost the race for a
// number. Winner is the entry that has the number.
type ConflictError struct{ Winner Entry }

// Error implements error.
func (e *ConflictError) Error() string { return "the ledger has this number already" }
