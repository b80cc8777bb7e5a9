package models

import "errors"

// The errors of the contracts. Implementations wrap them once with what was
// being done; callers test with errors.Is.
var (
	// ErrNotFound: what was asked for does not exist (or is not the caller's).
	ErrNotFound = errors.New("not found")
	// ErrInvalid: the argument can never be accepted.
	ErrInvalid = errors.New("invalid")
	// ErrExists: a thing of this name is there already.
	ErrExists = errors.New("already exists")
	// ErrDamaged: what is stored cannot be read, by this version at least. To
	// try again is of no use, and everything else can still be read.
	ErrDamaged = errors.New("a stored value is damaged")
	// ErrUnavailable: the store or broker cannot be reached or is overloaded;
	// nothing was done, the same call may succeed later.
	ErrUnavailable = errors.New("unavailable")
	// ErrOutcomeUnknown: a write was sent and it is not known whether it took effect.
	// Repeating the same call settles it.
	ErrOutcomeUnknown = errors.New("outcome unknown")
	// ErrClosed: the store or broker was closed.
	ErrClosed = errors.New("closed")
	// ErrUnroutable: no queue takes this message.
	ErrUnroutable = errors.New("no queue for this message")
)

// ConflictError is returned by Store.Append to who lost the race for a ledger
// number. Winner is the entry that has the number.
type ConflictError struct{ Winner Entry }

// Error implements error.
func (e *ConflictError) Error() string { return "the ledger has this number already" }
