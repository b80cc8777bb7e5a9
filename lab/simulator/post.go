package simulator

import (
	"container/heap"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

// A scheduled event is a message.Event in an outbox. It represents up to a
// thousand webhook events, which are written one by one only when a request for
// them is about to be made. A receiver that is slow or down costs no memory.
type scheduled struct {
	message.Event
	batch *stored
	next  uint32 // index of the first copy that no post has taken
	left  int32  // number of those copies
	gen   uint32 // see outbox.gen
}

func (e *scheduled) stage() *provider.Stage {
	return &e.batch.account.provider.Stages[e.Outcome][e.Stage]
}

// group returns what faults change for the copies of the event.
func (e *scheduled) group() group { return e.batch.group(e.Group) }

// take removes the next n webhook events from e.
func (e *scheduled) take(n int32) segment {
	n = min(n, e.left)
	s := segment{scheduled: e, from: e.next, n: n}
	if e.left -= n; e.left == 0 {
		return s // the position is not needed any more
	}
	s.each(func(c *message.Copy) bool { e.next = c.Index + 1; return true })
	return s
}

// A segment is a run of webhook events of a scheduled event.
type segment struct {
	*scheduled
	from uint32 // index of the first copy
	n    int32  // number of webhook events
}

// each calls f for each copy of the segment until f returns false.
func (s segment) each(f func(c *message.Copy) bool) {
	n := s.n
	for i := int(s.from); n > 0 && i < len(s.batch.Copies); i++ {
		c := &s.batch.Copies[i]
		if !s.Includes(c) {
			continue
		}
		if n--; !f(c) {
			return
		}
	}
}

// first returns the first copy of the segment.
func (s segment) first() (first *message.Copy) {
	s.each(func(c *message.Copy) bool { first = c; return false })
	return first
}

// rest returns what follows the first n events of the segment, which end before
// the copy with the index from.
func (s segment) rest(n int32, from uint32) segment {
	return segment{scheduled: s.scheduled, from: from, n: s.n - n}
}

// A post is one webhook request that is waiting or being made.
type post struct {
	segment          // its first events
	more    *further // nil = no further events
	at      int64    // when to try (again), Unix nanoseconds
	signed  int64    // Unix time of the first signature
	muted   uint32   // events without a webhook; known after the first try
	tries   uint8
	url     uint8 // index in the URLs of its stage
	repeat  bool  // a fault sends the event twice
	planned bool  // the faults in force have been applied
	behind  bool  // a fault put a later event of the same copy before it
}

// further is what only a post of several events has.
type further struct {
	segments []segment
	plan     []treatment // by event; nil = all are sent
	shuffle  uint64      // seed of the order; 0 = in order
}

// A treatment is what a fault does to one event of a post.
type treatment uint8

const (
	sendOnce treatment = iota
	mute
	sendTwice
)

// times returns how often the event is sent.
func (t treatment) times() int {
	switch t {
	case mute:
		return 0
	case sendTwice:
		return 2
	}
	return 1
}

// segments calls f for each segment.
func (p *post) segments(f func(s segment)) {
	f(p.segment)
	if p.more != nil {
		for _, s := range p.more.segments {
			f(s)
		}
	}
}

// events returns the number of events.
func (p *post) events() (n int) {
	p.segments(func(s segment) { n += int(s.n) })
	return n
}

// treatment returns what a fault does to the i-th event.
func (p *post) treatment(i int) treatment {
	if p.more == nil || p.more.plan == nil {
		return sendOnce
	}
	return p.more.plan[i]
}

// concerns reports whether f applies to any event of p.
func (p *post) concerns(f *fault) (any bool) {
	p.segments(func(s segment) {
		if st := s.stage(); any || !f.events.Has(st.Event, st.Kind) {
			return
		}
		s.each(func(c *message.Copy) bool { any = f.pattern.Match(c.Address); return !any })
	})
	return any
}

// A cut is a place within a post: after done events of a segment.
type cut struct {
	segment int
	done    int32
	events  int    // of the post
	after   uint32 // index of the copy that follows
}

// split cuts p and returns the rest, or nil if there is none.
func (p *post) split(at cut) *post {
	var list []segment
	p.segments(func(s segment) { list = append(list, s) })
	tail := list[at.segment].rest(at.done, at.after)
	list[at.segment].n = at.done
	rest := append([]segment{tail}, list[at.segment+1:]...)
	if tail.n == 0 {
		rest = rest[1:]
	}
	if len(rest) == 0 {
		return nil
	}
	other := post{segment: rest[0], more: &further{segments: rest[1:]}, planned: true}
	old := p.more
	p.segment, p.more = list[0], &further{segments: list[1 : at.segment+1]}
	if old != nil {
		p.more.shuffle, other.more.shuffle = old.shuffle, old.shuffle
		if old.plan != nil {
			p.more.plan, other.more.plan = old.plan[:at.events], old.plan[at.events:]
		}
	}
	return &other
}

// schedule is a heap of scheduled events by time; within a batch by stage.
type schedule []*scheduled

var _ heap.Interface = (*schedule)(nil)

func (h schedule) Len() int      { return len(h) }
func (h schedule) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *schedule) Push(x any)   { *h = append(*h, x.(*scheduled)) }
func (h *schedule) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return e
}

func (h schedule) Less(i, j int) bool {
	a, b := h[i], h[j]
	if a.Due != b.Due {
		return a.Due < b.Due
	}
	if a.batch.Serial != b.batch.Serial {
		return a.batch.Serial < b.batch.Serial
	}
	return a.Stage < b.Stage
}

// pop removes the first element of the queue; there must be one.
func pop[T any](queue *[]T) T {
	x := (*queue)[0]
	var zero T
	(*queue)[0] = zero // it may hold pointers
	*queue = (*queue)[1:]
	return x
}
