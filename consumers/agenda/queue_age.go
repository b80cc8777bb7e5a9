package agenda

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/consumers/dispatch"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// transients is the part of models.Store that QueueAges needs.
type transients interface {
	PutTransient(ctx context.Context, kind, name string, value []byte, ttl time.Duration) error
	Transients(ctx context.Context, kind string) (map[string][]byte, error)
}

// QueueAges computes how long the oldest message of each queue can have waited, which
// brokers do not report; see telemetry.QueueTimes. Workers combine what they know by
// transient values in the store.
type QueueAges struct {
	store  transients
	broker models.Broker
	worker string

	outage *dispatch.Outage // of messages that this worker publishes
	away   time.Time        // since when the broker is away, as last reported; zero: it is not

	mu      sync.Mutex
	served  map[models.Queue]*served
	own     telemetry.QueueTimes
	all     telemetry.QueueTimes // of all workers, as last read
	written telemetry.QueueTimes // as last written
}

// NewQueueAges returns ages that are all unknown.
func NewQueueAges(store transients, broker models.Broker, worker string) *QueueAges {
	return &QueueAges{
		store: store, broker: broker, worker: worker, outage: &dispatch.Outage{},
		served: map[models.Queue]*served{}, own: telemetry.QueueTimes{},
	}
}

// Watch returns a handler that notes what h takes from its queue.
func (a *QueueAges) Watch(q models.Queue, h models.Handler) models.Handler {
	name := q.Name()
	return func(ctx context.Context, m models.Message) models.Disposition {
		a.mu.Lock()
		at := m.At
		if now := time.Now(); at.After(now) {
			at = now // set by another clock
		}
		if at.After(a.own[name]) {
			a.own[name] = at
		}
		a.mu.Unlock()
		return h(ctx, m)
	}
}

// poll asks the broker which queues are empty, writes what this worker knows, reads what its peers know, and finds
// queues that deliver to no worker.
func (a *QueueAges) poll(ctx context.Context, log *slog.Logger) error {
	began := time.Now().UTC().Round(0)
	depths, err := a.broker.Depths(ctx)
	if ctx.Err() != nil {
		return err // it says nothing about the broker
	}
	if noted := a.noteBroker(ctx, err, began); err != nil || noted != nil {
		return errors.Join(err, noted)
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
	if !a.away.IsZero() {
		return nil
	}
	return a.report(ctx, a.stalled(depths, time.Now()), log)
}

// Oldest returns the longest time that the oldest message of a queue can have waited;
// false: it is not known.
func (a *QueueAges) Oldest(d *models.Depth, now time.Time) (time.Duration, bool) {
	if d.Ready == 0 {
		return 0, true
	}
	return a.waits(d.Queue, now)
}

// waits returns the longest time that messages of a queue can wait; false: it is not known.
func (a *QueueAges) waits(q models.Queue, now time.Time) (time.Duration, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	name := q.Name()
	since := models.LaterOf(a.own[name], a.all[name])
	return max(0, now.Sub(since)), !since.IsZero()
}

// Run polls until ctx ends, and once more then.
func (a *QueueAges) Run(ctx context.Context, every time.Duration, log *slog.Logger) {
	poll := func() {
		if err := a.poll(ctx, log); err != nil && ctx.Err() == nil {
			log.Warn("age of the queues is unknown", "err", err)
		}
	}
	poll()
	for range models.Every(ctx, every) {
		poll()
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	_ = a.poll(last, log) // otherwise peers know less
}
