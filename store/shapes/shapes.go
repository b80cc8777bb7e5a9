// Package shapes is the contract of a database. Everything that Safedelivr stores is in a table of one of two shapes:
//
//   - Rows: a value with a version under a partition and a key. Of two values the one with the higher version stays,
//     whichever came first, so that plain writes can be repeated and reordered. Swap decides by compare-and-set.
//   - A Log: numbered entries of a partition, without gaps, appended by compare-and-set.
//
// A document is a row that only Swap writes. An index by time is a table of rows whose keys begin with a time. Package
// store writes every noun once above these shapes, and an engine implements them for one technology.
//
// The contract asks for no more than Cassandra can serve: each read is of one partition, and the only exclusive step
// is a compare-and-set in one partition.
package shapes

import (
	"context"
	"time"
)

// Table declares a table. Its name is a valid name in SQL and CQL.
type Table struct {
	Name string
	Log  bool // it has entries instead of rows

	// Group: the log of a partition grows for ever. An engine whose partitions are small splits it into parts of so many
	// entries. 0: a log stays short, and Trim may do nothing.
	Group int
	// FirstStays: Put never changes a row that exists, whatever its version.
	FirstStays bool
	// Fenced: RemoveParts may fence its partitions. Its keys are not empty.
	Fenced bool
	// Large: values have tens of kilobytes.
	Large bool
	// Bucket: the keys begin with six bytes of milliseconds since 1970, and a partition grows for ever. An engine whose
	// partitions are small splits them into buckets of this length. Its rows are removed by RemoveRange, and an engine
	// may ignore their TTL. 0: a partition stays small.
	Bucket time.Duration
	// Short: ranges of keys are not longer than a bucket.
	Short bool
	// Stem: Find asks for keys by their first Stem bytes, or for whole partitions. -1: by whole keys. 0: by any beginning.
	Stem int
	// Decided: rows are made and changed by Swap. Put only raises their versions.
	Decided bool
	// Vetoed: rows are Decided and made by swaps with Was 0, all of the same row, unless a rare swap keeps it away: see
	// Swap.Veto. An engine may let that one pay for the decision.
	Vetoed bool
	// Brief is about how long rows last, by their TTL. One that was removed may come back after a day. 0: they stay.
	Brief time.Duration
	// Packed: values are compressed already.
	Packed bool
}

// Row is a value under a partition and a key.
type Row struct {
	Part, Key []byte
	Version   int64 // from 1
	Value     []byte
	// Gone: the row has no value, and hides values with lower versions.
	Gone bool
	// TTL is how long the row lasts from now on, by the clock of the servers. 0: for ever. A row that has ended does not
	// exist, and hides nothing, except in an engine that is a Stamper.
	TTL time.Duration
}

// Put is the write of a row.
type Put struct {
	Table *Table
	Row
}

// Address names the rows of a partition whose keys begin with Key, in a table.
type Address struct {
	Table     *Table
	Part, Key []byte
}

// Range selects rows of a partition, in the order of their keys.
type Range struct {
	From, To []byte // keys from From on, below To; nil: no bound
	Back     bool   // the greatest key first
	Limit    int    // the highest number of rows
	Head     int    // this much of each value is enough, in bytes; 0: all
}

// Swap is a compare-and-set of a row.
type Swap struct {
	Put
	// Was is the version that the row must have; 0: it must not exist. A row that is Gone exists.
	Was int64
	// Remove removes the row instead, if it has the version.
	Remove bool
	// Veto: the row keeps another one away. It is only for tables that are Vetoed.
	Veto bool
}

// Refusal is a swap that was refused.
type Refusal struct {
	Index int
	There Row // the row that is there; its version is 0 if there is none
}

// Entry is an entry of a log.
type Entry struct {
	Number int    // from 1
	Token  []byte // names the append, to resolve an unknown outcome
	Value  []byte
}

