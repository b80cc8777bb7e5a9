package webhooks

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// heard is when each account posted last, so that people see whether an address
// and its key are set up at the provider.
type heard struct {
	mu    sync.Mutex
	at    map[string]time.Time
	told  map[string]time.Time // as it was written down
	first chan struct{}        // an account posted for the first time
}

func newHeard() heard {
	return heard{at: map[string]time.Time{}, told: map[string]time.Time{}, first: make(chan struct{}, 1)}
}

// note takes down a post that was verified and stored.
func (h *heard) note(account string, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.at[account].IsZero() {
		select {
		case h.first <- struct{}{}:
		default:
		}
	}
	h.at[account] = at
}

func (h *heard) all() map[string]time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.at)
}

// heard writes down who posted since it was called last. Only one goroutine
// calls it.
func (w *watch) heard(ctx context.Context, h *heard) {
	for account, at := range h.all() {
		if at.After(h.told[account]) && w.write(ctx, models.HeardReport, account, at, models.HeardKept) {
			h.told[account] = at
		}
	}
}
