package simulator

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// Stats counts what an account did since it was added or since Reset, or what all
// accounts together did. Calls are requests to send mail; other requests are not
// counted.
type Stats struct {
	Calls    int64 `json:"calls"`
	Accepted int64 `json:"accepted"` // recipients of stored calls
	Refused  int64 `json:"refused"`  // calls that were answered with 4xx or 5xx
	Hung     int64 `json:"hung"`     // calls that a fault left without an answer

	// ByStatus counts calls by status. Status 0 means no whole answer: hung, closed,
	// truncated or the client left.
	ByStatus    map[int]int64 `json:"by_status"`
	InFlight    int64         `json:"in_flight"`
	MaxInFlight int64         `json:"max_in_flight"`

	Copies   int64 `json:"copies"`
	Distinct int64 `json:"distinct"` // ids with at least one copy
	Doubled  int64 `json:"doubled"`  // ids with more than one, at one account or at several

	Posts         int64         `json:"posts"` // webhook requests, repeats included
	PostsByStatus map[int]int64 `json:"posts_by_status"`
	EventsSent    int64         `json:"events_sent"`     // events in those requests
	EventsOK      int64         `json:"events_ok"`       // events that were acknowledged
	EventsGivenUp int64         `json:"events_given_up"` // events whose retries ended, or that are not retried
	EventsMuted   int64         `json:"events_muted"`    // events without a webhook because of a fault or their address
	EventsPending int64         `json:"events_pending"`  // due and neither acknowledged nor given up

	// These count what faults did to events that were sent. An event is counted when
	// it is sent first.

	EventsDoubled   int64 `json:"events_doubled"`   // sent twice
	EventsOvertaken int64 `json:"events_overtaken"` // sent after a later event of the same copy
	EventsLate      int64 `json:"events_late"`      // delayed
}

// A tally holds Stats. It is safe for concurrent use.
type tally struct {
	mu sync.Mutex
	Stats
}

func newTally() *tally {
	return &tally{Stats: Stats{ByStatus: map[int]int64{}, PostsByStatus: map[int]int64{}}}
}

// stats returns the counters now.
func (t *tally) stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	st := t.Stats
	st.ByStatus, st.PostsByStatus = maps.Clone(st.ByStatus), maps.Clone(st.PostsByStatus)
	return st
}

// tallies are those of an account and of all accounts together. Reset replaces them.
type tallies [2]*tally

// count changes the counters of both.
func (list tallies) count(change func(*Stats)) {
	for _, t := range list {
		t.mu.Lock()
		change(&t.Stats)
		t.mu.Unlock()
	}
}

// enter counts the beginning of a call.
func (list tallies) enter() {
	list.count(func(st *Stats) {
		st.Calls++
		st.InFlight++
		st.MaxInFlight = max(st.MaxInFlight, st.InFlight)
	})
}

// leave counts the end of a call.
func (list tallies) leave(status int) {
	list.count(func(st *Stats) {
		if status >= 400 {
			st.Refused++
		}
		st.ByStatus[status]++
		st.InFlight--
	})
}

// A Call is one request to send mail, accepted or not.
type Call struct {
	At         time.Time     `json:"at"` // when the simulator saw its header
	Took       time.Duration `json:"took_ns"`
	Recipients int           `json:"recipients"` // those that could be read
	Bytes      int           `json:"bytes"`      // of the body
	Status     int           `json:"status"`     // 0 = no whole answer
	Stored     bool          `json:"stored"`
	Fault      string        `json:"fault,omitempty"` // mode of the fault that decided the answer, or its time
}

// A callLog keeps the last calls of an account.
type callLog struct {
	mu   sync.Mutex
	size int
	list []Call
}

func (l *callLog) add(c Call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.list) == 2*l.size {
		l.list = slices.Clone(l.list[l.size:])
	}
	l.list = append(l.list, c)
}

func (l *callLog) last() []Call {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.list[max(0, len(l.list)-l.size):])
}

func (l *callLog) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = nil
}
