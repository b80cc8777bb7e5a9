package rabbit

import (
	"context"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

var bulkBatches = models.Queue{Kind: models.BatchMessage, Lane: models.Bulk}

// raw opens a channel that no Broker knows of.
func raw(t *testing.T) *amqp.Channel {
	t.Helper()
	first, _, _ := strings.Cut(testURL(t), ",")
	conn, err := amqp.Dial(first)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	require.NoError(t, err)
	return ch
}

// giveBack takes the first message of a queue and gives it back, a number of times. RabbitMQ 4.3 counts a Reject and
// no Nack.
func giveBack(t *testing.T, queue string, times int) {
	t.Helper()
	ch := raw(t)
	for range times {
		require.Eventually(t, func() bool {
			d, ok, err := ch.Get(queue, false)
			require.NoError(t, err)
			return ok && d.Reject(true) == nil
		}, time.Minute, time.Millisecond)
	}
}

// waitParked waits until n messages are parked and returns them.
func waitParked(t *testing.T, b *Broker, n int) (got []models.Parked) {
	t.Helper()
	require.Eventually(t, func() bool {
		var err error
		got, err = b.Parked(t.Context(), 100)
		return err == nil && len(got) == n
	}, time.Minute, 10*time.Millisecond)
	return got
}

// A message must be published anew before it reaches the delivery limit of its queue,
// and be parked only after many redeliveries.
func TestRenewBeforeDeliveryLimit(t *testing.T) {
	t.Parallel()
	b := openTest(t)
	ch, q := raw(t), b.topology.queue(bulkBatches)
	began := time.Now()
	m := models.Message{Kind: models.BatchMessage, ID: models.NewBatchID(began), Lane: models.Bulk}
	require.NoError(t, b.Publish(t.Context(), m))
	handled := 0
	work := func() {
		var d amqp.Delivery
		require.Eventually(t, func() (ok bool) {
			var err error
			d, ok, err = ch.Get(q, false)
			require.NoError(t, err)
			return ok
		}, time.Minute, time.Millisecond)
		b.handle(t.Context(), &d, func(context.Context, models.Message) models.Disposition {
			handled++
			return models.Later(0)
		})
	}
	giveBack(t, q, renewAt-1)
	work()
	require.Equal(t, 1, handled)
	for came := 0; came < maxReturned; came += queueLimit {
		require.Empty(t, waitParked(t, b, 0))
		giveBack(t, q, queueLimit)
		work()
	}
	require.Equal(t, 1, handled)
	p := waitParked(t, b, 1)[0]
	require.Equal(t, m.ID, p.Message.ID)
	require.Contains(t, p.Why, "redelivered 200 times")
	require.WithinRange(t, p.At, began, time.Now())
}

// A parked message must say why and when it was parked, whether a handler or RabbitMQ
// did it. Neither is known of a message that another program published there.
func TestParkedReasonAndTime(t *testing.T) {
	t.Parallel()
	b := openTest(t)
	ch, q := raw(t), b.topology.queue(bulkBatches)
	began := time.Now()
	put := func(exchange, key, body string) {
		require.NoError(t, ch.Publish(exchange, key, true, false,
			amqp.Publishing{MessageId: models.NewUserID(), Body: []byte(body)})) //nolint:staticcheck // the context does nothing
	}
	ctx, stop := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() {
		over <- b.Subscribe(ctx, bulkBatches, 1, func(context.Context, models.Message) models.Disposition {
			return models.Done()
		})
	}()
	put("", q, "no message")
	unreadable := `{"k":"` + strings.Repeat("ü", 200_000) + `"}`
	put("", q, unreadable)
	waitParked(t, b, 2)
	stop()
	require.NoError(t, <-over)
	m := models.Message{Kind: models.BatchMessage, ID: models.NewBatchID(began), Lane: models.Bulk}
	require.NoError(t, b.Publish(t.Context(), m))
	giveBack(t, q, queueLimit+1)
	waitParked(t, b, 3)
	put(b.topology.parking(), "manual", "manually")
	for _, p := range waitParked(t, b, 4) {
		switch {
		case p.Message.ID == m.ID:
			require.Contains(t, p.Why, "redelivered 20 times")
		case string(p.Raw) == "no message":
			require.Contains(t, p.Why, "body is no message")
		case string(p.Raw) == unreadable:
			require.Contains(t, p.Why, "üüü")
			require.LessOrEqual(t, len(p.Why), models.MaxParkedWhy)
		default:
			require.Equal(t, "manually", string(p.Raw))
			require.Empty(t, p.Why)
			require.Zero(t, p.At, "it is not known")
			continue
		}
		require.WithinRange(t, p.At, began.Truncate(time.Second), time.Now())
	}
}

// RabbitMQ refuses to declare a queue with other arguments than it has, so the
// arguments must never change.
func TestQueueArgumentsNeverChange(t *testing.T) {
	t.Parallel()
	ch, prefix := raw(t), "t"+models.NewUserID()
	for name, args := range map[string]amqp.Table{
		"q.batch.bulk": {"x-delivery-limit": int32(20), "x-dead-letter-exchange": prefix + ".parking"},
		"parked":       {"x-delivery-limit": int32(1<<31 - 1)},
		"unrouted":     {"x-max-length": int32(100_000), "x-delivery-limit": int32(1<<31 - 1)},
		"delay.1m0s":   {"x-message-ttl": int64(60_000), "x-dead-letter-exchange": prefix + ".return"},
	} {
		args["x-queue-type"] = "quorum"
		_, err := ch.QueueDeclare(prefix+"."+name, true, false, false, false, args)
		require.NoError(t, err)
	}
	b, err := Open(t.Context(), Config{URL: testURL(t), Prefix: prefix})
	require.NoError(t, err)
	require.NoError(t, b.Ping(t.Context()))
	require.NoError(t, b.Remove(t.Context()))
	require.NoError(t, b.Close())
}
