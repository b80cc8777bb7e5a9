package consumers

import (
	"context"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// sweepInbox announces posts again that were not worked off in time.
func (e *Engine) sweepInbox(ctx context.Context, s *shard, now time.Time) error {
	oldest := now.Add(-e.cfg.InboxAge)
	waiting := e.eventsWaiting(ctx) // they were announced, and are being worked off
	var due []models.Message
	pending := false
	for in, err := range e.store.Pending(ctx, s.n, s.inboxFrom, oldest) {
		if err != nil {
			return err
		}
		if !pending {
			pending, s.inboxFrom = true, in.Received()
			s.oldestPost.Store(in.Received().UnixMilli())
		}
		if waiting || len(due) >= 5000 {
			break
		}
		if e.providers.Get(in.Provider) == nil {
			continue
		}
		due = append(due, models.Message{Kind: models.EventMessage, Provider: in.Provider, ID: in.ID})
	}
	if !pending {
		s.oldestPost.Store(0)
		s.inboxFrom = models.LaterOf(s.inboxFrom, oldest.Add(-models.LateWriters))
		return nil
	}
	for from := 0; from < len(due); from += 500 {
		e.wake(ctx, due[from:min(from+500, len(due))]...)
	}
	return nil
}

// eventsWaiting reports whether announced posts wait for a worker: announcing
// more would only make the queue longer.
func (e *Engine) eventsWaiting(ctx context.Context) bool {
	depths, err := e.broker.Depths(ctx)
	if err != nil {
		return true // Nothing can be announced anyway
	}
	for _, d := range depths {
		if d.Queue.Kind == models.EventMessage {
			return d.Ready > e.events.runners()*eventsAtOnce
		}
	}
	return false
}
