package rabbit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

func bulkMessage() models.Message {
	return models.Message{Kind: models.BatchMessage, ID: models.NewBatchID(time.Now()), Lane: models.Bulk}
}

// taken returns the IDs of the messages that a subscription gets.
func taken(t *testing.T, b *Broker, q models.Queue) (got <-chan models.ID) {
	t.Helper()
	c := make(chan models.ID, 1000)
	ctx, stop := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() {
		over <- b.Subscribe(ctx, q, 2, func(_ context.Context, m models.Message) models.Disposition {
			c <- m.ID
			return models.Done()
		})
	}()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-over)
	})
	return c
}

// arrives waits until a message is among those of got.
func arrives(t *testing.T, got <-chan models.ID, id models.ID) {
	t.Helper()
	for {
		select {
		case came := <-got:
			if came == id {
				return
			}
		case <-time.After(time.Minute):
			t.Fatal("the message did not come")
		}
	}
}

// A part of the topology is removed while a broker runs. Messages that are
// published later must reach the subscription that began before.
func TestRestoreRemovedParts(t *testing.T) {
	t.Parallel()
	for name, remove := range map[string]func(top topology, ch *amqp.Channel) error{
		"queue": func(top topology, ch *amqp.Channel) error {
			_, err := ch.QueueDelete(top.queue(bulkBatches), false, false, false)
			return err
		},
		"exchange of a group": func(top topology, ch *amqp.Channel) error {
			return ch.ExchangeDelete(top.group(bulkBatches), false, false)
		},
		"binding": func(top topology, ch *amqp.Channel) error {
			return ch.ExchangeUnbind(top.group(bulkBatches), bulkBatches.Binding(), top.main(), false, nil)
		},
		"main exchange": func(top topology, ch *amqp.Channel) error { return ch.ExchangeDelete(top.main(), false, false) },
		"delay": func(top topology, ch *amqp.Channel) error {
			_, err := ch.QueueDelete(top.delay(tiers[0]), false, false, false)
			return err
		},
		"exchange of a delay": func(top topology, ch *amqp.Channel) error {
			return ch.ExchangeDelete(top.delay(tiers[0]), false, false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := openTest(t)
			got := taken(t, b, bulkBatches)
			first := bulkMessage()
			require.NoError(t, b.Publish(t.Context(), first))
			arrives(t, got, first.ID)
			require.NoError(t, remove(b.topology, raw(t)))
			for _, wait := range []time.Duration{0, tiers[0]} {
				m := bulkMessage()
				if wait > 0 {
					m.NotBefore = time.Now().Add(wait)
				}
				require.NoError(t, b.Publish(t.Context(), m))
				arrives(t, got, m.ID)
			}
			require.Eventually(t, func() bool { return b.Ping(t.Context()) == nil }, time.Minute, 10*time.Millisecond)
		})
	}
}

// Messages that are parked after the parking lot was removed must not be lost.
func TestRestoreParkingLot(t *testing.T) {
	t.Parallel()
	b, ch := openTest(t), raw(t)
	park := func(wait time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		defer cancel()
		return b.publisher.publish(ctx, []*outgoing{b.topology.parkedMessage(&amqp.Delivery{RoutingKey: "k",
			Body: []byte("x")}, "why", time.Now())})
	}
	for range 2 {
		_, err := ch.QueueDelete(b.topology.parked(), false, false, false)
		require.NoError(t, err)
		require.NoError(t, park(time.Minute))
		waitParked(t, b, 1)
		_, err = ch.QueueDelete(b.topology.parked(), false, false, false)
		require.NoError(t, err)
		waitParked(t, b, 0)
		require.NoError(t, ch.ExchangeDelete(b.topology.parking(), false, false))
		require.NoError(t, park(time.Minute))
		waitParked(t, b, 1)
	}
}

