package retention

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// historyStore is the part of models.Store that a History needs.
type historyStore interface {
	PutTransient(ctx context.Context, kind, name string, value []byte, ttl time.Duration) error
}

// History counts the calls and events of the providers that this worker sees, by the minute
// in which they happened. It stores each hour as a whole.
type History struct {
	store historyStore
	name  string

	mu    sync.Mutex
	hours map[time.Time]*historyHour // by begin

	writing sync.Mutex // held by Flush, so that an older state never replaces a newer one
}

// historyHour is an hour with the number of its changes, now and when it was last stored.
type historyHour struct {
	counts           telemetry.HistoryHour
	changed, written int64
}

// NewHistory returns an empty history. No other process may use its name, not even the
// same worker after a restart.
func NewHistory(store historyStore, name string) *History {
	return &History{store: store, name: name, hours: map[time.Time]*historyHour{}}
}

// count changes the counts of the minute that includes at. It ignores what happened more
// than HistoryLate ago.
func (h *History) count(provider string, at time.Time, change func(*telemetry.ProviderTally)) {
	now := time.Now().UTC()
	if at = at.UTC(); at.After(now) {
		at = now // the provider's clock is fast
	}
	if now.Sub(at) > telemetry.HistoryLate {
		return
	}
	start := at.Truncate(time.Hour)
	h.mu.Lock()
	defer h.mu.Unlock()
	hour := h.hours[start]
	if hour == nil {
		hour = &historyHour{counts: telemetry.HistoryHour{}}
		h.hours[start] = hour
	}
	change(hour.counts.At(provider, at.Minute()))
	hour.changed++
}

// Called counts a call that has ended.
func (h *History) Called(provider string, took time.Duration, parts []models.Part) {
	h.count(provider, time.Now(), func(t *telemetry.ProviderTally) {
		t.Calls++
		t.Answers.Add(took)
		for i := range parts {
			n := int64(parts[i].Recipients.Len())
			switch parts[i].Class { // all other classes are refusals
			case models.Accepted:
				t.Accepted += n
			case models.Unknown:
				t.Unknown += n
			default:
				t.Refused += n
			}
		}
	})
}

// Event counts an event of an attempt.
func (h *History) Event(ev *models.Event, of *models.Entry) {
	if ev.Kind != models.Delivered && ev.Kind != models.Deferred && !ev.Kind.Failure() {
		return
	}
	h.count(ev.Provider, ev.At, func(t *telemetry.ProviderTally) {
		switch {
		case ev.Kind == models.Delivered:
			t.Delivered++
			t.Delivery.Add(telemetry.DeliveryTime(ev.At, of.At, time.Now()))
		case ev.Kind == models.Deferred:
			t.Deferred++
		default:
			t.Failed++
		}
	})
}

// Flush stores the hours that have changed, and removes those that cannot change any more
// from memory.
func (h *History) Flush(ctx context.Context) error {
	h.writing.Lock()
	defer h.writing.Unlock()
	type page struct {
		start   time.Time
		raw     []byte
		changed int64
	}
	now := time.Now()
	var pages []page
	h.mu.Lock()
	for start, hour := range h.hours {
		switch {
		case hour.changed > hour.written:
			pages = append(pages, page{start, hour.counts.Encode(), hour.changed})
		case now.Sub(start) > telemetry.HistoryLate+time.Hour:
			delete(h.hours, start)
		}
	}
	h.mu.Unlock()
	var failed error
	for _, p := range pages {
		kind, ttl := telemetry.HistoryKind(p.start), telemetry.HistoryKept-now.Sub(p.start)
		if err := h.store.PutTransient(ctx, kind, h.name, p.raw, ttl); err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		h.mu.Lock()
		h.hours[p.start].written = p.changed
		h.mu.Unlock()
	}
	return failed
}

// Run flushes at an interval until ctx ends.
func (h *History) Run(ctx context.Context, every time.Duration, log *slog.Logger) {
	for range models.Every(ctx, every) {
		if err := h.Flush(ctx); err != nil && ctx.Err() == nil {
			log.Warn("cannot store the history of the providers; will retry", "err", err)
		}
	}
}

// Finish flushes for the last time.
func (h *History) Finish(log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := h.Flush(ctx); err != nil {
		log.Warn("the last seconds of the providers' history are lost", "err", err)
	}
}
