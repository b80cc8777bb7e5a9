package simulator

import (
	"bytes"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/index"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
)

// A stored batch is a message.Batch with what only the simulator knows of it.
type stored struct {
	message.Batch
	account *account
	groups  []group // by number of the group; empty = the zero group only
	first   uint32  // number of its first copy in the store

	swallowed atomic.Uint32 // outcomes whose events a later suspension swallows, by bit
}

// A group says how faults change the events of some copies of a batch.
type group struct {
	delay time.Duration
	mute  *fault // its events get no webhook
	park  *fault // its events do not happen
}

// maxGroups is the most groups of a batch. The number of a group is a byte.
const maxGroups = 255

// addGroup returns the number of g in list, which it may extend. When there are
// too many groups, g joins the last one.
func addGroup(list []group, g group) ([]group, uint8) {
	if g == (group{}) {
		return list, 0
	}
	if len(list) == 0 {
		list = append(list, group{})
	}
	if i := slices.Index(list, g); i >= 0 {
		return list, uint8(i)
	}
	if len(list) < maxGroups {
		list = append(list, g)
	}
	return list, uint8(len(list) - 1)
}

func (b *stored) group(number uint8) group {
	if number == 0 {
		return group{}
	}
	return b.groups[number]
}

// A store keeps every accepted copy. It only grows; Reset replaces it.
type store struct {
	index *index.Index

	mu      sync.RWMutex
	batches []*stored // by number of the first copy
	next    uint32    // number of the next copy
}

func newStore() *store {
	st := &store{}
	st.index = index.New(st)
	return st
}

// add enters the batch and counts its copies in the tallies of its account and of
// all accounts. The counts are exact under concurrency. Others may read the batch
// as soon as add begins.
func (st *store) add(b *stored, own, total *tally) {
	st.mu.Lock()
	b.first = st.next
	st.next += b.Len
	st.batches = append(st.batches, b)
	st.mu.Unlock()

	var distinctHere, doubledHere, distinct, doubled int64
	for c := range b.Copies() {
		here, all := st.index.Add(b.ID(c), b.first+c.Index, b.account.name)
		switch all {
		case 0:
			distinct++
		case 1:
			doubled++
		}
		switch here {
		case 0:
			distinctHere++
		case 1:
			doubledHere++
		}
	}
	own.copies.Add(int64(b.Len))
	own.distinct.Add(distinctHere)
	own.doubled.Add(doubledHere)
	total.copies.Add(int64(b.Len))
	total.distinct.Add(distinct)
	total.doubled.Add(doubled)
}

// batch returns the batch that holds the copy with the given number.
func (st *store) batch(number uint32) *stored {
	st.mu.RLock()
	defer st.mu.RUnlock()
	i := sort.Search(len(st.batches), func(i int) bool { return st.batches[i].first > number })
	return st.batches[i-1]
}

// AccountOf implements index.Owner.
func (st *store) AccountOf(number uint32) string { return st.batch(number).account.name }

// IDIs implements index.Owner.
func (st *store) IDIs(number uint32, id []byte) bool {
	b := st.batch(number)
	c, ok := b.Copy(number - b.first)
	return ok && bytes.Equal(b.ID(c), id)
}

// all returns the batches up to now.
func (st *store) all() []*stored {
	st.mu.RLock()
	defer st.mu.RUnlock()
	return slices.Clip(st.batches)
}
