package events

import "sync"

// recentSet holds the last hashes that were added: at least size, and at most twice as
// many. An lru.Cache of hundreds of thousands of hashes takes two to three times the
// memory.
type recentSet struct {
	mu       sync.Mutex
	size     int
	now, old map[uint64]struct{}
}

func newRecentSet(size int) *recentSet { return &recentSet{size: size, now: map[uint64]struct{}{}} }

// add adds a hash and reports whether it is new.
func (s *recentSet) add(hash uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.now[hash]; ok {
		return false
	}
	_, known := s.old[hash]
	if len(s.now) >= s.size {
		s.now, s.old = make(map[uint64]struct{}, s.size), s.now
	}
	s.now[hash] = struct{}{}
	return !known
}
