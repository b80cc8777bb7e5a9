package simulator

import (
	"slices"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

// A scheduled event is a message.Event in an outbox. It represents up to a
// thousand webhook events, which are written one by one only when a request for
// them is about to be made.
type scheduled struct {
	message.Event
	batch *stored
	next  int    // index of the first copy that no post has taken
	left  int    // number of those copies
	gen   uint32 // see outbox.gen
}

func (e *scheduled) stage() *provider.Stage {
	return &e.batch.account.provider.Stages[e.Outcome][e.Stage]
}

// group returns what faults change for the copies of the event.
func (e *scheduled) group() group { return e.batch.group(e.Group) }

// take appends up to n webhook events of e, which it removes from e.
func (e *scheduled) take(list []item, n int) []item {
	for ; n > 0 && e.left > 0; e.next++ {
		if c := &e.batch.Copies[e.next]; e.Includes(c) {
			list = append(list, item{scheduled: e, copy: c, times: 1})
			n--
			e.left--
		}
	}
	return list
}

// An item is a webhook event of a post.
type item struct {
	*scheduled
	copy   *message.Copy
	times  uint8 // how often it is sent
	behind bool  // a fault put a later event of the same copy before it
}

// concerned reports whether f applies to the event.
func (i item) concerned(f *fault) bool {
	return f.selects(i.stage()) && f.pattern.Match(i.copy.Address)
}

// A post is one webhook request that is waiting or being made.
type post struct {
	items   []item
	at      int64 // when to try (again), Unix nanoseconds
	signed  int64 // Unix time of the first signature
	muted   int   // events without a webhook; known after the first try
	tries   uint8
	url     uint8 // index in the URLs of its stage
	repeat  bool  // a fault sends the event twice
	planned bool  // the faults in force have been applied
	forged  bool  // the signature of the last try was wrong
}

// concerns reports whether f applies to any event of p.
func (p *post) concerns(f *fault) bool {
	for _, i := range p.items {
		if i.concerned(f) {
			return true
		}
	}
	return false
}

// timed is what happens at a time, with which its rank begins.
type timed interface{ rank() [3]int64 }

func (p *post) rank() [3]int64      { return [3]int64{p.at} }
func (e *scheduled) rank() [3]int64 { return [3]int64{e.Due, int64(e.batch.Serial), int64(e.Stage)} }

// A schedule is a heap by rank.
type schedule []timed

func (h schedule) Len() int      { return len(h) }
func (h schedule) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *schedule) Push(x any)   { *h = append(*h, x.(timed)) }
func (h schedule) Less(i, j int) bool {
	a, b := h[i].rank(), h[j].rank()
	return slices.Compare(a[:], b[:]) < 0
}
func (h *schedule) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return e
}

// first returns when the first of the schedule happens, or a later time if there is none.
func (h schedule) first(later int64) int64 {
	if len(h) == 0 {
		return later
	}
	return h[0].rank()[0]
}

// pop removes the first element of the queue; there must be one.
func pop[T any](queue *[]T) T {
	x := (*queue)[0]
	var zero T
	(*queue)[0] = zero // it may hold pointers
	*queue = (*queue)[1:]
	return x
}
