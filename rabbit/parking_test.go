package rabbit

import (
	"context"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// TestLookerDies: while another looks into the parking lot nobody is told that it is
// empty; when that one is gone, however it went, all is there.
func TestLookerDies(t *testing.T) {
	t.Parallel()
	b, other := openTest(t), raw(t)
	require.NoError(t, b.publisher.publish(t.Context(), []*outgoing{b.topology.parkedMessage(&amqp.Delivery{RoutingKey: "k"}, "why", time.Now())}))
	parkedOnes(t, b, 1)
	holder := &Broker{topology: b.topology}
	require.NoError(t, holder.lock(other))
	_, ok, err := other.Get(b.topology.parked(), false)
	require.NoError(t, err)
	require.True(t, ok)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = b.Parked(ctx, 1)
	require.ErrorIs(t, err, models.ErrUnavailable)
	require.ErrorIs(t, b.Discard(ctx, "id"), models.ErrUnavailable, "not that there is none")
	require.NoError(t, other.Close())
	parkedOnes(t, b, 1)
}
