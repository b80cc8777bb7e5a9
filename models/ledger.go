package models

import (
	"crypto/rand"
	"encoding/hex"
	"strings"
	"time"
)

// EntryKind is the kind of a ledger entry.
type EntryKind string

// The kinds of ledger entry.
const (
	Attempt EntryKind = "attempt" // a worker calls a provider for these recipients
	Cancel  EntryKind = "cancel"  // these recipients are not handed over any more
	Release EntryKind = "release" // these ended recipients may be sent again
	Ending  EntryKind = "end"     // there are no further attempts for these recipients
	Repeat  EntryKind = "repeat"  // a worker makes the call of an attempt again, to learn its outcome
)

// Valid reports whether k is a kind that this version of the program knows.
func (k EntryKind) Valid() bool {
	return k == Attempt || k == Cancel || k == Release || k == Ending || k == Repeat
}

// Entry is one entry of a chunk's ledger, which only grows: numbers 1, 2, 3, ….
// It is appended by compare-and-set on its number and never changes. The number of
// an attempt is the number of its entry.
type Entry struct {
	Number     int       `json:"n"`
	Token      Token     `json:"t"` // names the append, to resolve an unknown outcome
	Kind       EntryKind `json:"k"`
	At         time.Time `json:"at"`
	Recipients Set       `json:"r"`

	// Of an attempt. A repeat has the first four, too.
	Provider  string    `json:"a,omitempty"`
	Worker    string    `json:"w,omitempty"`
	StartBy   time.Time `json:"sb,omitzero"` // the call begins before this or never
	CallEnds  time.Time `json:"ce,omitzero"` // start-by plus the call's time-out: nothing is in flight later
	Retry     int       `json:"rt,omitempty"`
	Split     int       `json:"sp,omitempty"` // > 0: made to find a bad recipient; not a retry
	MayDouble bool      `json:"md,omitempty"` // the outcome of an earlier attempt was unknown
	Together  bool      `json:"tg,omitempty"` // one mail to all recipients
	Because   string    `json:"why,omitempty"`
	Account   string    `json:"ac,omitempty"` // names the account at a provider with idempotency keys

	// Of a repeat: the number of the attempt. With a reason no call was made, and none may be made any more.
	Repeats int `json:"rp,omitempty"`

	// Of an ending, a cancellation or a release. A release has MayDouble, too.
	Reason  Reason `json:"re,omitempty"`
	Detail  string `json:"d,omitempty"`
	Command int    `json:"o,omitempty"` // number of the command
}

// ByAddress reports whether only its address says which recipient an event of an attempt is about. named is the
// recipient that the event names; 0: none.
func (e *Entry) ByAddress(named int) bool { return named == 0 || e.Together }

// RecipientOf returns the number of the recipient that an event of an attempt is about. The event names it, or it is
// the one of the attempt with the address of the event, in any case. Of one mail to all, an address that is not known
// belongs to the recipient whose address was erased, if there is only one. Otherwise the number is 0.
func (e *Entry) RecipientOf(named int, address string, rs []Recipient) int {
	if !e.ByAddress(named) {
		return named
	}
	found, gone := 0, 0
	for n := range e.Recipients.All() {
		switch {
		case n > len(rs):
			return 0
		case rs[n-1].Erased():
			gone = sole(gone, n)
		case strings.EqualFold(rs[n-1].Email, address):
			found = sole(found, n)
		}
	}
	if found == 0 && e.Together {
		found = gone
	}
	return max(found, 0)
}

// sole returns n if it is the first number that is found, and -1 otherwise.
func sole(before, n int) int {
	if before != 0 {
		return -1
	}
	return n
}

// ReleasedManually is why the attempt after a release is made.
const ReleasedManually = "released manually"

// Replaced is the detail of the cancellation of a log whose message its sender has changed. Another log
// follows it.
const Replaced = "replaced by an update of the message"

// Token is a random name of one append.
type Token [16]byte

// NewToken returns a new token.
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
