package sqlite

import (
	"context"
	"maps"
	"sync"
	"time"
)

// leases are kept in memory and end by the monotonic clock. Only this process can
// use the data folder, so no holder from before it was opened can be alive.
type leases struct {
	mu   sync.Mutex
	held map[string]lease
}

type lease struct {
	holder string
	until  time.Time
}

// Lease implements shapes.Leaser.
func (e *engine) Lease(_ context.Context, name, holder string, ttl time.Duration) (bool, error) {
	return e.leases.take(name, holder, ttl), nil
}

// take takes, renews or gives up a lease, and reports whether holder has it.
func (l *leases) take(name, holder string, ttl time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if there, ok := l.held[name]; ok && there.holder != holder && now.Before(there.until) {
		return false
	}
	if ttl <= 0 {
		if l.held[name].holder == holder {
			delete(l.held, name)
		}
		return false
	}
	if l.held == nil {
		l.held = map[string]lease{}
	}
	l.held[name] = lease{holder, now.Add(ttl)}
	return true
}

// dropEnded drops the leases that have ended.
func (l *leases) dropEnded() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(l.held, func(_ string, there lease) bool { return !now.Before(there.until) })
}
