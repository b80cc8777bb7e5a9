package simulator

import (
	"encoding/binary"
	"slices"
	"sync/atomic"
	"time"
)

// A mailing is one accepted call: what its copies have in common, and the copies
// themselves packed into one byte slice. A copy costs its address, the metadata
// that differs from copy to copy, and about six bytes. A mailing never changes
// after it was added to the store, but for swallowed, so it is read without a lock.
//
// Layout of blob: the shared metadata, then for each copy: outcome, group, flags
// (a byte each), address, metadata. Metadata is a list of (number of the key,
// value) that ends with the number 0; addresses and values are preceded by their
// length. Numbers and lengths are uvarints.
type mailing struct {
	account *account
	head    *head
	extra   *extra // nil if there is none
	blob    []byte
	marks   []uint32 // where in blob every markEvery-th copy begins, from the second mark on
	at      int64    // when it was accepted, Unix nanoseconds
	serial  uint64   // number of the call at its account; all its ids follow from it
	first   uint32   // number of its first copy in the store
	n       uint32
	test    bool // Mailgun test mode: events, but no copies

	swallowed atomic.Uint32 // outcomes whose events a later suspension keeps for ever, by bit
}

// A head is what many mailings of an account have in common. Equal ones in a row
// share it.
type head struct {
	from, subject string
	tags          []string
	keys          []string // names of metadata; key number 1 is keys[0]
	quoted        []string // keys as JSON members, `,"key":`; "" if a vendor's own field has this name
	id            int      // number of the key that identifies a copy, 0 if there is none
}

// extra holds what only few mailings have.
type extra struct {
	groups  []group   // by number of the group; group 0 is the zero group
	content []Content // by copy
}

// A group says how the events of some copies of a mailing depart from normal,
// because of a fault.
type group struct {
	delay time.Duration
	mute  *fault // its events get no webhook
	park  *fault // its events do not happen
}

// Content is what a recipient would read, after substitution.
type Content struct {
	Subject string `json:"subject,omitempty"`
	Text    string `json:"text,omitempty"`
	HTML    string `json:"html,omitempty"`
}

const (
	flagCC    = 1 << iota
	flagBCC   // nobody else sees it
	flagJoint // part of the same message as the copy before
)

// A record is one copy, read from a mailing. Its slices are views of the blob.
type record struct {
	i       uint32 // within the mailing
	outcome outcome
	group   uint8
	flags   uint8
	addr    []byte
	pairs   []byte
}

// markEvery is how many copies are passed over at most to find one by its number.
const markEvery = 16

// A cursor reads the copies of a mailing in order. off is the position within
// the blob and may be kept to go on later.
type cursor struct {
	m   *mailing
	i   uint32
	off uint32
}

func (m *mailing) cursor() cursor { return cursor{m: m, off: uint32(m.sharedEnd())} }

// record returns copy i.
func (m *mailing) record(i uint32) (r record, ok bool) {
	c := m.cursor()
	if mark := int(i / markEvery); mark > 0 && mark <= len(m.marks) {
		c.i, c.off = uint32(mark)*markEvery, m.marks[mark-1]
	}
	for {
		if r, ok = c.next(); !ok || r.i == i {
			return r, ok
		}
	}
}

func (c *cursor) next() (r record, ok bool) {
	if c.i >= c.m.n {
		return record{}, false
	}
	b := c.m.blob[c.off:]
	r = record{i: c.i, outcome: outcome(b[0]), group: b[1], flags: b[2]}
	n := 3
	r.addr, n = bytesAt(b, n)
	r.pairs = b[n:]
	n = pairsEnd(b, n)
	r.pairs = r.pairs[:len(r.pairs)-len(b)+n]
	c.i++
	c.off += uint32(n)
	return r, true
}

func (m *mailing) sharedEnd() int { return pairsEnd(m.blob, 0) }

func (m *mailing) shared() []byte { return m.blob[:m.sharedEnd()] }

func bytesAt(b []byte, n int) ([]byte, int) {
	size, w := binary.Uvarint(b[n:])
	n += w
	return b[n : n+int(size)], n + int(size)
}

func pairsEnd(b []byte, n int) int {
	for {
		key, w := binary.Uvarint(b[n:])
		n += w
		if key == 0 {
			return n
		}
		size, w := binary.Uvarint(b[n:])
		n += w + int(size)
	}
}

// eachPair calls f for each pair of packed metadata until it returns false.
func eachPair(pairs []byte, f func(key int, value []byte) bool) {
	for n := 0; n < len(pairs); {
		key, w := binary.Uvarint(pairs[n:])
		if n += w; key == 0 {
			return
		}
		var value []byte
		value, n = bytesAt(pairs, n)
		if !f(int(key), value) {
			return
		}
	}
}

func pairValue(pairs []byte, key int) (value []byte, ok bool) {
	if key == 0 {
		return nil, false
	}
	eachPair(pairs, func(k int, v []byte) bool {
		if k == key {
			value, ok = v, true
		}
		return !ok
	})
	return value, ok
}

// id returns what identifies the copy r: the value of the recipient key, or the
// address in lower case.
func (m *mailing) id(r record) []byte {
	value, ok := pairValue(r.pairs, m.head.id)
	if !ok {
		value, ok = pairValue(m.shared(), m.head.id)
	}
	if ok && len(value) > 0 {
		return value
	}
	return lower(r.addr)
}

// metadata calls f for each metadata key of r with its value; the copy's own
// value wins over a shared one.
func (m *mailing) metadata(r record, f func(key int, value []byte)) {
	eachPair(m.shared(), func(key int, value []byte) bool {
		if _, own := pairValue(r.pairs, key); !own {
			f(key, value)
		}
		return true
	})
	eachPair(r.pairs, func(key int, value []byte) bool { f(key, value); return true })
}

func (m *mailing) group(number uint8) group {
	if number == 0 {
		return group{}
	}
	return m.extra.groups[number]
}

// Accepted returns when the provider took the mailing.
func (m *mailing) accepted() time.Time { return time.Unix(0, m.at) }

func (h *head) same(o *head) bool {
	return h != nil && h.from == o.from && h.subject == o.subject &&
		slices.Equal(h.tags, o.tags) && slices.Equal(h.keys, o.keys)
}

// finish fills in what follows from the keys. reserved tells the names of a
// vendor's own fields, which win over metadata of the same name.
func (h *head) finish(recipientKey string, reserved func(string) bool) {
	h.quoted = make([]string, len(h.keys))
	for i, key := range h.keys {
		if !reserved(key) {
			h.quoted[i] = string(append(appendQuoted([]byte{','}, key), ':'))
		}
		if recipientKey != "" && key == recipientKey {
			h.id = i + 1
		}
	}
}
