package simulator

import (
	"bytes"
	"slices"
	"sort"
	"sync"
)

// A store keeps every accepted copy. It only grows; Reset puts a new one in its
// place.
type store struct {
	index *index

	mu       sync.RWMutex
	mailings []*mailing // by number of the first copy
	next     uint32     // number of the next copy
}

func newStore() *store { return &store{index: newIndex()} }

// add enters the mailing m and counts its copies in the tallies, exactly also
// under concurrency. The mailing may be read by others as soon as add begins.
func (st *store) add(m *mailing, tallies ...*tally) {
	st.mu.Lock()
	m.first = st.next
	st.next += m.n
	st.mailings = append(st.mailings, m)
	st.mu.Unlock()

	var distinctHere, doubledHere, distinct, doubled int64
	for c := m.cursor(); ; {
		r, ok := c.next()
		if !ok {
			break
		}
		switch here, all := st.index.add(st, m.id(r), m.first+r.i, m.account); {
		case all == 0:
			distinct++
			distinctHere++
		case all == 1:
			doubled++
			fallthrough
		default:
			switch here {
			case 0:
				distinctHere++
			case 1:
				doubledHere++
			}
		}
	}
	own, total := tallies[0], tallies[1]
	own.copies.Add(int64(m.n))
	own.distinct.Add(distinctHere)
	own.doubled.Add(doubledHere)
	total.copies.Add(int64(m.n))
	total.distinct.Add(distinct)
	total.doubled.Add(doubled)
}

// mailing returns the mailing that holds the copy with the number ref.
func (st *store) mailing(ref uint32) *mailing {
	st.mu.RLock()
	defer st.mu.RUnlock()
	i := sort.Search(len(st.mailings), func(i int) bool { return st.mailings[i].first > ref })
	return st.mailings[i-1]
}

func (st *store) accountOf(ref uint32) *account { return st.mailing(ref).account }

func (st *store) keyIs(ref uint32, key []byte) bool {
	m := st.mailing(ref)
	r, ok := m.record(ref - m.first)
	return ok && bytes.Equal(m.id(r), key)
}

// all returns the mailings up to now.
func (st *store) all() []*mailing {
	st.mu.RLock()
	defer st.mu.RUnlock()
	return slices.Clip(st.mailings)
}
