package webhooks

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models/telemetry"
)

// lastReceived holds the time of each provider's last stored post. The dashboard
// shows it, so that users see whether a webhook and its key are set up.
type lastReceived struct {
	mu      sync.Mutex
	at      map[string]time.Time
	saved   map[string]time.Time // the times that the store holds
	changed chan struct{}        // signals that the store should know something now
}

func newLastReceived() lastReceived {
	return lastReceived{at: map[string]time.Time{}, saved: map[string]time.Time{}, changed: make(chan struct{}, 1)}
}

// note records a post that was verified and stored.
func (l *lastReceived) note(provider string, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at[provider].IsZero() {
		l.wake()
	}
	l.at[provider] = at
}

// wake has the store written to at once.
func (l *lastReceived) wake() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// all returns a copy of the times by provider.
func (l *lastReceived) all() map[string]time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.at)
}

// saveLastReceived stores the times that changed since the last call. Only one goroutine may call it.
func (w *watch) saveLastReceived(ctx context.Context, l *lastReceived) {
	for provider, at := range l.all() {
		if at.After(l.saved[provider]) && w.write(ctx, telemetry.LastReceived, provider, at, telemetry.LastReceivedTTL) {
			l.saved[provider] = at
		}
	}
}