// A subscription to a queue that was removed must continue on the new queue, even if
// this process publishes nothing.
func TestSubscriptionSurvivesRemovedQueue(t *testing.T) {
	t.Parallel()
	b := openTest(t)
	got := taken(t, b, models.Queue{Kind: models.EventMessage})
	require.Eventually(t, func() bool { return consumers(t, b) == 1 }, time.Minute, 10*time.Millisecond)
	_, err := raw(t).QueueDelete(b.topology.queue(models.Queue{Kind: models.EventMessage}), false, false, false)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return consumers(t, b) == 1 }, time.Minute, 10*time.Millisecond)
	m := models.Message{Kind: models.EventMessage, Provider: "sg", ID: models.NewInboxID(time.Now())}
	require.NoError(t, b.Publish(t.Context(), m))
	arrives(t, got, m.ID)
}

// Ping must report a removed part that no publish misses, and have it declared again.
func TestPingReportsRemovedParts(t *testing.T) {
	t.Parallel()
	b, ch := openTest(t), raw(t)
	require.NoError(t, b.Ping(t.Context()))
	require.NoError(t, ch.ExchangeDelete(b.topology.back(), false, false))
	var err error
	require.Eventually(t, func() bool { err = b.Ping(t.Context()); return err != nil }, time.Minute, 10*time.Millisecond)
	require.ErrorIs(t, err, models.ErrUnavailable)
	require.ErrorContains(t, err, b.topology.back())
	require.Eventually(t, func() bool { return b.Ping(t.Context()) == nil }, time.Minute, 10*time.Millisecond)
	m := bulkMessage()
	m.NotBefore = time.Now().Add(tiers[0])
	got := taken(t, b, bulkBatches)
	require.NoError(t, b.Publish(t.Context(), m))
	arrives(t, got, m.ID)
}

// While another kind of queue has the name of a queue, publishing to it must fail and
// Ping must say why. Both work again when it is gone.
func TestConflictingQueue(t *testing.T) {
	t.Parallel()
	b, ch := openTest(t), raw(t)
	name := b.topology.queue(bulkBatches)
	_, err := ch.QueueDelete(name, false, false, false)
	require.NoError(t, err)
	_, err = ch.QueueDeclare(name, true, false, false, false, nil)
	require.NoError(t, err)
	require.ErrorIs(t, b.Publish(t.Context(), bulkMessage()), models.ErrUnroutable)
	err = b.Ping(t.Context())
	require.ErrorIs(t, err, models.ErrUnavailable)
	require.ErrorContains(t, err, name)
	_, err = ch.QueueDelete(name, false, false, false)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return b.Ping(t.Context()) == nil }, time.Minute, 10*time.Millisecond)
	require.NoError(t, b.Publish(t.Context(), bulkMessage()))
}

// A queue is removed while many goroutines publish. Each call must return the right
// error, and publishing must work again.
func TestQueueRemovedWhilePublishing(t *testing.T) {
	t.Parallel()
	b, ch := openTest(t, "sg"), raw(t)
	var publishers sync.WaitGroup
	wrong := make(chan error, 100)
	for range 20 {
		publishers.Go(func() {
			for range 10 {
				if err := b.Publish(t.Context(), bulkMessage(), bulkMessage()); err != nil {
					wrong <- fmt.Errorf("publish: %w", err)
				}
			}
		})
	}
	for range 3 {
		_, err := ch.QueueDelete(b.topology.queue(bulkBatches), false, false, false)
		require.NoError(t, err)
	}
	publishers.Wait()
	for range len(wrong) { // it may go twice within one publish
		err := <-wrong
		require.True(t, errors.Is(err, models.ErrUnroutable) || errors.Is(err, models.ErrUnavailable), err)
	}
	// RabbitMQ takes up to 10 s to notice that messages were lost with the queue.
	require.Eventually(t, func() bool {
		return b.Publish(t.Context(), bulkMessage()) == nil
	}, time.Minute, 10*time.Millisecond)
	foreign := models.Message{
		Kind:     models.ProviderMessage,
		Provider: "unknown",
		ID:       models.NewBatchID(time.Now()),
		Lane:     models.Bulk,
	}
	require.ErrorIs(t, b.Publish(t.Context(), bulkMessage(), foreign), models.ErrUnroutable)
}
