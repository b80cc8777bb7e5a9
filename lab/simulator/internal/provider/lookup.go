package provider

import (
	"sync"
	"time"
)

// Oldest returns the time from which on look-ups show events, in Unix nanoseconds.
func (o *Options) Oldest(now time.Time) int64 {
	if o.LookupWindow == 0 {
		return 0
	}
	return now.Add(-o.LookupWindow).UnixNano()
}

// A Limiter counts the look-ups of the current second. It is safe for concurrent use.
type Limiter struct {
	mu     sync.Mutex
	second int64
	n      int
}

// Allow reports whether another look-up is allowed, and when the limit begins anew. A limit
// of 0 allows all.
func (l *Limiter) Allow(limit int, now time.Time) (reset time.Time, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.second != now.Unix() {
		l.second, l.n = now.Unix(), 0
	}
	l.n++
	return time.Unix(l.second+1, 0), limit == 0 || l.n <= limit
}
