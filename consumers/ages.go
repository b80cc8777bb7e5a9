package consumers

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/consumers/cluster"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// queueAges finds out how long the oldest message of every queue can have waited,
// which brokers do not tell: see telemetry.QueueTimes. All workers together know
// best; each tells the others what it knows.
type queueAges struct {
	store  cluster.TransientStore
	broker models.Broker
	worker string

	mu      sync.Mutex
	own     telemetry.QueueTimes
	all     telemetry.QueueTimes // of all workers, as they were read last
	written telemetry.QueueTimes // what was written last
}

func newQueueAges(store cluster.TransientStore, broker models.Broker, worker string) *queueAges {
	return &queueAges{store: store, broker: broker, worker: worker, own: telemetry.QueueTimes{}}
}

// checkSums notes what a handler takes from its queue.
func (a *queueAges) watch(q models.Queue, h models.Handler) models.Handler {
	name := q.Name()
	return func(ctx context.Context, m models.Message) models.Disposition {
		a.mu.Lock()
		at := m.At
		if now := time.Now(); at.After(now) {
			at = now // another's clock
		}
		if at.After(a.own[name]) {
			a.own[name] = at
		}
		a.mu.Unlock()
		return h(ctx, m)
	}
}

// load asks the broker which queues are empty, tells the others, and hears what
// they know.
func (a *queueAges) poll(ctx context.Context) error {
	began := time.Now().UTC().Round(0)
	depths, err := a.broker.Depths(ctx)
	if err != nil {
		return err
	}
	a.mu.Lock()
	for _, d := range depths {
		if d.Ready == 0 {
			a.own.Take(telemetry.QueueTimes{d.Queue.Name(): began})
		}
	}
	mine := maps.Clone(a.own)
	same := maps.EqualFunc(mine, a.written, time.Time.Equal)
	a.mu.Unlock()
	if !same {
		raw, err := json.Marshal(mine)
		if err != nil {
			return err
		}
		if err := a.store.PutTransient(ctx, telemetry.QueuesReport, a.worker, raw, telemetry.QueuesKept); err != nil {
			return err
		}
	}
	others, err := a.store.Transients(ctx, telemetry.QueuesReport)
	if err != nil {
		return err
	}
	all := telemetry.QueueTimes{}
	for _, raw := range others {
		var o telemetry.QueueTimes
		if json.Unmarshal(raw, &o) == nil {
			all.Take(o)
		}
	}
	a.mu.Lock()
	a.written, a.all = mine, all
	a.mu.Unlock()
	return nil
}

// oldest is how long the oldest message of a queue has waited at most; false: it
// is not known.
func (a *queueAges) oldest(d *models.Depth, now time.Time) (time.Duration, bool) {
	if d.Ready == 0 {
		return 0, true
	}
	return a.waits(d.Queue, now)
}

// waits is how long messages of a queue wait at most; false: it is not known.
func (a *queueAges) waits(q models.Queue, now time.Time) (time.Duration, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	name := q.Name()
	since := models.LaterOf(a.own[name], a.all[name])
	return max(0, now.Sub(since)), !since.IsZero()
}

// Run looks every few seconds until ctx ends, and once more then.
func (a *queueAges) run(ctx context.Context, every time.Duration, log *slog.Logger) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		if err := a.poll(ctx); err != nil && ctx.Err() == nil {
			log.Warn("it is not known how old the queues are", "err", err)
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
			defer cancel()
			_ = a.poll(last) // others know less well otherwise
			return
		}
	}
}
