package simulator

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
)

// A stored batch is a message.Batch with what only the simulator knows of it.
type stored struct {
	message.Batch
	account *account
	groups  []group // by number of the group; empty = the zero group only

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
	mu      sync.RWMutex
	batches []*stored
	first   map[string]place   // the first copy of each id
	further map[string][]place // the others, oldest first
	lost    sync.Map           // each *message.Copy whose end was posted with a wrong signature, for the last time
}

// A place is where a copy is.
type place struct {
	*stored
	copy *message.Copy
}

func newStore() *store { return &store{first: map[string]place{}, further: map[string][]place{}} }

// add enters the batch and counts its copies in the tallies of its account and of
// all accounts. The counts are exact under concurrency.
func (st *store) add(b *stored, counts tallies) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.batches = append(st.batches, b)
	var fresh, doubled [len(tallies{})]int64 // of the account, and of all
	for i := range b.Copies {
		c := &b.Copies[i]
		first, ok := st.first[c.ID]
		if !ok {
			st.first[c.ID] = place{b, c}
			fresh[0]++
			fresh[1]++
			continue
		}
		further := st.further[c.ID]
		for k, before := range [...]int{earlier(first, further, b.account), 1 + len(further)} {
			switch before {
			case 0:
				fresh[k]++
			case 1:
				doubled[k]++
			}
		}
		st.further[c.ID] = append(further, place{b, c})
	}
	k := 0
	counts.count(func(t *Stats) {
		t.Copies += int64(len(b.Copies))
		t.Distinct += fresh[k]
		t.Doubled += doubled[k]
		k++
	})
}

// earlier returns how many of the copies of an id are at the account, up to two. It
// begins at the end, where they usually are.
func earlier(first place, further []place, a *account) (n int) {
	for _, p := range slices.Backward(further) {
		if p.account == a {
			n++
		}
		if n == 2 {
			return n
		}
	}
	if first.account == a {
		n++
	}
	return n
}

// of returns the copies of an id, oldest first.
func (st *store) of(id string) []place {
	st.mu.RLock()
	defer st.mu.RUnlock()
	first, ok := st.first[id]
	if !ok {
		return nil
	}
	return append([]place{first}, st.further[id]...)
}

// all returns the batches up to now.
func (st *store) all() []*stored {
	st.mu.RLock()
	defer st.mu.RUnlock()
	return slices.Clip(st.batches)
}
