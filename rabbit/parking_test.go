package rabbit

import (
	"context"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// While another process browses the parking lot, no other finds it empty.
// When that process is gone, all messages are there.
func TestParkingLotLocked(t *testing.T) {
	t.Parallel()
	b, other := openTest(t), raw(t)
	require.NoError(t, b.publisher.publish(t.Context(),
		[]*outgoing{b.topology.parkedMessage(&amqp.Delivery{RoutingKey: "k"}, "why", time.Now())}))
	waitParked(t, b, 1)
	holder := &Broker{topology: b.topology}
	require.NoError(t, holder.lock(other))
	_, ok, err := other.Get(b.topology.parked(), false)
	require.NoError(t, err)
	require.True(t, ok)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = b.Parked(ctx, 1)
	require.ErrorIs(t, err, models.ErrUnavailable)
	require.ErrorIs(t, b.Discard(ctx, "id"), models.ErrUnavailable, "not ErrNotFound")
	require.NoError(t, other.Close())
	waitParked(t, b, 1)
}

// A message that leaves a delay and finds no queue must be parked. It can be unparked
// when there is a queue again.
func TestUnroutableAfterDelayIsParked(t *testing.T) {
	t.Parallel()
	b, ch := openTest(t), raw(t)
	began := time.Now()
	m := models.Message{
		Kind:      models.ProviderMessage,
		Provider:  "gone",
		ID:        models.NewBatchID(began),
		Lane:      models.Bulk,
		Retry:     2,
		NotBefore: began.Add(tiers[0]),
	}
	o, err := b.topology.outgoing(&m, history{})
	require.NoError(t, err)
	out := []*outgoing{o}
	for range gatherAtOnce + 2 { // not all at once
		out = append(out, &outgoing{exchange: b.topology.back(), key: "unknown.key",
			msg: amqp.Publishing{Body: []byte("this")}})
	}
	require.NoError(t, b.publisher.publish(t.Context(), out))
	one, err := b.Parked(t.Context(), 1)
	require.NoError(t, err)
	require.Len(t, one, 1)
	ids := map[string]bool{}
	var id string
	for _, p := range waitParked(t, b, 100) { // as many as are asked for
		ids[p.ID] = true
	}
	require.Len(t, ids, 100)
	var all []models.Parked
	require.Eventually(t, func() bool {
		all, err = b.Parked(t.Context(), 1000)
		return err == nil && len(all) == len(out)
	}, time.Minute, 10*time.Millisecond)
	for _, p := range all {
		require.Contains(t, p.Why, "no queue")
		if p.Key == m.Key() {
			id = p.ID
			require.Equal(t, m.ID, p.Message.ID)
			require.WithinRange(t, p.At, began.Truncate(time.Second), time.Now(), "since when it found none")
			continue
		}
		require.Equal(t, "this", string(p.Raw))
		require.NoError(t, b.Discard(t.Context(), p.ID))
	}
	require.NotEmpty(t, id)
	require.ErrorIs(t, b.Unpark(t.Context(), id), models.ErrUnroutable)
	s, err := ch.QueueDeclarePassive(b.topology.unrouted(), true, false, false, false, nil)
	require.NoError(t, err)
	require.Zero(t, s.Messages)

	again, err := Open(t.Context(), Config{URL: testURL(t), Prefix: b.topology.prefix, Providers: []string{"gone"}})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, again.Remove(context.Background()))
		require.NoError(t, again.Close())
	})
	got := taken(t, again, models.Queue{Kind: models.ProviderMessage, Provider: "gone", Lane: models.Bulk})
	require.NoError(t, again.Unpark(t.Context(), id))
	arrives(t, got, m.ID)
}

// RabbitMQ 4 removes a message after 20 returns from a queue that sets no limit.
func TestUnroutableSurvivesManyReturns(t *testing.T) {
	t.Parallel()
	b := openTest(t)
	require.NoError(t, b.publisher.publish(t.Context(), []*outgoing{
		{exchange: b.topology.back(), key: "unknown.key", msg: amqp.Publishing{Body: []byte("this")}},
	}))
	giveBack(t, b.topology.unrouted(), 30)
	require.Equal(t, "unknown.key", waitParked(t, b, 1)[0].Key)
}
