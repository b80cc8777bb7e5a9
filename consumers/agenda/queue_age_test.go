package agenda

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store/memory"
)

// TestQueueAges: the age of a queue grows until it is emptied, even if the worker that has
// seen it move is gone. An empty queue has no age.
func TestQueueAges(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	store, broker := memory.Open(t), inproctest.New(t, "sg")
	queue := models.Queue{Kind: models.ProviderMessage, Provider: "sg", Lane: models.Bulk}
	message := func(ago time.Duration) models.Message {
		return models.Message{
			Kind:     models.ProviderMessage,
			Provider: "sg",
			Lane:     models.Bulk,
			ID:       models.NewBatchID(time.Now()),
			At:       time.Now().Add(-ago).UTC(),
		}
	}
	depth := func() *models.Depth {
		ds, err := broker.Depths(ctx)
		require.NoError(t, err)
		for i := range ds {
			if ds[i].Queue == queue {
				return &ds[i]
			}
		}
		t.Fatal("no such queue")
		return nil
	}
	first, second := NewQueueAges(store, broker, "first"), NewQueueAges(store, broker, "second")

	require.NoError(t, broker.Publish(ctx, message(2*time.Hour), message(time.Hour), message(30*time.Minute)))
	require.NoError(t, first.poll(ctx, slog.New(slog.DiscardHandler)))
	_, known := first.Oldest(depth(), time.Now())
	require.False(t, known, "no worker has seen this queue move or empty")

	take := func(n int) {
		within, cancel := context.WithCancel(ctx)
		defer cancel()
		taken := 0
		require.NoError(
			t,
			broker.Subscribe(within, queue, 1, first.Watch(queue, func(context.Context, models.Message) models.Disposition {
				if taken++; taken == n {
					cancel()
				}
				return models.Done()
			})),
		)
	}
	take(1)
	require.NoError(t, first.poll(ctx, slog.New(slog.DiscardHandler)))
	require.NoError(t, second.poll(ctx, slog.New(slog.DiscardHandler)))
	for _, a := range []*QueueAges{first, second} { // second knows it from first
		now := time.Now()
		age, known := a.Oldest(depth(), now)
		require.True(t, known)
		require.InDelta(t, 2*time.Hour, age, float64(time.Minute), "the messages that wait came after the one that was taken")
		later, _ := a.Oldest(depth(), now.Add(time.Hour))
		require.Equal(t, age+time.Hour, later, "the queue does not move")
	}
	take(1)
	age, _ := first.Oldest(depth(), time.Now())
	require.InDelta(t, time.Hour, age, float64(time.Minute))
	take(1)
	age, known = first.Oldest(depth(), time.Now())
	require.True(t, known)
	require.Zero(t, age, "the queue is empty")

	emptied := time.Now()
	require.NoError(t, second.poll(ctx, slog.New(slog.DiscardHandler)))
	require.NoError(t, broker.Publish(ctx, message(-time.Hour))) // by a fast clock
	require.NoError(t, first.poll(ctx, slog.New(slog.DiscardHandler)))
	age, known = first.Oldest(depth(), time.Now())
	require.True(t, known)
	require.LessOrEqual(t, age, time.Since(emptied), "the other worker has seen it empty")
	take(1)
	require.NoError(t, broker.Publish(ctx, message(0)))
	age, _ = first.Oldest(depth(), time.Now().Add(time.Minute))
	require.GreaterOrEqual(t, age, time.Minute, "the time of a fast clock does not count")
}
