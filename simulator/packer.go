package simulator

import (
	"encoding/binary"
	"slices"
)

// A packer builds the blob of a mailing: shared pairs, end, and for each copy
// copy, pairs, end. It is reused from call to call.
type packer struct {
	blob   []byte
	marks  []uint32
	n      uint32
	keys   []string
	number map[string]int // by key, once there are more than a few
	counts []count
	groups []group
}

// A count is how many copies of a mailing share an outcome and a group. Their
// events happen at the same time.
type count struct {
	outcome outcome
	group   uint8
	n       int32
}

const fewKeys = 12

func (p *packer) reset() {
	clear(p.keys)
	clear(p.groups)
	*p = packer{blob: p.blob[:0], marks: p.marks[:0], keys: p.keys[:0], counts: p.counts[:0], groups: p.groups[:0]}
}

// key returns the number of the metadata key name.
func (p *packer) key(name []byte) int {
	if p.number != nil {
		if n, ok := p.number[string(name)]; ok {
			return n
		}
	} else {
		for i, key := range p.keys {
			if key == string(name) {
				return i + 1
			}
		}
	}
	p.keys = append(p.keys, string(name))
	if p.number != nil {
		p.number[string(name)] = len(p.keys)
	} else if len(p.keys) > fewKeys {
		p.number = make(map[string]int, 2*fewKeys)
		for i, key := range p.keys {
			p.number[key] = i + 1
		}
	}
	return len(p.keys)
}

func (p *packer) bytes(b []byte) {
	p.blob = binary.AppendUvarint(p.blob, uint64(len(b)))
	p.blob = append(p.blob, b...)
}

func (p *packer) pair(key, value []byte) {
	p.blob = binary.AppendUvarint(p.blob, uint64(p.key(key)))
	p.bytes(value)
}

// end closes a list of pairs.
func (p *packer) end() { p.blob = append(p.blob, 0) }

func (p *packer) copy(o outcome, group, flags uint8, addr []byte) {
	if p.n > 0 && p.n%markEvery == 0 {
		p.marks = append(p.marks, uint32(len(p.blob)))
	}
	p.blob = append(p.blob, byte(o), group, flags)
	p.bytes(addr)
	p.n++
	for i := range p.counts {
		if c := &p.counts[i]; c.outcome == o && c.group == group {
			c.n++
			return
		}
	}
	p.counts = append(p.counts, count{o, group, 1})
}

// group returns the number of g. The numbers are few: what cannot be told apart
// any more joins the last one.
func (p *packer) group(g group) uint8 {
	if g == (group{}) {
		return 0
	}
	if len(p.groups) == 0 {
		p.groups = append(p.groups, group{})
	}
	if i := slices.Index(p.groups, g); i >= 0 {
		return uint8(i)
	}
	if len(p.groups) < 255 {
		p.groups = append(p.groups, g)
	}
	return uint8(len(p.groups) - 1)
}

// mailing returns what was packed. It shares no memory with the packer.
func (p *packer) mailing(a *account, h *head) *mailing {
	m := &mailing{account: a, head: h, n: p.n, blob: slices.Clone(p.blob)}
	if len(p.marks) > 0 {
		m.marks = slices.Clone(p.marks)
	}
	if len(p.groups) > 0 {
		m.extra = &extra{groups: slices.Clone(p.groups)}
	}
	return m
}
