package message

import (
	"encoding/binary"
	"slices"
)

// A Packer builds a batch. Call Pair for each shared metadata pair and then End.
// For each copy call Copy, then Pair for each pair of its own, then End. A Packer
// is reused from call to call.
type Packer struct {
	blob   []byte
	marks  []uint32
	n      uint32
	keys   []string
	number map[string]int // by key
	counts []Count
}

// A Count is how many copies of a batch share an outcome and a group.
type Count struct {
	Outcome Outcome
	Group   uint8
	N       int32
}

// Reset empties the packer.
func (p *Packer) Reset() {
	if p.number == nil {
		p.number = map[string]int{}
	}
	clear(p.number)
	clear(p.keys)
	*p = Packer{
		blob:   p.blob[:0],
		marks:  p.marks[:0],
		keys:   p.keys[:0],
		number: p.number,
		counts: p.counts[:0],
	}
}

// key returns the number of the metadata key name.
func (p *Packer) key(name []byte) int {
	if n, ok := p.number[string(name)]; ok {
		return n
	}
	key := string(name)
	p.keys = append(p.keys, key)
	p.number[key] = len(p.keys)
	return len(p.keys)
}

func (p *Packer) bytes(b []byte) {
	p.blob = binary.AppendUvarint(p.blob, uint64(len(b)))
	p.blob = append(p.blob, b...)
}

// Pair adds a metadata pair.
func (p *Packer) Pair(key, value []byte) {
	p.blob = binary.AppendUvarint(p.blob, uint64(p.key(key)))
	p.bytes(value)
}

// End closes a list of pairs.
func (p *Packer) End() { p.blob = append(p.blob, 0) }

// Copy begins a copy.
func (p *Packer) Copy(o Outcome, group, flags uint8, addr []byte) {
	if p.n > 0 && p.n%markEvery == 0 {
		p.marks = append(p.marks, uint32(len(p.blob)))
	}
	p.blob = append(p.blob, byte(o), group, flags)
	p.bytes(addr)
	p.n++
	for i := range p.counts {
		if c := &p.counts[i]; c.Outcome == o && c.Group == group {
			c.N++
			return
		}
	}
	p.counts = append(p.counts, Count{o, group, 1})
}

// Counts returns the counts of the copies. They are valid until Reset.
func (p *Packer) Counts() []Count { return p.counts }

// Keys returns the metadata keys in the order of their numbers.
func (p *Packer) Keys() []string { return slices.Clone(p.keys) }

// Batch returns what was packed. It shares no memory with the packer.
func (p *Packer) Batch(h *Head) Batch {
	b := Batch{Head: h, Len: p.n, blob: slices.Clone(p.blob)}
	if len(p.marks) > 0 {
		b.marks = slices.Clone(p.marks)
	}
	return b
}
