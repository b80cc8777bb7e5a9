package models

import "errors"

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
