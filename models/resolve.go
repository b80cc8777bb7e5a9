package models

import (
	"slices"
	"strings"
)

// Resolve returns the state of every log of a chunk of size recipients from its ledger
// and facts. It is a pure function: it depends on no clock, configuration or provider
// name. Facts may come in any order and any number of times.
//
// Within one attempt a bounce beats delivered, whichever came first. Across attempts
// delivered wins. Opens, clicks, complaints and unsubscribes imply that accepted mail was
// delivered. Deferrals do not change the state. An event counts only for the attempt and
// the provider that it names. After a soft failure a log is queued until an ending; a hard
// failure ends it, and so does any failure of mail that the recipient does not want.
func Resolve(size int, entries []Entry, facts []Fact) *View {
	v := &View{Size: size, Entries: sortedEntries(entries), Logs: make([]Status, size)}
	facts = distinctFacts(facts)
	v.reparsed = slices.ContainsFunc(facts, func(f Fact) bool { return strings.HasPrefix(f.Key, revisionPrefix) })
	v.Version = int64(len(v.Entries)+len(facts)) + lifted(facts)

	byNumber := map[int]int{} // attempt number -> index in attempts
	for i := range v.Entries {
		e := &v.Entries[i]
		if e.Kind == Attempt {
			byNumber[e.Number] = len(v.attempts)
			v.attempts = append(v.attempts, openTries(e, size))
		} else if a, ok := byNumber[e.Repeats]; ok && e.Kind == Repeat && e.Reason == "" {
			v.attempts[a].repeat = e.Number
		}
	}
	for i := range facts {
		if o := facts[i].Outcome; o != nil {
			if a, ok := byNumber[o.Attempt]; ok {
				v.attempts[a].outcome(facts[i].Key, o)
			}
		}
	}
	var made pool[Try]
	for _, e := range distinctEvents(facts) {
		if a, ok := byNumber[e.Attempt]; ok && v.attempts[a].event(e, &made) {
			v.note(e)
		}
	}
	v.settleAll()
	return v
}

// pool allocates values in groups, each twice as large as the one before, up to 64.
type pool[T any] struct {
	free []T
	size int // of the next group
}

func (p *pool[T]) new() *T {
	if len(p.free) == 0 {
		p.size = max(p.size, 1)
		p.free = make([]T, p.size)
		p.size = min(2*p.size, 64)
	}
	t := &p.free[0]
	p.free = p.free[1:]
	return t
}

func openTries(e *Entry, size int) attempted {
	a := attempted{entry: e, first: e.Recipients.First()}
	open := &Try{Attempt: e.Number, Provider: e.Provider, Verdict: VerdictPending, At: e.At}
	for r := range e.Recipients.All() {
		if r > size {
			break
		}
		if a.tries == nil {
			a.tries = make([]*Try, 0, min(size-r+1, e.Recipients.Len()+64))
		}
		for len(a.tries) < r-a.first {
			a.tries = append(a.tries, nil)
		}
		a.tries = append(a.tries, open)
	}
	return a
}

// weight orders the answers to one attempt. There are two only if one came late or was
// looked up.
func (p *Part) weight() int {
	switch {
	case p.Ends() != "":
		return 4
	case p.Class == Accepted:
		return 3
	case p.Class.Refused():
		return 2
	}
	return 1
}

// Ends returns the reason if the answer ends logs by itself, else "".
func (p *Part) Ends() Reason {
	if reason := p.reason(); p.Class.Refused() && reason.Hard() {
		return reason
	}
	return ""
}

// reason returns the part's reason, or the one that its class implies.
func (p *Part) reason() Reason {
	if p.Class == Split {
		return refusedTogether // the reason may be about another recipient
	}
	if p.Reason != "" {
		return p.Reason
	}
	switch p.Class {
	case RejectedRecipient:
		return MailboxInvalid
	case RejectedRequest:
		return InvalidRequest
	case RejectedHereClass:
		return RejectedHere
	case AccountClass:
		return ProviderAccount
	case Throttled:
		return RateLimited
	case Unavailable:
		return ProviderUnavailable
	case Unknown:
		return OutcomeUnknown
	case Accepted, Split:
	}
	return ""
}

// outcome applies the answer to a call of the attempt, the fact with a key. A refusal says nothing of a
// repeat that came after it.
func (a *attempted) outcome(key string, o *Outcome) {
	earlier := a.repeat > 0 && key != OutcomeKey(a.repeat)
	for i := range o.Parts {
		p := &o.Parts[i]
		if !p.Class.Valid() || earlier && p.Class.Refused() {
			continue
		}
		var from, to *Try // recipients that shared a try share its successor
		for r := range p.Recipients.All() {
			t := a.of(r)
			if t == nil {
				continue
			}
			if t != from {
				from, to = t, t.answered(o, p)
			}
			a.tries[r-a.first] = to
		}
	}
}

