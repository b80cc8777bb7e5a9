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
	maxBrowse = 100_000 // how many parked messages are searched for one
	lockRetry = 20 * time.Millisecond
)

// errLocked says that another process browses the parking lot.
var errLocked = errors.New("another process browses the parking lot")

// browse fetches up to limit parked messages until f returns true, and puts back what f did not acknowledge. One
// process browses at a time, because no other sees what is fetched, and would take it for gone.
func (b *Broker) browse(ctx context.Context, limit int, f func(*amqp.Delivery) (stop bool, err error)) error {
	wait := ctx
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		wait, cancel = context.WithTimeout(ctx, publishWait)
		defer cancel()
	}
	for {
		err := b.channel(ctx, func(ch *amqp.Channel) error { return b.browseLocked(ctx, ch, limit, f) })
		if !errors.Is(err, errLocked) {
			return err
		}
		select {
		case <-time.After(lockRetry):
		case <-wait.Done():
			return err
		}
	}
}

// browseLocked is browse under the lock. Errors: errLocked.
func (b *Broker) browseLocked(ctx context.Context, ch *amqp.Channel, limit int,
	f func(*amqp.Delivery) (stop bool, err error)) error {
	b.browsing.Lock()
	defer b.browsing.Unlock()
	if err := b.lock(ch); err != nil {
		return err
	}
	err := b.gather(ctx, ch, limit)
	if err == nil {
		err = b.fetch(ctx, ch, limit, f)
	}
	// RabbitMQ handles commands in order. When it has answered the last of these, it has the acknowledgements, and the
	// next holder of the lock sees the rest.
	if back := ch.Nack(0, true, true); err == nil {
		err = back
	}
	if _, unlocked := ch.QueueDelete(b.topology.parkedLock(), false, false, false); err == nil {
		err = unlocked
	}
	return err
}

// lock takes the lock of the parking lot: an exclusive queue, which is deleted with its consumer. The consumer always
// ends with the channel. Errors: errLocked.
func (b *Broker) lock(ch *amqp.Channel) error {
	name := b.topology.parkedLock()
	_, err := ch.QueueDeclare(name, false, true, true, false, nil)
	if err == nil {
		_, err = ch.Consume(name, "", false, true, false, false, nil)
	}
	var e *amqp.Error
	if errors.As(err, &e) && (e.Code == amqp.ResourceLocked || e.Code == amqp.NotFound) {
		return fmt.Errorf("%w: %w", models.ErrUnavailable, errLocked)
	}
	return err
}

// gatherAtOnce is how many messages are moved into the parking lot at once.
const gatherAtOnce = 100

// gather moves up to limit messages that left a delay and found no queue into the parking lot. If they were browsed
// where they are, that would count as deliveries. What cannot be moved now stays for the next browse.
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
			b.log.Warn("unroutable messages cannot be parked now", "err", err)
			return nil
		}
		if err := last.Ack(true); err != nil {
			return err
		}
		b.log.Warn("unroutable messages parked", "queue", last.RoutingKey, "messages", len(out))
		limit -= len(out)
	}
	return nil
}

// fetch calls f for up to limit parked messages until it returns true.
func (b *Broker) fetch(ctx context.Context, ch *amqp.Channel, limit int,
	f func(*amqp.Delivery) (stop bool, err error)) error {
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
	err := b.browse(ctx, limit, func(d *amqp.Delivery) (bool, error) {
		out = append(out, fromParked(d))
		return false, nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// takeParked finds a parked message, calls then, and removes the message if then succeeds. Errors: models.ErrNotFound.
func (b *Broker) takeParked(ctx context.Context, id string, then func(*amqp.Delivery) error) error {
	found := false
	err := b.browse(ctx, maxBrowse, func(d *amqp.Delivery) (bool, error) {
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
	return b.takeParked(ctx, id, func(d *amqp.Delivery) error {
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
	return b.takeParked(ctx, id, func(*amqp.Delivery) error { return nil })
}
