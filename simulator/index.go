package simulator

import (
	"hash/maphash"
	"sync"
)

// An index finds copies by their id: for each id the number of its first copy,
// in open addressing, eight bytes a slot; and for the few ids that have more
// than one copy a list of all of them. It holds no keys: equal is asked of the
// store.
type index struct {
	seed   maphash.Seed
	shards [64]shard
}

type shard struct {
	mu     sync.Mutex
	slots  []slot // a power of two
	used   int
	repeat map[string]*repeat
}

// A slot is empty if ref is 0.
type slot struct {
	tag uint32 // the lower half of the hash, of which the position follows
	ref uint32 // number of the copy + 1
}

// A repeat is an id with more than one copy.
type repeat struct {
	refs []uint32 // numbers of the copies
	per  []perAccount
}

type perAccount struct {
	account *account
	n       int
}

// owner is what the index asks of the store. Both are called with a shard
// locked.
type owner interface {
	keyIs(ref uint32, key []byte) bool
	accountOf(ref uint32) *account
}

func newIndex() *index { return &index{seed: maphash.MakeSeed()} }

func (x *index) shard(key []byte) (sh *shard, hash uint64) {
	hash = maphash.Bytes(x.seed, key)
	return &x.shards[hash>>58], hash
}

// add enters the copy ref of the account a under key. It returns how many copies
// of key there were at this account and in all.
func (x *index) add(o owner, key []byte, ref uint32, a *account) (here, all int) {
	sh, hash := x.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	at, found := sh.find(o, key, hash)
	if !found {
		if sh.used*4 >= len(sh.slots)*3 {
			sh.grow()
			at, _ = sh.find(o, key, hash)
		}
		sh.slots[at] = slot{uint32(hash), ref + 1}
		sh.used++
		return 0, 0
	}
	r := sh.repeat[string(key)]
	if r == nil {
		first := sh.slots[at].ref - 1
		r = &repeat{refs: []uint32{first}, per: []perAccount{{o.accountOf(first), 1}}}
		if sh.repeat == nil {
			sh.repeat = map[string]*repeat{}
		}
		sh.repeat[string(key)] = r
	}
	all = len(r.refs)
	r.refs = append(r.refs, ref)
	for i := range r.per {
		if r.per[i].account == a {
			here = r.per[i].n
			r.per[i].n++
			return here, all
		}
	}
	r.per = append(r.per, perAccount{a, 1})
	return 0, all
}

// find returns the position of key, or that of the empty slot where it belongs.
func (sh *shard) find(o owner, key []byte, hash uint64) (at int, found bool) {
	if len(sh.slots) == 0 {
		return 0, false
	}
	mask := len(sh.slots) - 1
	for at = int(uint32(hash)) & mask; sh.slots[at].ref != 0; at = (at + 1) & mask {
		if sh.slots[at].tag == uint32(hash) && (sh.repeat[string(key)] != nil || o.keyIs(sh.slots[at].ref-1, key)) {
			return at, true
		}
	}
	return at, false
}

// grow doubles the table. No key is read again: the tags are enough.
func (sh *shard) grow() {
	old := sh.slots
	sh.slots = make([]slot, max(16, 2*len(old)))
	mask := len(sh.slots) - 1
	for _, s := range old {
		if s.ref == 0 {
			continue
		}
		at := int(s.tag) & mask
		for sh.slots[at].ref != 0 {
			at = (at + 1) & mask
		}
		sh.slots[at] = s
	}
}

// refs returns the numbers of all copies of key, oldest first.
func (x *index) refs(o owner, key []byte) []uint32 {
	sh, hash := x.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	at, found := sh.find(o, key, hash)
	if !found {
		return nil
	}
	if r := sh.repeat[string(key)]; r != nil {
		return append([]uint32(nil), r.refs...)
	}
	return []uint32{sh.slots[at].ref - 1}
}

// counts puts into dst how many copies of key each account has, if ref is the
// first of them. It reports whether it is, so that a walk over all copies meets
// each key once.
func (x *index) counts(o owner, key []byte, ref uint32, dst map[string]int) bool {
	sh, hash := x.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	clear(dst)
	if r := sh.repeat[string(key)]; r != nil {
		for _, p := range r.per {
			dst[p.account.name] = p.n
		}
		return r.refs[0] == ref
	}
	// The key has one copy. It is this one, unless that is being added just now.
	if len(sh.slots) == 0 {
		return false
	}
	mask := len(sh.slots) - 1
	for at := int(uint32(hash)) & mask; sh.slots[at].ref != 0; at = (at + 1) & mask {
		if sh.slots[at].ref == ref+1 {
			dst[o.accountOf(ref).name] = 1
			return true
		}
	}
	return false
}
