package rabbit

import (
	"bytes"
	"context"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// A message is published again while an earlier try may still hang in the socket of a
// peer that does not read. The race detector must find nothing that the two share.
func TestRetryWhileWriteHangs(t *testing.T) {
	t.Parallel()
	b, p := openProxied(t)
	o := b.topology.parkedMessage(&amqp.Delivery{RoutingKey: "k", Body: bytes.Repeat([]byte("x"), 16<<20)},
		"too much for the buffers in between", time.Now())
	p.freeze()
	try := func(wait time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		defer cancel()
		return b.publisher.publish(ctx, []*outgoing{o})
	}
	for range 3 {
		require.ErrorIs(t, try(100*time.Millisecond), models.ErrUnavailable)
	}
	p.thaw() // the hanging writes finish now
	require.Eventually(t, func() bool { return try(20*time.Second) == nil }, time.Minute, time.Millisecond)
}