// answered returns the try after part p of an answer, or t if p changes nothing.
func (t *Try) answered(o *Outcome, p *Part) *Try {
	if t.Class != "" && (&Part{Class: t.Class, Reason: t.Reason}).weight() >= p.weight() {
		return t
	}
	next := *t
	t = &next
	t.Class, t.Status, t.Text, t.RetryAt, t.Fewer = p.Class, p.Status, p.Text, p.RetryAt, p.Fewer
	t.At, t.Reason, t.Unconfirmed = o.At, p.reason(), false
	switch {
	case p.Class == Accepted && p.Final:
		t.Verdict, t.Unconfirmed = VerdictDelivered, true
	case p.Class == Accepted:
		t.Verdict = VerdictAccepted
	case p.Class == Unknown:
		t.Verdict = VerdictUnknown
	default:
		t.Verdict = VerdictRefused
	}
	return t
}

// event applies one event to the attempt. It reports false if the event is not about it.
func (a *attempted) event(ev *Event, made *pool[Try]) bool {
	t := a.of(ev.Recipient)
	if t == nil || ev.Provider != a.entry.Provider || !ev.Kind.Valid() {
		return false
	}
	if !a.own.Has(ev.Recipient) {
		shared := t
		t = made.new()
		*t = *shared
		a.tries[ev.Recipient-a.first] = t
		a.own.Add(ev.Recipient)
	}
	t.event(ev)
	return true
}

// event applies one event to the try.
func (t *Try) event(ev *Event) {
	t.OptedOut = t.OptedOut || ev.Kind.OptsOut()
	switch {
	case ev.Kind.Failure():
		reason := ev.Reason
		switch {
		case reason != "":
		case ev.Kind == Dropped, ev.Kind == Rejected:
			reason = ProviderDropped
		default:
			reason = BounceUnknown
		}
		if t.Verdict == VerdictFailed && (t.Reason.Hard() || !reason.Hard()) {
			return // the first hard failure counts, else the first failure
		}
		t.Verdict, t.Reason, t.Text, t.Status, t.At = VerdictFailed, reason, ev.Text, ev.Status, ev.At
		t.Unconfirmed, t.Implied, t.Deferred, t.Guess = false, false, false, ev.Guess
	case ev.Kind == Delivered:
		if t.Verdict == VerdictFailed || t.Verdict == VerdictDelivered && !t.Unconfirmed && !t.Implied {
			return
		}
		t.Verdict, t.Reason, t.Text, t.Status, t.At = VerdictDelivered, "", ev.Text, ev.Status, ev.At
		t.Unconfirmed, t.Implied, t.Deferred = false, false, false
	case ev.Kind.Engagement():
		if t.Verdict == VerdictFailed || t.Verdict == VerdictRefused && t.Reason.Hard() ||
			t.Verdict == VerdictDelivered && !t.Unconfirmed {
			return
		}
		t.Verdict, t.Reason, t.Text, t.Status, t.At = VerdictDelivered, "", "", 0, ev.At
		t.Unconfirmed, t.Implied, t.Deferred = false, true, false
	default:
		// Any other event means that the provider accepted the mail.
		if t.Verdict == VerdictPending || t.Verdict == VerdictUnknown || t.Verdict == VerdictRefused && !t.Reason.Hard() {
			t.Verdict, t.Reason, t.At = VerdictAccepted, "", ev.At
		}
		if ev.Kind == Deferred && t.Verdict == VerdictAccepted {
			t.Deferred, t.Reason, t.Text, t.Status = true, ev.Reason, ev.Text, ev.Status
		}
	}
}

// settleAll computes the status of every recipient, once for those with the same
// history.
func (v *View) settleAll() {
	var own Set // recipients with a history of their own
	for i := range v.attempts {
		own = own.Or(v.attempts[i].own)
	}
	var made pool[Result]
	var lately [4]int // the last recipients with different histories
	k := 0
	for r := 1; r <= v.Size; r++ {
		s := &v.Logs[r-1]
		if own.Has(r) {
			s.Result = made.new()
			v.settle(r, s.Result)
			continue
		}
		for _, other := range lately {
			if other > 0 && v.alike(r, other) {
				s.Result = v.Logs[other-1].Result
				break
			}
		}
		if s.Result == nil {
			s.Result = new(Result)
			v.settle(r, s.Result)
			lately[k] = r
			k = (k + 1) % len(lately)
		}
	}
}

// alike reports whether two recipients are in the same entries and share their tries.
func (v *View) alike(r, other int) bool {
	k := 0
	for i := range v.Entries {
		if v.Entries[i].Kind != Attempt {
			if v.Entries[i].Recipients.Has(r) != v.Entries[i].Recipients.Has(other) {
				return false
			}
			continue
		}
		if v.attempts[k].of(r) != v.attempts[k].of(other) {
			return false
		}
		k++
	}
	return true
}

