// Package announce publishes the messages of accepted batches and of stored posts in the background, so that a slow or
// missing broker never delays a request.
package announce

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// BrokerTime is how long one call of the broker may take, and Close.
const BrokerTime = 5 * time.Second

// QueueSize is how many messages may wait.
const QueueSize = 20_000

const (
	batchSize = 200 // messages of one call of the broker
	workers   = 4
)

// Broker is the part of models.Broker that an Announcer needs.
type Broker interface {
	Publish(ctx context.Context, ms ...models.Message) error
}

// An offerer is a Broker that has handlers in this process. Offer gives a message to one that has nothing to do, and
// otherwise returns false.
type offerer interface {
	Offer(m models.Message) bool
}

// Announcer publishes messages in the background. It drops a message that it cannot
// publish: the agenda publishes it later. It is safe for concurrent use.
type Announcer struct {
	broker Broker
	failed func(ms []models.Message, err error)
	queue  chan *models.Message // pointers, because the queue has its whole length from the beginning
	stop   chan struct{}
	wg     sync.WaitGroup

	ctx    context.Context //nolint:containedctx // the workers live as long as the announcer
	cancel context.CancelFunc
}

// New starts an Announcer. Close stops it. It calls failed for messages that it cannot publish.
func New(b Broker, failed func(ms []models.Message, err error)) *Announcer {
	a := &Announcer{broker: b, failed: failed, queue: make(chan *models.Message, QueueSize), stop: make(chan struct{})}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	for range workers {
		a.wg.Go(a.run)
	}
	return a
}

// Add queues a message, and reports false if the queue is full.
func (a *Announcer) Add(m models.Message) bool {
	select {
	case a.queue <- &m:
		return true
	default:
		return false
	}
}

// Offer gives a message to a handler of this process that has nothing to do. If there is none, it is Add.
func (a *Announcer) Offer(m models.Message) bool {
	if near, ok := a.broker.(offerer); ok && near.Offer(m) {
		return true
	}
	return a.Add(m)
}

func (a *Announcer) run() {
	var space [batchSize]models.Message
	for {
		select {
		case m := <-a.queue:
			a.publish(*m, space[:0])
		case <-a.stop:
			for {
				select {
				case m := <-a.queue:
					a.publish(*m, space[:0])
				default:
					return
				}
			}
		}
	}
}

// publish publishes a message together with those that are queued. It collects them in a space for batchSize messages.
func (a *Announcer) publish(m models.Message, space []models.Message) {
	ms := append(space, m)
fill:
	for len(ms) < batchSize {
		select {
		case m := <-a.queue:
			ms = append(ms, *m)
		default:
			break fill
		}
	}
	ms = slices.Clone(ms) // a broker may keep them
	clear(space[:len(ms)])
	ctx, cancel := context.WithTimeout(a.ctx, BrokerTime)
	defer cancel()
	if err := a.broker.Publish(ctx, ms...); err != nil {
		a.failed(ms, err)
	}
}

// Close publishes the queued messages, for at most BrokerTime, and stops the announcer.
func (a *Announcer) Close() {
	close(a.stop)
	late := time.AfterFunc(BrokerTime, a.cancel)
	defer late.Stop()
	a.wg.Wait()
	a.cancel()
}
