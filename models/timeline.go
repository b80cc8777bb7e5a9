package models

import (
	"cmp"
	"slices"
	"time"
)

// Moment is one entry of the timeline of a log.
type Moment struct {
	At       time.Time `json:"at"`
	What     string    `json:"what"`              // accepted, attempt, repeat, answer, event, end, cancel, release
	Attempt  int       `json:"attempt,omitempty"` // 1 for the recipient's first attempt
	Provider string    `json:"provider,omitempty"`
	Class    Class     `json:"class,omitempty"`
	Event    EventKind `json:"event,omitempty"`
	Reason   Reason    `json:"reason,omitempty"`
	Status   int       `json:"status,omitempty"`
	Enhanced string    `json:"enhanced_status,omitempty"`
	Bounce   string    `json:"bounce_class,omitempty"`
	TookMS   float64   `json:"took_ms,omitempty"`
	Text     string    `json:"text,omitempty"` // the provider's words
	Because  string    `json:"because,omitempty"`
	By       string    `json:"by,omitempty"` // who gave the command; empty: not known
	Async    bool      `json:"async,omitempty"`
	Guess    bool      `json:"guess,omitempty"` // only the address says that the event is about this attempt

	Command int `json:"-"` // number of the command of a cancellation or release
}

// ownAttempt is an attempt that has the recipient of a timeline.
type ownAttempt struct {
	number          int // of the recipient's own attempts
	provider        string
	began, answered time.Time
}

// Timeline returns the timeline of a log in order of time: attempts, answers, events
// and other ledger entries. It counts the recipient's own attempts: the numbers of ledger
// entries also count those of the chunk's other recipients.
func (v *View) Timeline(log ID, facts []Fact) []Moment {
	r := log.Recipient()
	facts = distinctFacts(facts)
	out := []Moment{{At: log.Time(), What: "accepted"}}
	var own []*ownAttempt
	byEntry := map[int]*ownAttempt{}
	for i := range v.Entries {
		e := &v.Entries[i]
		if !e.Recipients.Has(r) {
			continue
		}
		m := e.moment()
		if e.Kind == Attempt {
			a := &ownAttempt{number: len(own) + 1, provider: e.Provider, began: e.At}
			own, byEntry[e.Number], m.Attempt = append(own, a), a, a.number
		} else if a := byEntry[e.Repeats]; a != nil {
			m.Attempt = a.number
		}
		out = append(out, m)
	}
	for i := range facts {
		o := facts[i].Outcome
		if o == nil || byEntry[o.Attempt] == nil {
			continue
		}
		a := byEntry[o.Attempt]
		for k := range o.Parts {
			if p := &o.Parts[k]; p.Recipients.Has(r) {
				a.answered = o.At
				out = append(out, p.moment(o, a))
			}
		}
	}
	for _, e := range distinctEvents(facts) {
		if a := byEntry[e.Attempt]; a != nil && e.Recipient == r && a.provider == e.Provider {
			out = append(out, e.moment(a))
		}
	}
	// Some providers give times in whole seconds. An event never comes before its
	// attempt, nor before the answer of the same second.
	when := func(m *Moment) time.Time {
		if m.Attempt == 0 {
			return m.At
		}
		a := own[m.Attempt-1]
		at := LaterOf(m.At, a.began)
		if m.What == "event" && m.At.Nanosecond() == 0 && a.answered.Sub(m.At) < time.Second {
			at = LaterOf(at, a.answered)
		}
		return at
	}
	slices.SortStableFunc(out, func(a, b Moment) int {
		return cmp.Or(when(&a).Compare(when(&b)), a.rank()-b.rank())
	})
	return out
}

// moment returns an entry of the ledger as part of a timeline.
func (e *Entry) moment() Moment {
	m := Moment{
		At:       e.At,
		What:     string(e.Kind),
		Provider: e.Provider,
		Reason:   e.Reason,
		Text:     e.Detail,
		Because:  e.Because,
		Command:  e.Command,
	}
	if e.Kind != Attempt && m.Because == "" {
		m.Because = e.Reason.Words()
	}
	return m
}

// moment returns a part of an answer as part of a timeline.
func (p *Part) moment(o *Outcome, a *ownAttempt) Moment {
	return Moment{
		At:       o.At,
		What:     "answer",
		Attempt:  a.number,
		Provider: a.provider,
		Class:    p.Class,
		Reason:   p.reason(),
		Status:   p.Status,
		Text:     p.Text,
		TookMS:   float64(o.Took.Microseconds()) / 1000,
	}
}

// moment returns an event as part of a timeline.
func (e *Event) moment(a *ownAttempt) Moment {
	return Moment{
		At:       e.At,
		What:     "event",
		Attempt:  a.number,
		Provider: e.Provider,
		Event:    e.Kind,
		Reason:   e.Reason,
		Status:   e.Status,
		Enhanced: e.Enhanced,
		Bounce:   e.BounceClass,
		Text:     e.Text,
		Async:    e.Async,
		Guess:    e.Guess,
	}
}

// rank orders moments of the same time: an attempt comes before its answer, and an event
// before those that it leads to.
func (m *Moment) rank() int {
	switch m.What {
	case "accepted":
		return 0
	case string(Attempt), string(Repeat):
		return 1
	case "answer":
		return 2
	case "event":
		return 3 + eventRank[m.Event]
	}
	return 3 + len(EventKinds)
}

// eventRank orders events of one attempt that happened in the same second.
var eventRank = map[EventKind]int{
	Processed:    0,
	Deferred:     1,
	Delivered:    2,
	Rejected:     3,
	Dropped:      3,
	Blocked:      3,
	Bounced:      3,
	Opened:       4,
	Clicked:      5,
	Unsubscribed: 6,
	Complained:   6,
}
