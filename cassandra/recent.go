package cassandra

import "sync"

// recent is a set of the last n keys that were added, and up to n older ones. It is for
// facts that stay true permanently.
type recent[K comparable] struct {
	mu       sync.Mutex
	n        int
	now, old map[K]struct{}
}

func newRecent[K comparable](n int) *recent[K] { return &recent[K]{n: n, now: map[K]struct{}{}} }

func (r *recent[K]) has(k K) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.now[k]; ok {
		return true
	}
	_, ok := r.old[k]
	return ok
}

func (r *recent[K]) add(k K) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.now) >= r.n {
		r.old, r.now = r.now, make(map[K]struct{}, r.n)
	}
	r.now[k] = struct{}{}
}
