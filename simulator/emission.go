package simulator

import (
	"container/heap"
	"time"
)

// An emission is one stage of all copies of a mailing that share an outcome and
// a group: up to a thousand events that happen at the same time, in 48 bytes.
// They are spelled out one by one only when a webhook for them is about to be
// sent, so that a receiver that is slow or down costs no memory.
type emission struct {
	m       *mailing
	due     int64 // Unix nanoseconds
	off     uint32
	next    uint32 // off and next: cursor of the copies not handed to a post yet
	left    int32  // how many those are
	gen     uint32 // see outbox.gen
	outcome outcome
	group   uint8
	stage   uint8
}

func (e *emission) at() time.Time { return time.Unix(0, e.due) }

func (e *emission) stageOf() *stage { return &e.m.account.provider.stages(e.outcome)[e.stage] }

// has reports whether the copy r takes part.
func (e *emission) has(r record) bool { return r.outcome == e.outcome && r.group == e.group }

// A segment is a run of events of an emission.
type segment struct {
	*emission
	from, off uint32 // cursor at the first copy
	n         int32  // number of events
}

// take removes the next n events from e.
func (e *emission) take(n int32) segment {
	n = min(n, e.left)
	s := segment{emission: e, from: e.next, off: e.off, n: n}
	if e.left -= n; e.left == 0 {
		return s // nobody needs the cursor any more
	}
	s.each(func(_ record, c cursor) bool { e.next, e.off = c.i, c.off; return true })
	return s
}

// each calls f for each copy of the segment, with the cursor after it, until f
// returns false.
func (s segment) each(f func(r record, after cursor) bool) {
	c := cursor{m: s.m, i: s.from, off: s.off}
	for n := s.n; n > 0; {
		r, ok := c.next()
		if !ok {
			return
		}
		if s.has(r) {
			n--
			if !f(r, c) {
				return
			}
		}
	}
}

// rest returns what follows the first n events of the segment, which end at c.
func (s segment) rest(n int32, c cursor) segment {
	return segment{emission: s.emission, from: c.i, off: c.off, n: s.n - n}
}

// A post is one webhook request that is waiting or being made.
type post struct {
	segment        // its events; for SendGrid the first of them
	batch   *batch // SendGrid: the others; nil = none
	at      int64  // when to try (again), Unix nanoseconds
	signed  uint32 // Unix time of the first signature
	muted   uint32 // events that are kept back; known after the first try
	tries   uint8
	hook    uint8 // Mailgun: which of the URLs of its type
	repeat  bool  // Mailgun: an intended duplicate
	planned bool  // standing faults have been asked
	behind  bool  // Mailgun: a fault put a later event of the same copy before it
}

// A batch is what a post of several segments has besides.
type batch struct {
	more    []segment
	plan    []fate // by event; nil = all are sent
	shuffle uint64 // not 0 = out of order
}

// fate is what a standing fault does to one event of a post.
type fate uint8

const (
	fateSend fate = iota
	fateMute
	fateTwice
)

func (p *post) segments(f func(s segment)) {
	f(p.segment)
	if p.batch != nil {
		for _, s := range p.batch.more {
			f(s)
		}
	}
}

func (p *post) events() (n int) {
	p.segments(func(s segment) { n += int(s.n) })
	return n
}

// emissions is a heap by time; within a mailing by stage.
type emissions []*emission

func (h emissions) Len() int      { return len(h) }
func (h emissions) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *emissions) Push(x any)   { *h = append(*h, x.(*emission)) }
func (h *emissions) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return e
}

func (h emissions) Less(i, j int) bool {
	a, b := h[i], h[j]
	if a.due != b.due {
		return a.due < b.due
	}
	if a.m.serial != b.m.serial {
		return a.m.serial < b.m.serial
	}
	return a.stage < b.stage
}

var _ heap.Interface = (*emissions)(nil)
