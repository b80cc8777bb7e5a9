package rabbit

import (
	"context"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/safedelivr/safedelivr/models"
)

// handle gives one delivery to its handler and settles it.
func (b *Broker) handle(ctx context.Context, d *amqp.Delivery, h models.Handler) {
	m, was, err := incoming(d)
	if err != nil {
		b.park(ctx, d, err.Error())
		return
	}
	if n := returned(d); n >= renewedAt {
		b.renew(ctx, d, m, was, n)
		return
	}
	if time.Until(m.NotBefore) > early {
		b.again(ctx, d, m, was)
		return
	}
	said, panicked := h.Run(ctx, m)
	if panicked != "" {
		was.died++
		b.log.Error("handler died", "queue", d.RoutingKey, "err", panicked)
		if was.died >= models.MaxDeliveries {
			b.park(ctx, d, fmt.Sprintf("its handler died %d times: %s", was.died, panicked))
			return
		}
		m.NotBefore = time.Now().Add(min(time.Duration(was.died)*100*time.Millisecond, time.Second))
		b.again(ctx, d, m, past{died: was.died})
		return
	}
	if why, ok := said.IsPark(); ok {
		b.park(ctx, d, why)
		return
	}
	if wait, ok := said.IsLater(); ok {
		m.NotBefore, m.At = time.Time{}, time.Time{}
		if wait > 0 {
			m.NotBefore = time.Now().Add(wait)
		}
		b.again(ctx, d, m, past{})
		return
	}
	_ = d.Ack(false) // if the channel is gone, the message comes again
}

// renew publishes a message anew before its queue would put it aside, which counts
// every time that it came back without an end: not only workers that died over it,
// but also each stop and each lost connection while it was with one. What has come
// back far more often than that is parked.
func (b *Broker) renew(ctx context.Context, d *amqp.Delivery, m models.Message, was past, n int) {
	was.returned += n
	if was.returned >= maxReturned {
		b.park(ctx, d, fmt.Sprintf("came back %d times without an end: workers died over it, were stopped or lost their connection", was.returned))
		return
	}
	b.again(ctx, d, m, was)
}

// again sends a message round, through a delay where it is to wait.
func (b *Broker) again(ctx context.Context, d *amqp.Delivery, m models.Message, was past) {
	o, err := b.topology.outgoing(&m, was)
	if err != nil {
		b.park(ctx, d, err.Error())
		return
	}
	b.settle(ctx, d, o)
}

func (b *Broker) park(ctx context.Context, d *amqp.Delivery, why string) {
	b.log.Warn("message parked", "queue", d.RoutingKey, "err", models.ParkedWhy(why))
	b.settle(ctx, d, b.topology.parkedMessage(d, why, time.Now()))
}

// settle publishes what follows from a delivery and acknowledges it after that.
// While nothing can be published, as under a memory alarm, it keeps the delivery
// and tries again: the queue counts each time that it is given back.
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
