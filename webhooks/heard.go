package webhooks

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models/telemetry"
)

// heard is when each provider posted last, so that people see whether an address
// and its key are set up at the provider.
type heard struct {
	mu    sync.Mutex
	at    map[string]time.Time
	told  map[string]time.Time // as it was written down
	first chan struct{}        // a provider posted for the first time
}

func newHeard() heard {
	return heard{at: map[string]time.Time{}, told: map[string]time.Time{}, first: make(chan struct{}, 1)}
}

// note takes down a post that was verified and stored.
func (h *heard) note(provider string, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.at[provider].IsZero() {
		select {
		case h.first <- struct{}{}:
		default:
		}
	}
	h.at[provider] = at
}

func (h *heard) all() map[string]time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.at)
}

// heard writes down who posted since it was called last. Only one goroutine
// calls it.
func (w *watch) heard(ctx context.Context, h *heard) {
	for provider, at := range h.all() {
		if at.After(h.told[provider]) && w.write(ctx, telemetry.LastReceived, provider, at, telemetry.LastReceivedTTL) {
			h.told[provider] = at
		}
	}
}
