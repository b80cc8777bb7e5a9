package models

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Class is the meaning of a provider's answer to a call.
type Class string

// The classes of outcome.
const (
	Accepted          Class = "accepted"           // the provider took responsibility
	RejectedRecipient Class = "rejected_recipient" // the address is rejected everywhere
	RejectedRequest   Class = "rejected_request"   // the message is rejected everywhere
	RejectedHereClass Class = "rejected_here"      // a limit of this provider
	AccountClass      Class = "account"            // key, quota, suspension, or one unverified sender; RetryAt, too
	Throttled         Class = "throttled"          // too fast; RetryAt says when, if known
	Unavailable       Class = "unavailable"        // certainly not accepted; RetryAt as for throttled
	Unknown           Class = "unknown"            // may have been accepted
	// Split: the whole call was rejected because of some recipient in it, and nothing
	// was accepted. The recipients are sent again in smaller calls.
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

// Refused reports whether c means that the provider certainly did not accept the
// mail.
func (c Class) Refused() bool { return c.Valid() && c != Accepted && c != Unknown }

// Outcome is the result of one attempt: one part per group of recipients. Recipients
// of the attempt that no part names have an unknown outcome.
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
	RetryAt    time.Time `json:"ra,omitzero"` // of throttled, unavailable and account: when it may be asked again
	// Fewer is how many recipients a call may have, if this one was rejected_here because it had more. An adapter
	// that was not given a number says one fewer than the call had.
	Fewer int  `json:"fw,omitempty"`
	Final bool `json:"f,omitempty"` // accepted through a provider without events: counts as delivered, unconfirmed
}

// ProviderFailed reports whether the call failed for a reason that concerns any mail of the provider. The provider is
// down, hangs, asks to wait, or rejects its credentials or quota.
func (p *Part) ProviderFailed() bool {
	switch p.Class {
	case AccountClass:
		return p.Reason != SenderNotVerified
	case Throttled, Unavailable, Unknown:
		return !p.Reason.Uncalled()
	case Accepted, RejectedRecipient, RejectedRequest, RejectedHereClass, Split:
	}
	return false
}

// Words describes a part that refuses mail: its status and the provider's text, or its reason.
func (p *Part) Words() string {
	if p.Status == 0 {
		return cmp.Or(p.Text, p.reason().Words())
	}
	status := strings.TrimSpace(strconv.Itoa(p.Status) + " " + http.StatusText(p.Status))
	switch {
	case p.Text == "" || strings.Contains(status, p.Text):
		return status
	case strings.HasPrefix(p.Text, strconv.Itoa(p.Status)):
		return p.Text
	}
	return status + ": " + p.Text
}

// EventKind is the kind of a provider's event.
type EventKind string

// The kinds of event. Bounced, Dropped, Blocked and Rejected mean that the provider
// gave up, Deferred that it retries.
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

// Failure reports whether k means that the provider gave up.
func (k EventKind) Failure() bool {
	return k == Bounced || k == Dropped || k == Blocked || k == Rejected
}

// BatchEnded is the event that no log of a batch is queued any more. No provider reports it.
const BatchEnded EventKind = "done"

// EndpointFailed is the event that an endpoint was disabled, in the feed of its user. No provider reports it.
const EndpointFailed EventKind = "endpoint_disabled"

// FeedEvents lists the kinds of event that a feed publishes.
var FeedEvents = []EventKind{Deferred, Bounced, Complained, Unsubscribed, Opened, Clicked}

// inFeed returns the kind as which a feed publishes an event, or "" if it does not. All reports that a provider gave
// up are Bounced.
func (k EventKind) inFeed() EventKind {
	switch {
	case k.Failure():
		return Bounced
	case slices.Contains(FeedEvents, k):
		return k
	}
	return ""
}

// Engagement reports whether k means that the recipient has the mail, although it is no
// report of its delivery.
func (k EventKind) Engagement() bool {
	return k == Opened || k == Clicked || k.OptsOut()
}

// OptsOut reports whether k means that the recipient does not want the mail.
func (k EventKind) OptsOut() bool { return k == Complained || k == Unsubscribed }

// Event is a provider's report about one recipient.
type Event struct {
	ID          string    `json:"id"` // the provider's, or a hash if it has none; repeats have the same
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
	Guess       bool      `json:"g,omitempty"`  // only the address says which attempt it is about

	// ParseRevision is 0 if the webhook was parsed once, and higher if it was parsed
	// again by a fixed parser. The highest revision of an event counts.
	ParseRevision int64 `json:"rd,omitempty"`
}

// Fact is something known to have happened to recipients of a chunk. Facts never
// change and come in any order and any number of times. Writing a fact is
// idempotent under its key.
type Fact struct {
	Key     string   `json:"-"`
	Outcome *Outcome `json:"o,omitempty"`
	Events  []Event  `json:"e,omitempty"`

	// VersionFloor raises the version of the chunk's summaries, so that they replace a
	// stored summary whose version is too high.
	VersionFloor int64 `json:"l,omitempty"`
}

