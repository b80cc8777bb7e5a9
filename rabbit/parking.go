package rabbit

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/safedelivr/safedelivr/models"
)

const (
	maxLook   = 100_000 // how far into the parking lot one message is looked for
	lookAgain = 20 * time.Millisecond
)

// errLooking says that another process looks into the parking lot.
var errLooking = errors.New("another process has the parking lot")

// look fetches up to limit parked messages, until f says stop, and puts back what f
// did not acknowledge. One process at a time does: what is fetched nobody else sees,
// and would take for gone.
func (b *Broker) look(ctx context.Context, limit int, f func(*amqp.Delivery) (stop bool, err error)) error {
	wait := ctx
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		wait, cancel = context.WithTimeout(ctx, publishWait)
		defer cancel()
	}
	for {
		err := b.channel(ctx, func(ch *amqp.Channel) error { return b.lookNow(ctx, ch, limit, f) })
		if !errors.Is(err, errLooking) {
			return err
		}
		select {
		case <-time.After(lookAgain):
		case <-wait.Done():
			return err
		}
	}
}

func (b *Broker) lookNow(ctx context.Context, ch *amqp.Channel, limit int, f func(*amqp.Delivery) (stop bool, err error)) error {
	b.looking.Lock()
	defer b.looking.Unlock()
	if err := b.lock(ch); err != nil {
		return err
	}
	err := b.gather(ctx, ch, limit)
	if err == nil {
		err = b.fetch(ctx, ch, limit, f)
	}
	// The broker obeys in order: with the answer to the last of these it has heard what
	// was acknowledged, and who has the lock next sees the rest.
	if back := ch.Nack(0, true, true); err == nil {
		err = back
	}
	if _, unlocked := ch.QueueDelete(b.topology.looking(), false, false, false); err == nil {
		err = unlocked
	}
	return err
}

// lock takes the lock of the parking lot: a queue that one connection alone may
// have. It goes with its consumer, which ends with the channel whatever happens.
func (b *Broker) lock(ch *amqp.Channel) error {
	name := b.topology.looking()
	_, err := ch.QueueDeclare(name, false, true, true, false, nil)
	if err == nil {
		_, err = ch.Consume(name, "", false, true, false, false, nil)
	}
	var e *amqp.Error
	if errors.As(err, &e) && (e.Code == amqp.ResourceLocked || e.Code == amqp.NotFound) {
		return fmt.Errorf("%w: %w", models.ErrUnavailable, errLooking)
	}
	return err
}

// gatherAtOnce is how many messages are moved into the parking lot together.
const gatherAtOnce = 100

// gather moves what came back from a delay and found no queue into the parking lot,
// up to limit: what is looked at where it is would count as delivered too often. What
// cannot be moved now stays for the next look.
func (b *Broker) gather(ctx context.Context, ch *amqp.Channel, limit int) error {
	for limit > 0 {
		var out []*outgoing
		var last amqp.Delivery
		for len(out) < min(limit, gatherAtOnce) {
			d, ok, err := ch.Get(b.topology.unrouted(), false)
			if err != nil {
				return err
			}
			if !ok {
				break
			}
			_, at := death(&d)
			out, last = append(out, b.topology.parkedMessage(&d, "no queue takes messages of this key", at)), d
		}
		if len(out) == 0 {
			return nil
		}
		if err := b.publisher.publish(ctx, out); err != nil {
			b.log.Warn("messages that no queue takes are not among the parked ones yet", "err", err)
			return nil
		}
		if err := last.Ack(true); err != nil {
			return err
		}
		b.log.Warn("messages parked that no queue takes", "queue", last.RoutingKey, "messages", len(out))
		limit -= len(out)
	}
	return nil
}

func (b *Broker) fetch(ctx context.Context, ch *amqp.Channel, limit int, f func(*amqp.Delivery) (stop bool, err error)) error {
	for range limit {
		if ctx.Err() != nil {
			return silent(ctx)
		}
		d, ok, err := ch.Get(b.topology.parked(), false)
		if err != nil || !ok {
			return err
		}
		if stop, err := f(&d); stop || err != nil {
			return err
		}
	}
	return nil
}

// Parked implements models.Broker.
func (b *Broker) Parked(ctx context.Context, limit int) ([]models.Parked, error) {
	var out []models.Parked
	err := b.look(ctx, limit, func(d *amqp.Delivery) (bool, error) {
		out = append(out, fromParked(d))
		return false, nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (b *Broker) take(ctx context.Context, id string, then func(*amqp.Delivery) error) error {
	found := false
	err := b.look(ctx, maxLook, func(d *amqp.Delivery) (bool, error) {
		if d.MessageId != id {
			return false, nil
		}
		found = true
		if err := then(d); err != nil {
			return true, err
		}
		return true, d.Ack(false)
	})
	if err == nil && !found {
		return fmt.Errorf("%w: parked message %s", models.ErrNotFound, id)
	}
	return err
}

// Unpark implements models.Broker.
func (b *Broker) Unpark(ctx context.Context, id string) error {
	return b.take(ctx, id, func(d *amqp.Delivery) error {
		m, _, err := incoming(d)
		if err != nil {
			return fmt.Errorf("%w: this message can only be discarded: %w", models.ErrUnroutable, err)
		}
		m.NotBefore, m.At = time.Time{}, time.Time{}
		return b.Publish(ctx, m)
	})
}

// Discard implements models.Broker.
func (b *Broker) Discard(ctx context.Context, id string) error {
	return b.take(ctx, id, func(*amqp.Delivery) error { return nil })
}
