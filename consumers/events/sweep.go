package events

import (
	"context"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// Sweep announces posts of a shard again that were not processed in time. It returns
// from when on posts may be unprocessed, and when the oldest of them came; zero: there is
// none.
func (q *Processor) Sweep(ctx context.Context, shard int, from, now time.Time) (next, oldest time.Time, err error) {
	late := now.Add(-q.cfg.InboxAge)
	waiting := q.EventsWaiting(ctx) // they were announced, and are being processed
	var due []models.Message
	for in, err := range q.store.Pending(ctx, shard, from, late) {
		if err != nil {
			return from, time.Time{}, err
		}
		if oldest.IsZero() {
			oldest = in.Received()
		}
		if waiting || len(due) >= 5000 {
			break
		}
		if q.providers.Get(in.Provider) == nil {
			continue
		}
		due = append(due, models.Message{Kind: models.EventMessage, Provider: in.Provider, ID: in.ID})
	}
	if oldest.IsZero() {
		return models.LaterOf(from, late.Add(-models.LateWriters)), oldest, nil
	}
	for some := range slices.Chunk(due, 500) {
		q.dispatch.Publish(ctx, some...)
	}
	return oldest, oldest, nil
}

// EventsWaiting reports whether announced posts wait for a worker: announcing
// more would only make the queue longer.
func (q *Processor) EventsWaiting(ctx context.Context) bool {
	depths, err := q.broker.Depths(ctx)
	if err != nil {
		return true // Nothing can be announced anyway
	}
	for _, d := range depths {
		if d.Queue.Kind == models.EventMessage {
			return d.Ready > q.Runners()*eventsAtOnce
		}
	}
	return false
}
