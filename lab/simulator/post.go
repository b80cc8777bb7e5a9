package simulator

import (
	"cmp"

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

// A schedule is a heap of what happens at a time.
type schedule[T interface{ before(other T) bool }] []T

func (h schedule[T]) Len() int           { return len(h) }
func (h schedule[T]) Less(i, j int) bool { return h[i].before(h[j]) }
func (h schedule[T]) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *schedule[T]) Push(x any)        { *h = append(*h, x.(T)) }
func (h *schedule[T]) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	clear((*h)[last:]) // it may hold pointers
	*h = (*h)[:last]
	return e
}

func (p *post) before(other *post) bool { return p.at < other.at }

// before compares events by time; within a batch by stage.
func (e *scheduled) before(b *scheduled) bool {
	return cmp.Or(cmp.Compare(e.Due, b.Due), cmp.Compare(e.batch.Serial, b.batch.Serial), cmp.Compare(e.Stage, b.Stage)) < 0
}

// pop removes the first element of the queue; there must be one.
func pop[T any](queue *[]T) T {
	x := (*queue)[0]
	var zero T
	(*queue)[0] = zero // it may hold pointers
	*queue = (*queue)[1:]
	return x
}
