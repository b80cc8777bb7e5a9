package models

import (
	"cmp"
	"slices"
	"time"
)

// State is the state of a log.
type State string

// The states of a log.
const (
	Queued    State = "queued"
	Success   State = "delivered" // or accepted by a provider that reports no deliveries
	Failed    State = "failed"
	Cancelled State = "cancelled"
)

// Valid reports whether s is one of the states.
func (s State) Valid() bool { return s == Queued || s == Success || s == Failed || s == Cancelled }

// Verdict is the result of one attempt for one recipient, as far as it is known.
type Verdict string

// The verdicts.
const (
	VerdictPending   Verdict = "open"      // no answer is known
	VerdictUnknown   Verdict = "unknown"   // the answer leaves the outcome unknown
	VerdictAccepted  Verdict = "accepted"  // accepted; no final event yet
	VerdictRefused   Verdict = "refused"   // not accepted
	VerdictFailed    Verdict = "failed"    // accepted, then reported as failed
	VerdictDelivered Verdict = "delivered" // delivered (or accepted through a provider without events)
)

// Settled reports whether another attempt can follow without the risk of a double.
func (v Verdict) Settled() bool {
	return v == VerdictRefused || v == VerdictFailed || v == VerdictDelivered
}

// Try is one attempt for one recipient.
type Try struct {
	Attempt     int
	Provider    string
	Verdict     Verdict
	Class       Class  // of the answer; empty: no answer is known
	Reason      Reason // why it was refused or failed
	Text        string // the provider's words
	Status      int
	At          time.Time // of the answer or the deciding event
	RetryAt     time.Time // of an answer that is throttled or unavailable
	Unconfirmed bool
	Implied     bool // delivered, because the recipient reacted to it
	OptedOut    bool // the recipient complained or unsubscribed
	Deferred    bool
	Guess       bool // failed, by an event that names only an address
}

// Status is the state of one log. It must not be changed: logs with the same history
// share one Standing to save memory.
type Status struct{ *Standing }

// Standing is the state of a log and how it came about.
type Standing struct {
	State     State
	Reason    Reason // why it failed or was cancelled; Unconfirmed or Implied if no delivery was reported
	EndedBy   Reason // what ended it, if that is not the reason: no provider was left, or the retries were used up
	Detail    string // text of the provider or of an entry
	Provider  string // the provider that decided, if one did
	MayDouble bool   // sent again while an earlier outcome was unknown
	Copies    int    // attempts known to be delivered; 2 or more: doubled
	Attempts  int    // attempts that covered the recipient
	Retries   int    // attempts that count as retries
	Splits    int    // attempts that were made to find a bad recipient
	Called    bool   // a provider was called, or may have been
	Last      Try    // the newest attempt; if it was refused, the newest accepted one
	Accepted  *Try   // newest accepted attempt without a final event; nil: none, or released manually since
	Released  bool   // released manually, and no attempt since
	OptedOut  bool   // the recipient complained or unsubscribed: nothing is sent again
}

// Tried reports whether any attempt covered the recipient.
func (s *Status) Tried() bool { return s.Attempts > 0 }

// Waiting reports whether a decision is due: the log is queued and no attempt is
// unsettled.
func (s *Status) Waiting() bool {
	return s.State == Queued && (s.Attempts == 0 || s.Released || s.Last.Verdict.Settled())
}

// Unsettled reports whether a provider may have the mail: the newest attempt is
// open, unknown, or accepted without a final event.
func (s *Status) Unsettled() bool {
	return s.State == Queued && s.Attempts > 0 && !s.Released && !s.Last.Verdict.Settled()
}

// View is the resolved state of one chunk.
type View struct {
	Size    int      // recipients
	Entries []Entry  // the ledger, ascending
	Version int64    // number of entries and facts, plus their version floors
	Logs    []Status // Logs[i] is recipient i+1

	attempts []attempted  // ascending
	events   []FeedChange // those that a feed tells, without numbers
	reparsed bool         // some webhooks were parsed again
}

// attempted has the tries of one attempt by recipient.
type attempted struct {
	entry *Entry
	first int    // recipient of tries[0]
	tries []*Try // nil: not covered; shared until a recipient has events
	own   Set    // recipients with a try of their own
}

// of returns the try of recipient r, or nil if the attempt does not cover r.
func (a *attempted) of(r int) *Try {
	if i := r - a.first; i >= 0 && i < len(a.tries) {
		return a.tries[i]
	}
	return nil
}

// Status returns the status of recipient r (from 1).
func (v *View) Status(r int) *Status { return &v.Logs[r-1] }

// Tries lists the attempts that covered recipient r, oldest first.
func (v *View) Tries(r int) []Try {
	var out []Try
	v.EachTry(r, func(t *Try) { out = append(out, *t) })
	return out
}

// EachTry calls f for every attempt that covered recipient r, oldest first. f must not
// change the try.
func (v *View) EachTry(r int, f func(*Try)) {
	for i := range v.attempts {
		if t := v.attempts[i].of(r); t != nil {
			f(t)
		}
	}
}

// Where returns the recipients whose status satisfies ok.
func (v *View) Where(ok func(r int, s *Status) bool) Set {
	var out Set
	for i := range v.Logs {
		if ok(i+1, &v.Logs[i]) {
			out.Add(i + 1)
		}
	}
	return out
}

// taken reports whether a try shows that its provider has accepted the mail.
func (t *Try) taken() bool {
	return t.Verdict == VerdictAccepted || t.Verdict == VerdictDelivered || t.Verdict == VerdictFailed
}

// Taken reports whether a provider is known to have accepted mail of the chunk.
func (v *View) Taken() (taken bool) {
	for r := 1; r <= v.Size && !taken; r++ {
		v.EachTry(r, func(t *Try) { taken = taken || t.taken() })
	}
	return taken
}

// TakenTogether returns a try of another recipient that shows that a provider has accepted one mail
// to both, although it is not known of recipient r; nil: there is none.
func (v *View) TakenTogether(r int) (found *Try) {
	for i := range v.attempts {
		a := &v.attempts[i]
		t := a.of(r)
		if !a.entry.Together || t == nil || t.taken() {
			continue
		}
		for other := range a.entry.Recipients.All() {
			if t := a.of(other); t != nil && t.taken() {
				found = t
			}
		}
	}
	return found
}

// Entry returns ledger entry n, or the zero Entry if there is none.
func (v *View) Entry(n int) Entry {
	i, ok := slices.BinarySearchFunc(v.Entries, n, func(e Entry, n int) int { return cmp.Compare(e.Number, n) })
	if !ok {
		return Entry{}
	}
	return v.Entries[i]
}

// CallEnded returns when the call of an attempt had ended: at its answer, or at the latest
// time at which it can run if none is known.
func (v *View) CallEnded(t *Try) time.Time {
	ends := v.Entry(t.Attempt).CallEnds
	if t.Verdict == VerdictUnknown {
		return EarlierOf(t.At, ends)
	}
	return ends
}

// NextNumber returns the number of the next ledger entry.
func (v *View) NextNumber() int {
	if n := len(v.Entries); n > 0 {
		return v.Entries[n-1].Number + 1
	}
	return 1
}
