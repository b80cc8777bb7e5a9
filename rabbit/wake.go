package rabbit

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/safedelivr/safedelivr/models"
)

const (
	maxWakes      = 100 // wakes that wait for a subscriber; then the oldest is dropped
	wakesPrefetch = 10
)

// Wake implements models.Broker. The message is not mandatory, because it is no error if no
// process listens.
func (b *Broker) Wake(ctx context.Context, users ...string) error {
	if err := models.ValidateWake(users); err != nil {
		return err
	}
	raw, err := json.Marshal(users)
	if err != nil {
		return err
	}
	if err := b.subs.Open(); err != nil {
		return err
	}
	return b.publisher.publish(ctx, []*outgoing{{
		exchange:  b.topology.main(),
		key:       models.WakeKey,
		msg:       amqp.Publishing{ContentType: "application/json", Body: raw},
		transient: true,
	}})
}

// SubscribeWakes implements models.Broker.
func (b *Broker) SubscribeWakes(ctx context.Context, h func(users []string)) error {
	ctx, leave, err := b.subs.Join(ctx)
	if err != nil {
		return err
	}
	defer leave()
	pause := newPause()
	b.sessions(ctx, models.WakeKey, pause, func(ctx context.Context, conn *amqp.Connection) error {
		return b.takeWakes(ctx, conn, pause, h)
	})
	return nil
}

// takeWakes handles wakes over one channel until it breaks or ctx ends. The queue is removed with the
// connection, because a process that starts reads the feeds anyway.
func (b *Broker) takeWakes(
	ctx context.Context, conn *amqp.Connection, pause *backoff.ExponentialBackOff, h func(users []string),
) error {
	ch, err := openChannel(ctx, conn)
	if err != nil {
		return err
	}
	defer func() {
		ctx, done := context.WithTimeout(context.Background(), endWait)
		defer done()
		_ = within(ctx, ch.Close) // an error says that it is closed already
	}()
	name := b.topology.name("wakes." + models.NewUserID())
	bind := func() error { return ch.QueueBind(name, models.WakeKey, b.topology.main(), false, nil) }
	var in <-chan amqp.Delivery
	err = within(ctx, func() error {
		_, err := ch.QueueDeclare(name, false, true, true, false, amqp.Table{"x-max-length": int32(maxWakes)})
		if err != nil {
			return err
		}
		if err := errors.Join(bind(), ch.Qos(wakesPrefetch, 0, false)); err != nil {
			return err
		}
		in, err = ch.Consume(name, "", false, true, false, false, nil)
		return err
	})
	if err != nil {
		return err
	}
	pause.Reset()
	again := time.NewTicker(declareEvery) // the exchange may have been removed, and with it the binding
	defer again.Stop()
	for {
		select {
		case d, ok := <-in:
			if !ok {
				return errors.New("the broker ended the subscription to wakes")
			}
			var users []string
			if err := json.Unmarshal(d.Body, &users); err == nil { // else a newer process sent it
				h(users)
			}
			_ = d.Ack(false)
		case <-again.C:
			if err := within(ctx, bind); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}
