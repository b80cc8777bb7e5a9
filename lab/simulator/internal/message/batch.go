package message

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"iter"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/jsontext"
)

// A Batch is one stored call: what its copies have in common, and the copies
// themselves packed into one byte slice. A copy costs its address, the metadata
// that differs from copy to copy, and about six bytes; as structs and slices it would
// cost 88 bytes more. A Batch never changes after it was stored, so it is read without
// a lock.
//
// Layout of blob: the shared metadata, then for each copy: outcome, group, flags
// (a byte each), address, metadata. Metadata is a list of (number of the key,
// value) that ends with the number 0. Addresses and values are preceded by their
// length. Numbers and lengths are uvarints.
type Batch struct {
	Head    *Head
	Content []Content // by copy; nil unless content is kept
	Time    int64     // when it was accepted, Unix nanoseconds
	Serial  uint64    // number of the call at its account; all its ids follow from it
	Len     uint32    // number of copies
	Test    bool      // Mailgun test mode: events, but no copies

	Attachments []Attachment // of every copy

	blob  []byte
	marks []uint32 // where in blob every markEvery-th copy begins, from the second mark on
}

// A Head is what many batches of an account have in common. Consecutive batches
// with equal heads share one.
type Head struct {
	From, Subject string
	Tags          []string
	Keys          []string // names of metadata; key number 1 is Keys[0]
	Quoted        []string // keys as JSON members, `,"key":`; "" if the provider has a field of this name
	id            int      // number of the key that identifies a copy, 0 if there is none
}

// Content is what a recipient would read, after substitution.
type Content struct {
	Name    string            `json:"name,omitempty"` // of the recipient
	Subject string            `json:"subject,omitempty"`
	Text    string            `json:"text,omitempty"`
	HTML    string            `json:"html,omitempty"`
	Headers map[string]string `json:"headers,omitempty"` // those that the call sets, and Reply-To
}

// Attachment is a file of a mail.
type Attachment struct {
	Filename  string `json:"filename"`
	Type      string `json:"type"`
	ContentID string `json:"content_id,omitempty"` // of an inline file
	Size      int    `json:"size"`                 // bytes
	SHA256    string `json:"sha256"`               // of the bytes, in hex
}

// NewAttachment returns the attachment with some bytes.
func NewAttachment(filename, kind, contentID string, data []byte) Attachment {
	sum := sha256.Sum256(data)
	return Attachment{filename, kind, contentID, len(data), hex.EncodeToString(sum[:])}
}

// Flags of a copy.
const (
	CC    = 1 << iota
	BCC   // not visible to other recipients
	Joint // part of the same message as the copy before
)

// A Copy is one copy of a batch. Its slices are views of the batch.
type Copy struct {
	Index   uint32 // within the batch
	Outcome Outcome
	Group   uint8
	Flags   uint8
	Addr    []byte
	pairs   []byte
}

// markEvery is the most copies that are read to find one by its index.
const markEvery = 16

// A Position is a place between two copies of a batch.
type Position struct {
	Index  uint32 // of the next copy
	Offset uint32 // of the next copy within the batch
}

// Start returns the position before the first copy.
func (b *Batch) Start() Position { return Position{Offset: uint32(b.sharedEnd())} }

// Next returns the copy at p and the position after it. It reports false after
// the last copy.
func (b *Batch) Next(p Position) (c Copy, after Position, ok bool) {
	if p.Index >= b.Len {
		return Copy{}, p, false
	}
	data := b.blob[p.Offset:]
	c = Copy{
		Index:   p.Index,
		Outcome: Outcome(data[0]),
		Group:   data[1],
		Flags:   data[2],
	}
	n := 3
	c.Addr, n = bytesAt(data, n)
	end := pairsEnd(data, n)
	c.pairs = data[n:end]
	return c, Position{p.Index + 1, p.Offset + uint32(end)}, true
}

// Copies yields all copies in order.
func (b *Batch) Copies() iter.Seq[Copy] {
	return func(yield func(Copy) bool) {
		for at := b.Start(); ; {
			c, after, ok := b.Next(at)
			if !ok || !yield(c) {
				return
			}
			at = after
		}
	}
}

// Copy returns the copy with the given index. It reports false if there is none.
func (b *Batch) Copy(index uint32) (c Copy, ok bool) {
	at := b.Start()
	if mark := int(index / markEvery); mark > 0 && mark <= len(b.marks) {
		at = Position{uint32(mark) * markEvery, b.marks[mark-1]}
	}
	for {
		if c, at, ok = b.Next(at); !ok || c.Index == index {
			return c, ok
		}
	}
}

func (b *Batch) sharedEnd() int { return pairsEnd(b.blob, 0) }

func (b *Batch) shared() []byte { return b.blob[:b.sharedEnd()] }

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

// ID returns what identifies the copy c: the value of the recipient key, or the
// address in lower case. All copies of a message have the same value, so that behind
// the first one the address follows, after a slash.
func (b *Batch) ID(c Copy) []byte {
	value, ok := pairValue(c.pairs, b.Head.id)
	if !ok {
		value, ok = pairValue(b.shared(), b.Head.id)
	}
	switch {
	case !ok || len(value) == 0:
		return Lower(c.Addr)
	case c.Flags&Joint != 0:
		return slices.Concat(value, []byte("/"), Lower(c.Addr))
	}
	return value
}

// Metadata calls f for each metadata key of c with its value. The number of the
// key begins at 1. A value of the copy replaces a shared one.
func (b *Batch) Metadata(c Copy, f func(key int, value []byte)) {
	eachPair(b.shared(), func(key int, value []byte) bool {
		if _, own := pairValue(c.pairs, key); !own {
			f(key, value)
		}
		return true
	})
	eachPair(c.pairs, func(key int, value []byte) bool { f(key, value); return true })
}

// Accepted returns when the provider took the batch.
func (b *Batch) Accepted() time.Time { return time.Unix(0, b.Time) }

// Equal reports whether the heads say the same. A nil head equals none.
func (h *Head) Equal(o *Head) bool {
	return h != nil && h.From == o.From && h.Subject == o.Subject &&
		slices.Equal(h.Tags, o.Tags) && slices.Equal(h.Keys, o.Keys)
}

// Finish computes what follows from the keys. The names in reserved are fields of
// the provider, which win over metadata of the same name.
func (h *Head) Finish(recipientKey string, reserved map[string]bool) {
	h.Quoted = make([]string, len(h.Keys))
	for i, key := range h.Keys {
		if !reserved[key] {
			h.Quoted[i] = string(append(jsontext.AppendQuoted([]byte{','}, key), ':'))
		}
		if recipientKey != "" && key == recipientKey {
			h.id = i + 1
		}
	}
}
