package events

import (
	"context"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/consumers/dispatch"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
)

// Sweeper announces posts that were not processed in time. Its methods may be called concurrently.
type Sweeper struct {
	cfg       Config
	store     Store
	broker    Depths
	outbox    *dispatch.Outbox
	providers *provider.Set
}

// NewSweeper returns a Sweeper.
func NewSweeper(cfg Config, store Store, broker Depths, outbox *dispatch.Outbox, providers *provider.Set) *Sweeper {
	return &Sweeper{cfg: cfg, store: store, broker: broker, outbox: outbox, providers: providers}
}

// Sweep announces posts of a shard again that were not processed in time. It returns
// where the next sweep begins, and when the oldest unprocessed post was received; zero:
// there is none.
func (s *Sweeper) Sweep(ctx context.Context, shard int, from, now time.Time) (next, oldest time.Time, err error) {
	late := now.Add(-s.cfg.InboxAge)
	waiting := s.EventsWaiting(ctx)
	var due []models.Message
	for in, err := range s.store.Pending(ctx, shard, from, late) {
		if err != nil {
			return from, time.Time{}, err
		}
		if oldest.IsZero() {
			oldest = in.Received()
		}
		if waiting || len(due) >= 5000 {
			break
		}
		if s.providers.Get(in.Provider) == nil {
			continue
		}
		due = append(due, models.Message{Kind: models.EventMessage, Provider: in.Provider, ID: in.ID})
	}
	if oldest.IsZero() {
		return models.LaterOf(from, late.Add(-models.LateWriters)), oldest, nil
	}
	for some := range slices.Chunk(due, 500) {
		s.outbox.Publish(ctx, some...)
	}
	return oldest, oldest, nil
}

// EventsWaiting reports whether so many announced posts wait for a worker that announcing
// more would only make the queue longer. It reports true if the broker does not answer.
func (s *Sweeper) EventsWaiting(ctx context.Context) bool {
	depths, err := s.broker.Depths(ctx)
	if err != nil {
		return true
	}
	for _, d := range depths {
		if d.Queue.Kind == models.EventMessage {
			return d.Ready > runners(s.cfg.Sole)*groupSize
		}
	}
	return false
}
