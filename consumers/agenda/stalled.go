package agenda

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// A broker may keep a consumer and deliver nothing to it: RabbitMQ 4.3 does so after a consumer time-out. Nothing breaks
// then, so that nothing subscribes again. The agenda sends the mail meanwhile, minutes late. This file finds such
// queues by what every worker knows: messages wait, a handler of the queue is free here, and no worker has taken a
// message. It also reports a broker that does not answer, or has queues without a leader.

// stallAfter is how long that lasts until a queue is subscribed anew. With the pause between two looks it is less than
// a minute.
const stallAfter = 30 * time.Second

// reportKept is how long a report is kept. A queue that stalls again within that time causes no other notice.
const reportKept = 10 * time.Minute

// served is a queue that this worker has subscribed to.
type served struct {
	slots, running int
	taken          int           // messages that handlers of this worker have got
	renew          chan struct{} // asks for another subscription

	stuck time.Time // since when the condition lasts; zero: it does not
	at    progress  // when it began
}

// progress changes when any worker takes a message of a queue.
type progress struct {
	taken  int
	newest time.Time // when the newest message was queued that a peer has taken
}

// Subscribe subscribes to a queue until ctx ends, with a handler that Watch returns. If the queue delivers to no
// worker, it is subscribed anew. Handlers of the former subscription end as if this worker stopped.
func (a *QueueAges) Subscribe(ctx context.Context, q models.Queue, slots int, h models.Handler) error {
	s := &served{slots: slots, renew: make(chan struct{}, 1)}
	a.mu.Lock()
	a.served[q] = s
	a.mu.Unlock()
	handler := a.Watch(q, func(ctx context.Context, m models.Message) models.Disposition {
		a.count(s, 1)
		defer a.count(s, -1)
		return h(ctx, m)
	})
	var former sync.WaitGroup
	defer former.Wait()
	for {
		within, cancel := context.WithCancel(ctx)
		ended := make(chan error, 1)
		former.Go(func() { ended <- a.broker.Subscribe(within, q, slots, handler) })
		select {
		case err := <-ended:
			cancel()
			return err
		case <-s.renew:
			cancel()
		}
	}
}

// count notes that a handler begins (1) or ends (-1).
func (a *QueueAges) count(s *served, change int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s.running += change
	s.taken += max(0, change)
}

// stalled returns the queues whose messages have reached no handler for stallAfter, although one is free, and has them
// subscribed anew.
func (a *QueueAges) stalled(depths []models.Depth, now time.Time) (out []telemetry.StalledQueue) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, d := range depths {
		s := a.served[d.Queue]
		if s == nil {
			continue
		}
		at := progress{s.taken, a.all[d.Queue.Name()]}
		switch {
		case d.Ready == 0 || s.running >= s.slots:
			s.stuck = time.Time{}
		case s.stuck.IsZero() || at != s.at:
			s.stuck, s.at = now, at
		case now.Sub(s.stuck) >= stallAfter:
			out = append(out, telemetry.StalledQueue{Queue: d.Queue.Name(), Since: s.stuck.UTC(), Waiting: d.Ready})
			s.stuck = time.Time{}
			select {
			case s.renew <- struct{}{}:
			default:
			}
		}
	}
	return out
}

// awayKept is how long a report about the broker is kept. A worker renews it with each look.
const awayKept = time.Minute

// noteBroker reports since when the broker describes no queues to this worker or takes no messages of it, and once that
// it does again. Subscribing anew would not help. Without a majority of its nodes, RabbitMQ describes queues, too.
func (a *QueueAges) noteBroker(ctx context.Context, err error, now time.Time) error {
	since := now
	if err == nil {
		since, err = a.outage.Refusing(time.Now())
	}
	var state telemetry.BrokerState
	switch {
	case err == nil && a.away.IsZero():
		return nil
	case err == nil:
		a.away = time.Time{}
	default:
		if a.away.IsZero() {
			a.away = since.UTC().Round(0)
		}
		state = telemetry.BrokerState{Since: a.away, Why: models.OneLine(err.Error())}
	}
	raw, err := json.Marshal(state)
	if err != nil {
		return err
	}
	return a.store.PutTransient(ctx, telemetry.BrokerReport, a.worker, raw, awayKept)
}

// report stores and logs which queues were subscribed anew.
func (a *QueueAges) report(ctx context.Context, queues []telemetry.StalledQueue, log *slog.Logger) error {
	for _, q := range queues {
		log.Error("a queue delivered nothing although its consumer stayed; it is subscribed anew",
			"queue", q.Queue, "since", q.Since, "waiting", q.Waiting)
		raw, err := json.Marshal(q)
		if err == nil {
			err = a.store.PutTransient(ctx, telemetry.StalledQueueReport, q.Queue, raw, reportKept)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
