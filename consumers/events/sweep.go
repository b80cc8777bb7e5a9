package events

import (
	"context"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// Sweep announces posts of a shard again that were not processed in time. It returns
// where the next sweep begins, and when the oldest unprocessed post was received; zero:
// there is none.
func (q *Processor) Sweep(ctx context.Context, shard int, from, now time.Time) (next, oldest time.Time, err error) {
	late := now.Add(-q.cfg.InboxAge)
	waiting := q.EventsWaiting(ctx)
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
		q.outbox.Publish(ctx, some...)
	}
	return oldest, oldest, nil
}

// EventsWaiting reports whether so many announced posts wait for a worker that announcing
// more would only make the queue longer. It reports true if the broker does not answer.
func (q *Processor) EventsWaiting(ctx context.Context) bool {
	depths, err := q.broker.Depths(ctx)
	if err != nil {
		return true
	}
	for _, d := range depths {
		if d.Queue.Kind == models.EventMessage {
			return d.Ready > q.Concurrency()
		}
	}
	return false
}
