// Package announce publishes the messages of accepted batches in the background, so
// that a slow or missing broker never delays a request.
package announce

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

const (
	queueSize  = 20_000 // messages
	batchSize  = 200    // messages of one call of the broker
	workers    = 4
	brokerTime = 5 * time.Second // for one call of the broker, and for Close
)

// Broker is the part of models.Broker that an Announcer needs.
type Broker interface {
	Publish(ctx context.Context, ms ...models.Message) error
}

// Announcer publishes messages in the background. It drops a message that it cannot
// publish: the agenda publishes it later. It is safe for concurrent use.
type Announcer struct {
	broker Broker
	log    *slog.Logger
	queue  chan models.Message
	stop   chan struct{}
	wg     sync.WaitGroup

	ctx    context.Context //nolint:containedctx // the workers live as long as the announcer
	cancel context.CancelFunc
}

// New starts an Announcer. Close stops it.
func New(b Broker, log *slog.Logger) *Announcer {
	a := &Announcer{broker: b, log: log, queue: make(chan models.Message, queueSize), stop: make(chan struct{})}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	for range workers {
		a.wg.Go(a.run)
	}
	return a
}

// Add queues one message for each chunk of a batch. If the queue is full, it drops the
// rest.
func (a *Announcer) Add(batch models.ID, chunks int, lane models.Lane) {
	for n := range chunks {
		if !a.AddChunk(batch.Chunk(n), lane) {
			a.log.Warn("queue of announcements is full; the agenda announces the rest of the batch",
				"batch_id", batch.String(), "chunk", n)
			return
		}
	}
}

// AddChunk queues a message for a chunk, unless the queue is full.
func (a *Announcer) AddChunk(chunk models.ID, lane models.Lane) bool {
	select {
	case a.queue <- models.Message{Kind: models.BatchMessage, ID: chunk, Lane: lane}:
		return true
	default:
		return false
	}
}

func (a *Announcer) run() {
	for {
		select {
		case m := <-a.queue:
			a.publish(m)
		case <-a.stop:
			for {
				select {
				case m := <-a.queue:
					a.publish(m)
				default:
					return
				}
			}
		}
	}
}

// publish publishes a message together with those that are queued.
func (a *Announcer) publish(m models.Message) {
	ms := append(make([]models.Message, 0, batchSize), m)
fill:
	for len(ms) < batchSize {
		select {
		case m := <-a.queue:
			ms = append(ms, m)
		default:
			break fill
		}
	}
	ctx, cancel := context.WithTimeout(a.ctx, brokerTime)
	defer cancel()
	if err := a.broker.Publish(ctx, ms...); err != nil {
		a.log.Warn("batches not announced; the agenda announces them later",
			"batch_id", ms[0].ID.Batch().String(), "messages", len(ms), "err", err)
	}
}

// Close publishes the queued messages, for at most brokerTime, and stops the announcer.
func (a *Announcer) Close() {
	close(a.stop)
	late := time.AfterFunc(brokerTime, a.cancel)
	defer late.Stop()
	a.wg.Wait()
	a.cancel()
}
