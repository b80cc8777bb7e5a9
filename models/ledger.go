package models

import (
	"crypto/rand"
	"encoding/hex"
	"time"
)

// EntryKind is what a ledger entry decides.
type EntryKind string

// The kinds of ledger entry.
const (
	Attempt EntryKind = "attempt" // a worker calls a provider for these recipients
	Cancel  EntryKind = "cancel"  // these recipients are not to be handed over any more
	Release EntryKind = "release" // a person lets these ended recipients go out again
	Ending  EntryKind = "end"     // nothing more is tried for these recipients
)

// Entry is one line of a chunk's ledger, which only grows: numbers 1, 2, 3, ….
// An entry is appended by compare-and-set on its number and never changes.
// The number of an attempt's entry is the number of the attempt.
type Entry struct {
	Number     int       `json:"n"`
	Token      Token     `json:"t"` // who appended: settles an append whose outcome is unknown
	Kind       EntryKind `json:"k"`
	At         time.Time `json:"at"`
	Recipients Set       `json:"r"`

	// Of an attempt.
	Provider  string    `json:"a,omitempty"`
	Worker    string    `json:"w,omitempty"`
	StartBy   time.Time `json:"sb,omitzero"` // the call begins before this or never
	CallEnds  time.Time `json:"ce,omitzero"` // start-by plus the call's time-out: from here on nothing is in flight
	Retry     int       `json:"rt,omitempty"`
	Split     int       `json:"sp,omitempty"` // >0: made to find a bad recipient; uses up no retry
	MayDouble bool      `json:"md,omitempty"` // an earlier attempt's outcome was not known
	Because   string    `json:"why,omitempty"`

	// Of an ending, a cancellation or a release. A release has MayDouble, too.
	Reason Reason `json:"re,omitempty"`
	Detail string `json:"d,omitempty"`
	Order  int    `json:"o,omitempty"` // the line of the journal that ordered it
}

// Token is a random name of one append.
type Token [16]byte

// NewToken returns a fresh token.
func NewToken() Token {
	var t Token
	if _, err := rand.Read(t[:]); err != nil {
		panic("models: no randomness: " + err.Error())
	}
	return t
}

// MarshalText implements encoding.TextMarshaler.
func (t Token) MarshalText() ([]byte, error) { return []byte(hex.EncodeToString(t[:])), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (t *Token) UnmarshalText(b []byte) error {
	if len(b) != 2*len(t) {
		return ErrInvalid
	}
	_, err := hex.Decode(t[:], b)
	return err
}