// uncalledFree is how many attempts without a call do not count as retries. Such an
// attempt ends because a worker was delayed or a command came in between.
const uncalledFree = 10

// settle folds the attempts and entries of one recipient into its status.
func (v *View) settle(r int, s *Result) {
	s.State = Queued
	var f fold
	k := 0
	for i := range v.Entries {
		e := &v.Entries[i]
		isAttempt := e.Kind == Attempt
		if isAttempt {
			k++
		}
		switch {
		case !e.Recipients.Has(r):
		case isAttempt:
			f.attempt(s, e, v.attempts[k-1].of(r))
		default:
			f.entry(s, e)
		}
	}
	f.conclude(s)
}

// fold has what the entries of one recipient say, up to one of them.
type fold struct {
	closing  *Entry // the newest entry, if it closes the log
	hard     *Try   // the newest hard failure
	best     *Try   // the first delivery; one that was reported comes before others
	last     *Try   // the newest attempt
	accepted *Try   // the newest attempt that a provider has
	manual   bool   // the newest release was manual, although it may double
	uncalled int    // attempts without a call that count as no retry
}

// attempt adds an attempt.
func (f *fold) attempt(s *Result, e *Entry, t *Try) {
	f.closing, s.Released = nil, false
	smaller := f.last != nil && f.last.WantsFewer() && f.last.Provider == t.Provider
	f.last = t
	s.Attempts++
	s.MayDouble = s.MayDouble || e.MayDouble
	s.OptedOut = s.OptedOut || t.OptedOut
	switch {
	case e.Split > 0:
		s.Splits++
	case smaller: // the same call in parts
	case t.Reason.Uncalled() && f.uncalled < uncalledFree:
		f.uncalled++
	default:
		s.Retries++
	}
	switch {
	case t.Verdict == VerdictDelivered:
		s.Copies++
		if f.best == nil || f.best.Unconfirmed && !t.Unconfirmed || f.best.Implied && !t.Implied {
			f.best = t
		}
	case t.Verdict.Settled() && t.Reason.Hard():
		f.hard = t
	case t.Verdict == VerdictAccepted:
		f.accepted = t
	}
}

// entry adds an entry that is no attempt.
func (f *fold) entry(s *Result, e *Entry) {
	switch e.Kind {
	case Attempt, Repeat:
	case Ending, Cancel:
		f.closing, s.Released = e, false
	case Release:
		f.closing, s.Released, f.hard = nil, true, nil // earlier endings do not count any more
		if f.manual = e.MayDouble; f.manual {
			f.accepted = nil // nor does an acceptance: the user sends it again anyway
		}
	}
}

// conclude completes the status.
func (f *fold) conclude(s *Result) {
	if s.Released && (s.OptedOut || !f.manual && f.accepted != nil) {
		s.Released = false // it was released as safe, but later facts show that it is not
	}
	if s.Called = s.Retries > 0; s.Called {
		s.Retries-- // the first attempt is no retry
	}
	s.Accepted = f.accepted
	switch {
	case f.last == nil:
	case f.accepted != nil && f.last.Verdict.Settled() && !f.last.Reason.Hard():
		s.Last = *f.accepted // a later fact shows that this provider accepted it: wait for its events
	default:
		s.Last = *f.last
	}
	switch {
	case f.best != nil:
		s.State, s.Provider, s.Detail = Success, f.best.Provider, f.best.Text
		switch {
		case f.best.Unconfirmed:
			s.Reason = Unconfirmed
		case f.best.Implied:
			s.Reason = Implied
		}
	case s.Released:
	case f.hard != nil:
		s.State, s.Reason, s.Detail, s.Provider = Failed, f.hard.Reason, f.hard.Text, f.hard.Provider
	case f.closing != nil:
		f.close(s)
	case f.accepted != nil:
		s.State, s.Provider = Sent, f.accepted.Provider
	case s.Attempts > 0 && !s.Last.Verdict.Settled():
	case s.OptedOut:
		s.State, s.Reason, s.Detail, s.Provider = Failed, optedOut, s.Last.Text, s.Last.Provider
	}
}

// close ends the log as the closing entry says.
func (f *fold) close(s *Result) {
	if f.closing.Kind == Cancel {
		s.State, s.Reason, s.Detail = Cancelled, CancelledByRq, f.closing.Detail
		return
	}
	s.State, s.Reason, s.Detail, s.Provider = Failed, f.closing.Reason, f.closing.Detail, s.Last.Provider
	if cause := s.Last.Reason; f.closing.Reason.onlyEnds() && cause != "" && cause != StartByPassed {
		s.Reason, s.EndedBy = cause, f.closing.Reason
	}
	if s.Detail == "" {
		s.Detail = s.Last.Text
	}
}
