package rabbit

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/safedelivr/safedelivr/models"
)

// handle gives one delivery to its handler and settles it.
func (b *Broker) handle(ctx context.Context, d *amqp.Delivery, h models.Handler) {
	m, was, err := incoming(d)
	if errors.Is(err, models.ErrNewer) {
		b.log.Debug("message is left to a newer process", "queue", d.RoutingKey, "err", err)
		b.settle(ctx, d, b.topology.postponed(d))
		return
	}
	if err != nil {
		b.park(ctx, d, err.Error())
		return
	}
	if n := returned(d); n >= renewAt {
		b.renew(ctx, d, m, was, n)
		return
	}
	if time.Until(m.NotBefore) > early {
		b.requeue(ctx, d, m, was)
		return
	}
	disposition, panicked := h.Run(ctx, m)
	if panicked != "" {
		was.panics++
		b.log.Error("handler panicked", "queue", d.RoutingKey, "err", panicked)
		if was.panics >= models.MaxDeliveries {
			b.park(ctx, d, fmt.Sprintf("its handler panicked %d times: %s", was.panics, panicked))
			return
		}
		m.NotBefore = time.Now().Add(min(time.Duration(was.panics)*100*time.Millisecond, time.Second))
		b.requeue(ctx, d, m, history{panics: was.panics})
		return
	}
	if why, ok := disposition.IsPark(); ok {
		b.park(ctx, d, why)
		return
	}
	if wait, ok := disposition.IsLater(); ok {
		m.NotBefore, m.At = time.Time{}, time.Time{}
		if wait > 0 {
			m.NotBefore = time.Now().Add(wait)
		}
		b.requeue(ctx, d, m, history{})
		return
	}
	_ = d.Ack(false) // if the channel is gone, the message comes again
}

// renew publishes a message anew before it reaches the delivery limit of its queue.
// The queue counts each redelivery: not only after a crash, but also after each stop
// and each lost connection. A message with far more redeliveries is parked.
func (b *Broker) renew(ctx context.Context, d *amqp.Delivery, m models.Message, was history, n int) {
	was.returned += n
	if was.returned >= maxReturned {
		b.park(ctx, d, redeliveredText(was.returned))
		return
	}
	b.requeue(ctx, d, m, was)
}

// requeue publishes a message again, through a delay if it has to wait.
func (b *Broker) requeue(ctx context.Context, d *amqp.Delivery, m models.Message, was history) {
	o, err := b.topology.outgoing(&m, was)
	if err != nil {
		b.park(ctx, d, err.Error())
		return
	}
	b.settle(ctx, d, o)
}

// park moves a delivery to the parking lot.
func (b *Broker) park(ctx context.Context, d *amqp.Delivery, why string) {
	b.log.Warn("message parked", "queue", d.RoutingKey, "err", models.ParkedWhy(why))
	b.settle(ctx, d, b.topology.parkedMessage(d, why, time.Now()))
}

// settle publishes the message that follows from a delivery and then acknowledges the
// delivery. While nothing can be published, as under a memory alarm, it keeps the
// delivery and tries again, because the queue counts each redelivery.
func (b *Broker) settle(ctx context.Context, d *amqp.Delivery, follows *outgoing) {
	for first := true; ; first = false {
		wait, cancel := context.WithTimeout(context.WithoutCancel(ctx), publishWait)
		err := b.publisher.publish(wait, []*outgoing{follows})
		cancel()
		if err == nil {
			_ = d.Ack(false) // if the channel is gone, the message comes again
			return
		}
		if first {
			b.log.Warn("message is kept until publishing is possible", "queue", d.RoutingKey, "err", err)
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			_ = d.Nack(false, true)
			return
		}
	}
}
