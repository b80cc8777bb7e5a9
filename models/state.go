package models

import (
	"cmp"
	"slices"
	"time"
)

// State is where a log stands.
type State string

// The states of a log.
const (
	Queued    State = "queued"
	Success   State = "success"
	Failed    State = "failed"
	Cancelled State = "cancelled"
)

// Valid reports whether s is one of the states.
func (s State) Valid() bool { return s == Queued || s == Success || s == Failed || s == Cancelled }

// Verdict is what is known of one attempt for one recipient.
type Verdict string

// The verdicts.
const (
	VerdictPending   Verdict = "open"      // no answer is known (yet)
	VerdictUnknown   Verdict = "unknown"   // the answer itself leaves the outcome unknown
	VerdictAccepted  Verdict = "accepted"  // the provider has it; no final event yet
	VerdictRefused   Verdict = "refused"   // the provider did not take it
	VerdictFailed    Verdict = "failed"    // the provider took it and reported a failure
	VerdictDelivered Verdict = "delivered" // delivered (or accepted through a provider without events)
)

// Settled reports whether another attempt may follow without risk.
func (v Verdict) Settled() bool {
	return v == VerdictRefused || v == VerdictFailed || v == VerdictDelivered
}

// Try is one attempt as one recipient sees it.
type Try struct {
	Attempt     int
	Provider    string
	Verdict     Verdict
	Class       Class  // of the answer; empty while none is known
	Reason      Reason // why refused or failed
	Text        string // the provider's words
	Status      int
	At          time.Time // of the answer or the deciding event
	RetryAt     time.Time // of an answer throttled or unavailable
	Unconfirmed bool
	Deferred    bool
}

// Status is the state of one log. It is only read: logs with the same history
// share one Standing, because a thousand of them take a quarter of a megabyte.
type Status struct{ *Standing }

// Standing is a state and what it was derived from.
type Standing struct {
	State     State
	Reason    Reason // why it failed or was cancelled; Unconfirmed for such a success
	Detail    string // the provider's words, or ours
	Provider  string // the provider that decided, if one did
	MayDouble bool   // it was sent again while an earlier outcome was not known
	Copies    int    // attempts known to have been delivered; 2 and more is a doubled mail
	Attempts  int    // attempts that covered the recipient
	Retries   int    // attempts that count as retries
	Splits    int    // attempts that were made to find a bad recipient
	Called    bool   // some attempt counts: a provider was asked, or may have been
	Last      Try    // the newest attempt; where that was refused, the newest one that a provider has
	Accepted  *Try   // newest accepted attempt without a final event; nil: none, or released manually since
	Released  bool   // released manually, and no attempt since
}

// Tried reports whether any attempt covered the recipient.
func (s *Status) Tried() bool { return s.Attempts > 0 }

// Waiting reports whether a decision is due: queued, and no attempt is
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
	Version int64    // entries plus facts it was made from, and by how much these lift it
	Logs    []Status // Logs[i] is recipient i+1

	attempts []attempted // ascending
}

// attempted is what is known of one attempt, by recipient.
type attempted struct {
	entry *Entry
	first int    // recipient that tries[0] is about
	tries []*Try // nil where the attempt does not cover the recipient; otherwise shared until the recipient has events
	own   Set    // recipients that share their try with no other
}

// of returns the try of recipient r, nil if the attempt does not cover r.
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

// EachTry calls f for every attempt that covered recipient r, oldest first. f
// only reads the try.
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

// Entry returns ledger entry n; the zero Entry if there is none.
func (v *View) Entry(n int) Entry {
	i, ok := slices.BinarySearchFunc(v.Entries, n, func(e Entry, n int) int { return cmp.Compare(e.Number, n) })
	if !ok {
		return Entry{}
	}
	return v.Entries[i]
}

// NextNumber is the number the next ledger entry must have.
func (v *View) NextNumber() int {
	if n := len(v.Entries); n > 0 {
		return v.Entries[n-1].Number + 1
	}
	return 1
}
