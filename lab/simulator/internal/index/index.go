// Package index finds copies by their id.
package index

import (
	"hash/maphash"
	"slices"
	"sync"
)

// An Index maps each id to its copies, by the numbers of the copies. It holds the
// number of the first copy in open addressing, eight bytes a slot, and a list for
// the few ids that have more. It holds no ids: it asks the Owner. With a map of
// lists a call with new ids takes 1.7 times as long, and a copy costs 2.5 times as
// much memory.
//
// It is safe for concurrent use.
type Index struct {
	owner  Owner
	seed   maphash.Seed
	shards [64]shard
}

// An Owner knows the copies. Its methods must not use the Index.
type Owner interface {
	// IDIs reports whether id is the id of the copy with this number.
	IDIs(number uint32, id []byte) bool
	// AccountOf returns the name of the account of the copy with this number.
	AccountOf(number uint32) string
}

type shard struct {
	mu     sync.Mutex
	slots  []slot // a power of two
	used   int
	repeat map[string]*repeat
}

// A slot is empty if next is 0.
type slot struct {
	tag  uint32 // the lower half of the hash, which also gives the position
	next uint32 // number of the copy + 1
}

// A repeat is an id with more than one copy.
type repeat struct {
	numbers []uint32
	counts  []count
}

type count struct {
	account string
	n       int
}

// New returns an empty Index.
func New(o Owner) *Index { return &Index{owner: o, seed: maphash.MakeSeed()} }

func (x *Index) shard(id []byte) (sh *shard, hash uint64) {
	hash = maphash.Bytes(x.seed, id)
	return &x.shards[hash>>58], hash
}

// Add enters a copy of the account under id. It returns how many copies of the id
// there were at this account and in all.
func (x *Index) Add(id []byte, number uint32, account string) (here, all int) {
	sh, hash := x.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	at, found := sh.find(x.owner, id, hash)
	if !found {
		if sh.used*4 >= len(sh.slots)*3 {
			sh.grow()
			at, _ = sh.find(x.owner, id, hash)
		}
		sh.slots[at] = slot{uint32(hash), number + 1}
		sh.used++
		return 0, 0
	}
	r := sh.repeat[string(id)]
	if r == nil {
		first := sh.slots[at].next - 1
		r = &repeat{numbers: []uint32{first}, counts: []count{{x.owner.AccountOf(first), 1}}}
		if sh.repeat == nil {
			sh.repeat = map[string]*repeat{}
		}
		sh.repeat[string(id)] = r
	}
	all = len(r.numbers)
	r.numbers = append(r.numbers, number)
	for i := range r.counts {
		if r.counts[i].account == account {
			here = r.counts[i].n
			r.counts[i].n++
			return here, all
		}
	}
	r.counts = append(r.counts, count{account, 1})
	return 0, all
}

// find returns the position of id, or that of the empty slot for it.
func (sh *shard) find(o Owner, id []byte, hash uint64) (at int, found bool) {
	if len(sh.slots) == 0 {
		return 0, false
	}
	mask := len(sh.slots) - 1
	for at = int(uint32(hash)) & mask; sh.slots[at].next != 0; at = (at + 1) & mask {
		if sh.slots[at].tag == uint32(hash) && (sh.repeat[string(id)] != nil || o.IDIs(sh.slots[at].next-1, id)) {
			return at, true
		}
	}
	return at, false
}

// grow doubles the table. The tags are enough for it, so no id is read again.
func (sh *shard) grow() {
	old := sh.slots
	sh.slots = make([]slot, max(16, 2*len(old)))
	mask := len(sh.slots) - 1
	for _, s := range old {
		if s.next == 0 {
			continue
		}
		at := int(s.tag) & mask
		for sh.slots[at].next != 0 {
			at = (at + 1) & mask
		}
		sh.slots[at] = s
	}
}

// Numbers returns the numbers of all copies of id, oldest first.
func (x *Index) Numbers(id []byte) []uint32 {
	sh, hash := x.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	at, found := sh.find(x.owner, id, hash)
	if !found {
		return nil
	}
	if r := sh.repeat[string(id)]; r != nil {
		return slices.Clone(r.numbers)
	}
	return []uint32{sh.slots[at].next - 1}
}

// Counts sets dst to the number of copies of id at each account. It reports
// whether the copy with the given number is the first of them, so that a walk over
// all copies meets each id once. If it returns false, dst need not be complete.
func (x *Index) Counts(id []byte, number uint32, dst map[string]int) bool {
	sh, hash := x.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	clear(dst)
	if r := sh.repeat[string(id)]; r != nil {
		for _, c := range r.counts {
			dst[c.account] = c.n
		}
		return r.numbers[0] == number
	}
	// The id has one copy. It is this one, unless this one is being added now.
	if len(sh.slots) == 0 {
		return false
	}
	mask := len(sh.slots) - 1
	for at := int(uint32(hash)) & mask; sh.slots[at].next != 0; at = (at + 1) & mask {
		if sh.slots[at].next == number+1 {
			dst[x.owner.AccountOf(number)] = 1
			return true
		}
	}
	return false
}
