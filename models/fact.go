package models

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"time"
)

// Class is what a provider's answer to a call means (providers.md, 0.2).
type Class string

// The classes of outcome.
const (
	Accepted          Class = "accepted"           // the provider took responsibility
	RejectedRecipient Class = "rejected_recipient" // this address is refused everywhere
	RejectedRequest   Class = "rejected_request"   // our payload is wrong everywhere
	RejectedHereClass Class = "rejected_here"      // a limit of this provider
	AccountClass      Class = "account"            // key, quota, suspension, or one unverified sender
	Throttled         Class = "throttled"          // too fast; RetryAt says when, if known
	Unavailable       Class = "unavailable"        // definitely not taken; RetryAt as of throttled
	Unknown           Class = "unknown"            // may have been taken
	// Split: the whole call was refused because of some recipient in it; nothing
	// was taken. The recipients go again in smaller calls.
	Split Class = "split"
)

// Classes lists the classes.
var Classes = []Class{
	Accepted,
	RejectedRecipient,
	RejectedRequest,
	RejectedHereClass,
	AccountClass,
	Throttled,
	Unavailable,
	Unknown,
	Split,
}

// Valid reports whether c is one of the classes.
func (c Class) Valid() bool { return slices.Contains(Classes, c) }

// Refused reports whether c means that the provider certainly did not take the
// mail.
func (c Class) Refused() bool { return c.Valid() && c != Accepted && c != Unknown }

// Outcome is what became of one attempt: one part per group of recipients.
// Recipients of the attempt that no part names are unknown.
type Outcome struct {
	Attempt int           `json:"n"`
	At      time.Time     `json:"at"`
	Took    time.Duration `json:"ns,omitempty"`
	Parts   []Part        `json:"p"`
}

// Part is the outcome for some recipients of an attempt.
type Part struct {
	Class      Class     `json:"c"`
	Recipients Set       `json:"r"`
	Reason     Reason    `json:"re,omitempty"`
	Status     int       `json:"s,omitempty"`  // HTTP or SMTP status, 0 if there was no answer
	Text       string    `json:"tx,omitempty"` // the provider's words, at most 500 bytes, without addresses
	MessageID  string    `json:"m,omitempty"`
	RetryAt    time.Time `json:"ra,omitzero"` // of throttled and unavailable
	Final      bool      `json:"f,omitempty"` // accepted through a provider without events: counts as success, unconfirmed
}

// EventKind is what a provider reported of one recipient.
type EventKind string

// The kinds of event. Bounced, Dropped, Blocked and Rejected mean that the
// provider has given up; Deferred means it goes on trying.
const (
	Processed    EventKind = "processed"
	Delivered    EventKind = "delivered"
	Deferred     EventKind = "deferred"
	Bounced      EventKind = "bounced"
	Dropped      EventKind = "dropped"
	Blocked      EventKind = "blocked"
	Rejected     EventKind = "rejected"
	Complained   EventKind = "complained"
	Unsubscribed EventKind = "unsubscribed"
	Opened       EventKind = "opened"
	Clicked      EventKind = "clicked"
)

// EventKinds lists the kinds.
var EventKinds = []EventKind{
	Processed,
	Delivered,
	Deferred,
	Bounced,
	Dropped,
	Blocked,
	Rejected,
	Complained,
	Unsubscribed,
	Opened,
	Clicked,
}

// Valid reports whether k is one of the kinds.
func (k EventKind) Valid() bool { return slices.Contains(EventKinds, k) }

// Failure reports whether k means that the provider has given up.
func (k EventKind) Failure() bool {
	return k == Bounced || k == Dropped || k == Blocked || k == Rejected
}

// Event is what a provider reported of one recipient, in our words.
type Event struct {
	ID          string    `json:"id"` // the provider's, or a hash where it has none; repeats carry the same
	Recipient   int       `json:"r"`
	Attempt     int       `json:"n"`
	Provider    string    `json:"a"`
	Kind        EventKind `json:"k"`
	At          time.Time `json:"at"`
	Reason      Reason    `json:"re,omitempty"` // of failures and deferrals
	BounceClass string    `json:"bc,omitempty"` // the provider's own classification
	Status      int       `json:"s,omitempty"`  // SMTP reply code
	Enhanced    string    `json:"e,omitempty"`  // enhanced status code, "5.1.1"
	Text        string    `json:"tx,omitempty"` // the receiving server's or provider's words, at most 500 bytes
	Async       bool      `json:"as,omitempty"` // a bounce after an acceptance by the receiving server

	// ParseRevision is 0 when the post was read for the first time, and higher when it
	// was read again, by a fixed parser: the newest reading of an event
	// counts.
	ParseRevision int64 `json:"rd,omitempty"`
}

// Fact is something that is known to have happened to recipients of a chunk.
// Facts never change and come in any order and any number of times. Writing
// one twice under its key is writing it once.
type Fact struct {
	Key     string   `json:"-"`
	Outcome *Outcome `json:"o,omitempty"`
	Events  []Event  `json:"e,omitempty"`

	// VersionFloor raises the version of what is counted of the chunk: a summary claimed to
	// know more than there is, and whatever is counted from now on is newer.
	VersionFloor int64 `json:"l,omitempty"`
}

// OutcomeKey is the key of the fact that holds the answer to attempt n.
func OutcomeKey(n int) string { return "o" + strconv.Itoa(n) }

// EvidenceKey is the key of a fact that was looked up about attempt n.
func EvidenceKey(n int, source string) string { return "v" + strconv.Itoa(n) + "." + source }

// EventsKey is the key of a fact that holds the events of some inbox entries
// that concern one chunk. It names exactly these entries, in any order: the same
// events grouped otherwise are another fact, and recognised as repeats by their
// own ids.
func EventsKey(posts ...ID) string {
	if len(posts) == 1 {
		return "e" + posts[0].String()
	}
	posts = slices.Clone(posts)
	slices.SortFunc(posts, func(a, b ID) int { return bytes.Compare(a[:], b[:]) })
	h := sha256.New()
	for _, id := range posts {
		_, _ = h.Write(id[:])
	}
	return "g" + hex.EncodeToString(h.Sum(nil)[:16])
}

// ParseRevisionKey is EventsKey for posts that were read again.
func ParseRevisionKey(reading int64, posts ...ID) string {
	return "r" + strconv.FormatInt(reading, 10) + "." + EventsKey(posts...)
}

// VersionFloorKey is the key of a fact that lifts the version above that of a summary.
func VersionFloorKey(version int64) string { return "l" + strconv.FormatInt(version, 10) }

// MaxText bounds the words of a provider that are kept with a fact.
const MaxText = 500