// Engine implements the shapes. All methods may be called by many goroutines and processes at once. A write that
// returned nil survives a crash of the process and of the machine, and every later read sees it.
//
// Errors: models.ErrUnavailable (nothing is known to have been done), and for Swap, Append and Rewrite
// models.ErrOutcomeUnknown (a repeat finds out). The engine repeats writes on its own for some time, Append until ctx
// ends.
type Engine interface {
	// Put stores rows. Of two rows with the same key the one with the higher version stays, and of two with the same
	// version the one with the greater value. After an error any of them may be stored.
	Put(ctx context.Context, puts ...Put) error
	// Swap makes swaps of different rows of one partition, each for itself, and returns those that were refused. A
	// repeat with the same version and value is not refused. The rows of also are stored if the only swap is not
	// refused, whatever fences say; an engine without transactions stores them before it.
	Swap(ctx context.Context, swaps []Swap, also ...Put) ([]Refusal, error)
	// Find returns, for each address, the rows that it names in the order of their keys, and those that are Gone, too.
	Find(ctx context.Context, at ...Address) ([][]Row, error)
	// Scan returns rows of a partition that are not Gone.
	Scan(ctx context.Context, t *Table, part []byte, r Range) ([]Row, error)
	// Removals: rows that are stored there later may stay hidden in an engine that is a Stamper, unless their versions
	// come from a later Stamp.

	// RemoveRows removes the rows that addresses name.
	RemoveRows(ctx context.Context, at ...Address) error
	// RemoveRange removes the rows of a partition with keys from from on, below to.
	RemoveRange(ctx context.Context, t *Table, part, from, to []byte) error
	// RemoveParts removes all rows or entries of partitions. If fence is not 0, rows with versions up to fence are not
	// stored in them any more until keep is over.
	RemoveParts(ctx context.Context, t *Table, fence int64, keep time.Duration, parts ...[]byte) error

	// Append appends an entry to the log of a partition. Its number must be one more than the highest number that the
	// log ever had. If several callers append with the same number, exactly one succeeds, and the others get its entry
	// in there, or an entry with a higher number. A repeat with the same token succeeds. Errors: models.ErrInvalid (the
	// number leaves a gap).
	Append(ctx context.Context, t *Table, part []byte, e Entry) (there Entry, err error)
	// Read returns at most limit entries with numbers greater than after, ascending.
	Read(ctx context.Context, t *Table, part []byte, after, limit int) ([]Entry, error)
	// ReadWith returns all entries of a log, and the rows of a range of another table in the same partition, whatever its
	// limit. They may be of slightly different moments; each has all that was written before the call.
	ReadWith(ctx context.Context, log, rows *Table, part []byte, r Range) ([]Entry, []Row, error)
	// Last returns the entry with the highest number; its number is 0 if there is none.
	Last(ctx context.Context, t *Table, part []byte) (Entry, error)
	// Trim removes entries with numbers below before, but never the last one. It may leave some of them.
	Trim(ctx context.Context, t *Table, part []byte, before int) error
	// Rewrite replaces the value of an entry if it still is was, and reports whether it did.
	Rewrite(ctx context.Context, t *Table, part []byte, e Entry, was []byte) (bool, error)

	// Now returns the time by the clock of the servers.
	Now(ctx context.Context) (time.Time, error)
	// Sweep removes rows that have ended from tables without Bucket.
	Sweep(ctx context.Context) error
	// Ping returns nil if the engine can serve.
	Ping(ctx context.Context) error
	// Close releases all resources. No call is running.
	Close() error
}

// Leaser is an Engine that only one process can use at a time. It keeps leases itself, as models.Store.Lease has it,
// and they end with the process.
type Leaser interface {
	Lease(ctx context.Context, name, holder string, ttl time.Duration) (bool, error)
}

// Stamper is an Engine that orders versions by time even after a row was removed or has ended: that row may hide others
// whose versions are not higher. It removes rows that have ended on its own, so that Sweep does nothing.
type Stamper interface {
	// Stamp returns a version: the time of the servers in microseconds since 1970.
	Stamp(ctx context.Context) (int64, error)
	// End is called before Close, while calls are running. An Append whose outcome is unknown is not tried any more.
	End()
}
