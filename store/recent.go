package store

import "sync"

// Recent is a set of the last n keys that were added, and up to n older ones.
type Recent[K comparable] struct {
	mu       sync.Mutex
	n        int
	now, old map[K]struct{}
}

// NewRecent returns an empty set.
func NewRecent[K comparable](n int) *Recent[K] { return &Recent[K]{n: n, now: map[K]struct{}{}} }

// Has reports whether a key is known.
func (r *Recent[K]) Has(k K) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.now[k]; ok {
		return true
	}
	_, ok := r.old[k]
	return ok
}

// Add adds a key. It may forget old ones.
func (r *Recent[K]) Add(k K) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.now) >= r.n {
		r.old, r.now = r.now, make(map[K]struct{}, r.n)
	}
	r.now[k] = struct{}{}
}

// Remove forgets a key.
func (r *Recent[K]) Remove(k K) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.now, k)
	delete(r.old, k)
}
