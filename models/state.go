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
	Queued    State = "queued"    // it waits here, or it is not known whether a provider has it
	Sent      State = "sent"      // a provider accepted it and has not reported the result
	Success   State = "delivered" // or accepted by a provider that reports no deliveries
	Failed    State = "failed"
	Cancelled State = "cancelled"
)

// Valid reports whether s is one of the states.
func (s State) Valid() bool { return s.Open() || s == Success || s == Failed || s == Cancelled }

// Open reports whether a log in the state may still change without a command: it is queued or sent.
func (s State) Open() bool { return s == Queued || s == Sent }

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
	RetryAt     time.Time // when the provider may be asked again, if its answer said so
	Fewer       int       // how many recipients a call may have, if it was refused because it had more
	Unconfirmed bool
	Implied     bool // delivered, because the recipient reacted to it
	OptedOut    bool // the recipient complained or unsubscribed
	Deferred    bool
	Guess       bool // failed, by an event that names only an address
}

// Status is the state of one log. It must not be changed: logs with the same history share one Result to save memory.
type Status struct{ *Result }

// Result is the state of a log and how it came about.
type Result struct {
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

// Waiting reports whether a decision is due: the log is queued and no attempt is unsettled.
func (s *Status) Waiting() bool {
	return s.State == Queued && (s.Attempts == 0 || s.Released || s.Last.Verdict.Settled())
}

// Unsettled reports whether a provider may have the mail: the newest attempt is open, unknown, or accepted without a
// final event.
func (s *Status) Unsettled() bool {
	return s.State.Open() && s.Attempts > 0 && !s.Released && !s.Last.Verdict.Settled()
}

// View is the resolved state of one chunk.
type View struct {
	Size    int      // recipients
	Entries []Entry  // the ledger, ascending
	Version int64    // number of entries and facts, plus their version floors
	Logs    []Status // Logs[i] is recipient i+1

	attempts []attempted  // ascending
	events   []FeedChange // those that a feed publishes, without numbers
	reparsed bool         // some webhooks were parsed again
}

// attempted has the tries of one attempt by recipient.
type attempted struct {
	entry  *Entry
	repeat int    // number of the entry of its last repeat that called; 0: none
	first  int    // recipient of tries[0]
	tries  []*Try // nil: not covered; shared until a recipient has events
	own    Set    // recipients with a try of their own
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

// EachTry calls f for every attempt that covered recipient r, oldest first. f must not change the try.
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

// WantsFewer reports whether the provider refused the number of recipients of the call.
func (t *Try) WantsFewer() bool { return t.Verdict == VerdictRefused && t.Fewer > 0 }

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

// TakenTogether returns a try of another recipient that shows that a provider has accepted one mail to both, although
// it is not known of recipient r; nil: there is none.
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

// CallEnded returns when the call of an attempt and its repeats had ended: at its answer, or at the latest time at
// which it can run if none is known.
func (v *View) CallEnded(t *Try) time.Time {
	ends := v.Entry(t.Attempt).CallEnds
	if t.Verdict == VerdictUnknown {
		ends = EarlierOf(t.At, ends)
	}
	for i := range v.Entries {
		if v.Entries[i].Repeats == t.Attempt {
			ends = LaterOf(ends, v.Entries[i].CallEnds)
		}
	}
	return ends
}

// Repeatable reports whether the call of attempt n may be made again, and how often it was. It may not if anything was
// decided about one of its recipients since. The call would not be the same, or would send mail that is no longer
// wanted. Nor may it if another provider has the mail of one, or if the answer has refused one. A repeat would hide the
// refusal.
func (v *View) Repeatable(n int) (repeats int, ok bool) {
	e := v.Entry(n)
	for i := range v.Entries {
		later := &v.Entries[i]
		switch {
		case later.Number <= n || later.Recipients.And(e.Recipients).Empty():
		case later.Repeats != n || later.Reason != "":
			return repeats, false
		default:
			repeats++
		}
	}
	for i := range v.attempts {
		a := &v.attempts[i]
		for r := range e.Recipients.All() {
			t := a.of(r)
			if t != nil && (t.Attempt == n && t.Verdict == VerdictRefused ||
				t.Attempt != n && (t.Verdict == VerdictAccepted || t.Verdict == VerdictDelivered)) {
				return repeats, false
			}
		}
	}
	return repeats, e.Kind == Attempt
}

// NextNumber returns the number of the next ledger entry.
func (v *View) NextNumber() int {
	if n := len(v.Entries); n > 0 {
		return v.Entries[n-1].Number + 1
	}
	return 1
}

// SummaryOf returns the counts of the view of a chunk, and those of each provider. Its batch is in some groups, and is
// counted once, with its first chunk.
func (v *View) SummaryOf(chunk ID, in []Group) Summary {
	s := v.Summary()
	s.In = in
	if chunk.ChunkNumber() == 0 {
		s.Batches = 1
	}
	v.groupByProvider(&s)
	return s
}

// Summary returns the counts of the logs of the view.
func (v *View) Summary() Summary {
	s := Summary{Version: v.Version}
	for i := range v.Logs {
		v.Logs[i].count(&s)
		v.countProviders(i+1, &s)
	}
	v.countEvents(&s)
	return s
}

// count adds the log to a sum.
func (s *Status) count(to *Summary) {
	to.Accepted++
	switch s.State {
	case Queued:
		to.Queued++
		switch {
		case s.Attempts == 0:
			to.Untried++
		case s.Last.Verdict == VerdictPending || s.Last.Verdict == VerdictUnknown:
			to.Awaited++
		}
	case Sent:
		to.Sent++
	case Success:
		to.Success++
		if s.Reason == Unconfirmed {
			to.Unconfirmed++
		}
	case Failed:
		to.Failed++
		if to.Reasons == nil {
			to.Reasons = map[Reason]int64{}
		}
		to.Reasons[s.Reason]++
	case Cancelled:
		to.Cancelled++
	}
	if s.MayDouble {
		to.MayDouble++
	}
	if s.Copies > 1 {
		to.Doubled++
	}
}

// groupByProvider adds to s what it counts of each provider. If all logs were tried at one provider only, s itself is
// that, and nothing is counted again.
func (v *View) groupByProvider(s *Summary) {
	for name, c := range s.Providers {
		if c.Tried == s.Accepted && len(s.Providers) == 1 {
			s.In = append([]Group{{ByProvider, name}}, s.In...)
			return
		}
		if s.Groups == nil {
			s.Groups = map[Group]*Summary{}
		}
		s.Groups[Group{ByProvider, name}] = &Summary{Batches: s.Batches, Providers: map[string]ProviderCounts{name: c}}
	}
	for i := range v.Logs {
		if g := s.Groups[Group{ByProvider, v.Logs[i].at()}]; g != nil {
			v.Logs[i].count(g)
		}
	}
	for i := range v.events {
		g, c := s.Groups[Group{ByProvider, v.events[i].Provider}], &v.events[i]
		if g.Events == nil {
			g.Events = map[EventKind]int64{}
		}
		g.Events[c.Event] += int64(c.Recipients.Len()) // of each kind and provider a log has one
	}
	for k, g := range s.Groups {
		g.Rerouted = s.Providers[k.Name].Tried - g.Accepted
	}
}

// at returns the provider that the log counts for, or "" if none was tried.
func (s *Status) at() string { return cmp.Or(s.Provider, s.Last.Provider) }

// countEvents counts the logs that have an event of each kind.
func (v *View) countEvents(s *Summary) {
	who := map[EventKind]Set{}
	for i := range v.events {
		who[v.events[i].Event] = who[v.events[i].Event].Or(v.events[i].Recipients)
	}
	for kind, recipients := range who {
		if s.Events == nil {
			s.Events = map[EventKind]int64{}
		}
		s.Events[kind] = int64(recipients.Len())
	}
}

// countProviders adds the newest try of recipient r at each provider.
func (v *View) countProviders(r int, s *Summary) {
	providers := 0
	for i := len(v.attempts) - 1; i >= 0; i-- {
		e, t := v.attempts[i].entry, v.attempts[i].of(r)
		if t == nil || v.triedLater(i, r, e.Provider) {
			continue
		}
		providers++
		if s.Providers == nil {
			s.Providers = map[string]ProviderCounts{}
		}
		c := s.Providers[e.Provider]
		c.Tried++
		switch t.Verdict {
		case VerdictDelivered:
			c.Delivered++
		case VerdictRefused:
			c.Refused++
		case VerdictFailed:
			c.Failed++
		case VerdictAccepted:
			c.Waiting++
		case VerdictPending:
			if v.Logs[r-1].State.Open() {
				c.Pending++
			} else {
				c.Unknown++ // no call waits for an answer any more
			}
		case VerdictUnknown:
			c.Unknown++
		}
		s.Providers[e.Provider] = c
	}
	if providers > 1 {
		s.Rerouted++
	}
}

func (v *View) triedLater(i, r int, provider string) bool {
	for k := i + 1; k < len(v.attempts); k++ {
		if v.attempts[k].entry.Provider == provider && v.attempts[k].of(r) != nil {
			return true
		}
	}
	return false
}
