package rabbit

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/safedelivr/safedelivr/models"
)

// Subscribe implements models.Broker.
func (b *Broker) Subscribe(ctx context.Context, q models.Queue, concurrency int, h models.Handler) error {
	if concurrency < 1 || h == nil || !b.has(q) {
		return fmt.Errorf("%w: subscription to %s with concurrency %d", models.ErrInvalid, q.Name(), concurrency)
	}
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return models.ErrClosed
	}
	b.subs.Add(1)
	b.mu.Unlock()
	defer b.subs.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(b.stop, cancel)()

	var running sync.WaitGroup
	defer running.Wait()
	for ctx.Err() == nil {
		conn, err := b.consume.wait(ctx)
		if err != nil {
			continue // ctx ended, or closed
		}
		if err := b.session(ctx, conn, q, concurrency, h); err != nil && ctx.Err() == nil {
			b.log.Warn("subscription interrupted", "queue", q.Name(), "err", err)
			select {
			case <-time.After(200 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}
	return nil
}

func (b *Broker) has(q models.Queue) bool {
	for _, k := range b.topology.queues {
		if k == q {
			return true
		}
	}
	return false
}

// session consumes over one channel until it breaks or ctx ends. On the way out
// it waits for running handlers, whose acknowledgements belong to this channel,
// and then closes it: what was fetched and not begun goes back.
func (b *Broker) session(ctx context.Context, conn *amqp.Connection, q models.Queue, concurrency int, h models.Handler) error {
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	tag := "sd-" + strconv.FormatUint(b.tags.Add(1), 36)
	var running sync.WaitGroup
	defer func() {
		running.Wait()
		_ = ch.Close() // closed already when the connection is gone
	}()
	if err := ch.Qos(concurrency, 0, false); err != nil {
		return err
	}
	deliveries, err := ch.Consume(b.topology.queue(q), tag, false, false, false, false, nil)
	if err != nil {
		return err
	}
	for {
		select {
		case d, ok := <-deliveries:
			if !ok {
				select {
				case e := <-closed:
					return orClosed(e)
				default: // the consumer was cancelled by the broker
					return errors.New("the broker ended the subscription")
				}
			}
			if ctx.Err() != nil {
				return nil
			}
			running.Go(func() { b.handle(ctx, &d, h) })
		case <-ctx.Done():
			endConsumer(ch, tag, deliveries)
			return nil
		}
	}
}

// endConsumer asks for no more deliveries. What still comes goes back with the
// channel. On a connection that the broker does not read the request may hang:
// it is not waited for longer than two seconds.
func endConsumer(ch *amqp.Channel, tag string, deliveries <-chan amqp.Delivery) {
	go func() {
		for range deliveries {
		}
	}()
	ended := make(chan struct{})
	go func() {
		_ = ch.Cancel(tag, false)
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(2 * time.Second):
	}
}

// handle gives one delivery to its handler and settles it.
func (b *Broker) handle(ctx context.Context, d *amqp.Delivery, h models.Handler) {
	m, died, err := incoming(d)
	if err != nil {
		b.settle(ctx, d, b.topology.parkedMessage(d, err.Error()))
		return
	}
	if time.Until(m.NotBefore) > early {
		b.again(ctx, d, m, died)
		return
	}
	said, panicked := h.Run(ctx, m)
	if panicked != "" {
		died++
		b.log.Error("handler died", "queue", d.RoutingKey, "err", panicked)
		if died >= models.MaxDeliveries {
			b.settle(ctx, d, b.topology.parkedMessage(d, "its handler died "+strconv.Itoa(died)+" times: "+panicked))
			return
		}
		m.NotBefore = time.Now().Add(min(time.Duration(died)*100*time.Millisecond, time.Second))
		b.again(ctx, d, m, died)
		return
	}
	if why, ok := said.IsPark(); ok {
		b.log.Warn("message parked", "queue", d.RoutingKey, "err", why)
		b.settle(ctx, d, b.topology.parkedMessage(d, why))
		return
	}
	if wait, ok := said.IsLater(); ok {
		if wait <= 0 {
			_ = d.Nack(false, true) // a lost channel gives it back as well
			return
		}
		m.NotBefore = time.Now().Add(wait)
		b.again(ctx, d, m, 0)
		return
	}
	_ = d.Ack(false) // if the channel is gone, the message comes again
}

// again sends a message round through a delay.
func (b *Broker) again(ctx context.Context, d *amqp.Delivery, m models.Message, died int) {
	o, err := b.topology.outgoing(&m, died)
	if err != nil {
		o = b.topology.parkedMessage(d, err.Error())
	}
	b.settle(ctx, d, o)
}

// settle publishes what follows from a delivery and acknowledges it after that.
// While nothing can be published, as under a memory alarm, it keeps the delivery
// and tries again: to give it back each time would count as one that workers died
// over.
func (b *Broker) settle(ctx context.Context, d *amqp.Delivery, follows *outgoing) {
	for first := true; ; first = false {
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), publishWait)
		err := b.publisher.publish(within, []*outgoing{follows})
		cancel()
		if err == nil {
			_ = d.Ack(false) // if the channel is gone, the message comes again
			return
		}
		if first {
			b.log.Warn("message waits with its worker until something can be published", "queue", d.RoutingKey, "err", err)
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			_ = d.Nack(false, true)
			return
		}
	}
}