// OutcomeKey returns the key of the fact with the answer to the call of ledger entry n, an attempt or a repeat.
func OutcomeKey(n int) string { return "o" + strconv.Itoa(n) }

// OutcomeKeys returns bounds of the keys that OutcomeKey returns: from <= key < to. No other
// key is between them.
func OutcomeKeys() (from, to string) { return "o", "p" }

// EventsKey returns the key of a fact with the events of some inbox entries about one
// chunk. It names exactly these entries, in any order. The same events in another
// group are another fact, and their own IDs identify them as repeats.
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

// revisionPrefix begins the keys that ParseRevisionKey returns, and no others.
const revisionPrefix = "r"

// ParseRevisionKey is like EventsKey, for webhooks that were parsed again.
func ParseRevisionKey(reading int64, posts ...ID) string {
	return revisionPrefix + strconv.FormatInt(reading, 10) + "." + EventsKey(posts...)
}

// VersionFloorKey returns the key of a fact with a VersionFloor.
func VersionFloorKey(version int64) string { return "l" + strconv.FormatInt(version, 10) }

// MaxText is the maximum length of a provider's text in a fact, in bytes.
const MaxText = 500

func sortedEntries(entries []Entry) []Entry {
	sorted := func(a, b Entry) int { return cmp.Compare(a.Number, b.Number) }
	if !slices.IsSortedFunc(entries, sorted) {
		entries = slices.Clone(entries)
		slices.SortFunc(entries, sorted)
	}
	return slices.CompactFunc(slices.Clone(entries), func(a, b Entry) bool { return a.Number == b.Number })
}

// distinctFacts sorts facts by key and drops repeats, so that the order of arrival does
// not matter.
func distinctFacts(facts []Fact) []Fact {
	facts = slices.Clone(facts)
	slices.SortFunc(facts, func(a, b Fact) int { return cmp.Compare(a.Key, b.Key) })
	return slices.CompactFunc(facts, func(a, b Fact) bool { return a.Key == b.Key })
}

// lifted returns how much the facts raise the version.
func lifted(facts []Fact) (by int64) {
	for i := range facts {
		by += max(0, facts[i].VersionFloor)
	}
	return by
}

// Events lists the distinct events of facts, each in its newest parse revision.
func Events(facts []Fact) []*Event { return distinctEvents(facts) }

// distinctEvents drops repeats and sorts the rest. A repeat has the provider's ID of another
// event, or differs from it only in the ID: SendGrid may send an event again under another.
func distinctEvents(facts []Fact) []*Event {
	n := 0
	for i := range facts {
		n += len(facts[i].Events)
	}
	if n == 0 {
		return nil
	}
	out := make([]*Event, 0, n)
	again := false
	for i := range facts {
		for k := range facts[i].Events {
			out = append(out, &facts[i].Events[k])
			again = again || facts[i].Events[k].ParseRevision > 0
		}
	}
	if again {
		out = newestReadings(out)
	}
	slices.SortFunc(out, inOrder)
	kept, run := out[:0], 0 // run is where in kept the events begin that differ only in what follows the kind
	for _, e := range out {
		if len(kept) == 0 || !e.together(kept[len(kept)-1]) {
			run = len(kept)
		}
		if !slices.ContainsFunc(kept[run:], e.repeats) {
			kept = append(kept, e)
		}
	}
	clear(out[len(kept):])
	return kept
}

// together reports whether two events are of one kind, and happened at one time to one
// recipient of one attempt.
func (e *Event) together(o *Event) bool {
	return e.Kind == o.Kind && e.Provider == o.Provider && e.Attempt == o.Attempt && e.Recipient == o.Recipient &&
		e.At.Equal(o.At)
}

// repeats reports whether one of two events that happened together repeats the other.
func (e *Event) repeats(o *Event) bool {
	return e.ID == o.ID || e.Reason == o.Reason && e.Text == o.Text && e.Status == o.Status &&
		e.Enhanced == o.Enhanced && e.BounceClass == o.BounceClass
}

// inOrder compares events. It compares the fields that decide most often first, because
// sorting is the largest part of the cost of Resolve.
func inOrder(a, b *Event) int {
	if n := cmp.Or(a.Attempt-b.Attempt, a.Recipient-b.Recipient); n != 0 {
		return n
	}
	if n := a.At.Compare(b.At); n != 0 {
		return n
	}
	return cmp.Or(
		cmp.Compare(a.Provider, b.Provider),
		cmp.Compare(a.Kind, b.Kind),
		cmp.Compare(a.ID, b.ID),
		cmp.Compare(a.Reason, b.Reason),
		cmp.Compare(a.Text, b.Text),
	)
}

// newestReadings drops events that have a newer reading.
func newestReadings(events []*Event) []*Event {
	type key struct {
		provider, id       string
		attempt, recipient int
	}
	newest := map[key]int64{}
	of := func(e *Event) key { return key{e.Provider, e.ID, e.Attempt, e.Recipient} }
	for _, e := range events {
		newest[of(e)] = max(newest[of(e)], e.ParseRevision)
	}
	return slices.DeleteFunc(events, func(e *Event) bool { return e.ParseRevision < newest[of(e)] })
}
