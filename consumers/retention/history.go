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

// historyStore is the part of models.Store that is needed here.
type historyStore interface {
	PutTransient(ctx context.Context, kind, name string, value []byte, ttl time.Duration) error
}

// History counts what this worker sees happen at the providers, by the minute in
// which it happened, and writes every hour down as a whole whenever something
// of it has changed.
type History struct {
	store historyStore
	Name  string // of this life of the worker: nobody else writes under it

	mu    sync.Mutex
	hours map[time.Time]*historyHour // by their begin

	writing sync.Mutex // an older state never replaces a newer one
}

// historyHour is an hour and how often it was changed, and was when it was
// written last.
type historyHour struct {
	counts           telemetry.HistoryHour
	changed, written int64
}

// NewHistory returns a history that writes under a name of this process alone.
func NewHistory(store historyStore, name string) *History {
	return &History{store: store, Name: name, hours: map[time.Time]*historyHour{}}
}

// count changes the counts of the minute that holds at. What is heard of too
// late is left out.
func (h *History) count(provider string, at time.Time, change func(*telemetry.ProviderTally)) {
	now := time.Now().UTC()
	if at = at.UTC(); at.After(now) {
		at = now // the provider's clock
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
			switch parts[i].Class { //nolint:exhaustive // all others did not take it
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

// Event counts an event of the attempt that it belongs to.
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

// Flush writes down what has changed, and forgets hours of which nothing more
// is counted.
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
		if err := h.store.PutTransient(ctx, telemetry.HistoryKind(p.start), h.Name, p.raw, telemetry.HistoryKept-now.Sub(p.start)); err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		h.mu.Lock()
		h.hours[p.start].written = p.changed
		h.mu.Unlock()
	}
	return failed
}

// Run writes every few seconds until ctx ends.
func (h *History) Run(ctx context.Context, every time.Duration, log *slog.Logger) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		if err := h.Flush(ctx); err != nil && ctx.Err() == nil {
			log.Warn("history of the providers not written yet", "err", err)
		}
	}
}

// Finish writes what is left.
func (h *History) Finish(log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := h.Flush(ctx); err != nil {
		log.Warn("the last seconds of the providers' history are lost", "err", err)
	}
}
