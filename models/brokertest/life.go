package brokertest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

func many(t *testing.T, open Open) {
	b := open(t, "sg", "mg")
	const publishers, each = 50, 100
	var mu sync.Mutex
	got := map[string]int{}
	count := func(_ context.Context, m models.Message) models.Disposition {
		mu.Lock()
		defer mu.Unlock()
		got[m.Key()]++
		return models.Done()
	}
	for _, q := range models.Queues([]string{"sg", "mg"}) {
		subscribe(t, b, q, 8, count)
	}
	var wg sync.WaitGroup
	var failed atomic.Value
	for p := range publishers {
		wg.Go(func() {
			for i := range each / 10 {
				var ms []models.Message
				for k := range 10 {
					m := batch(models.Bulk)
					if (p+i+k)%3 == 0 {
						m.Kind, m.Provider, m.Lane = models.ProviderMessage, "mg", models.Urgent
					}
					ms = append(ms, m)
				}
				if err := b.Publish(context.Background(), ms...); err != nil {
					failed.Store(fmt.Sprint(err))
				}
			}
		})
	}
	wg.Wait()
	require.Nil(t, failed.Load())
	require.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(got) == publishers*each
	}, patience, 10*time.Millisecond)
}

func endedContext(t *testing.T, open Open) {
	b := open(t, "sg")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, b.Publish(ctx, batch(models.Bulk)), models.ErrUnavailable)
	require.NoError(t, b.Subscribe(ctx, bulk(), 1, func(context.Context, models.Message) models.Disposition {
		return models.Done()
	}))
	require.NoError(t, b.Ping(context.Background()))
}

func closeDuringUse(t *testing.T, open Open) {
	b := open(t, "sg")
	var wg sync.WaitGroup
	var box inbox
	for range 4 {
		wg.Go(func() {
			for b.Publish(context.Background(), batch(models.Bulk)) == nil { //nolint:revive // until it is closed
			}
		})
		wg.Go(func() { _ = b.Subscribe(context.Background(), bulk(), 2, box.handler) })
	}
	box.wait(t, 20)
	require.NoError(t, b.Close())
	wg.Wait()
}

func afterClose(t *testing.T, open Open) {
	b := open(t, "sg")
	require.NoError(t, b.Close())
	require.NoError(t, b.Close())
	ctx := context.Background()
	require.ErrorIs(t, b.Publish(ctx, batch(models.Bulk)), models.ErrClosed)
	require.ErrorIs(t, b.Subscribe(ctx, bulk(), 1, func(context.Context, models.Message) models.Disposition {
		return models.Done()
	}), models.ErrClosed)
	_, err := b.Depths(ctx)
	require.ErrorIs(t, err, models.ErrClosed)
	_, err = b.Parked(ctx, 1)
	require.ErrorIs(t, err, models.ErrClosed)
	require.ErrorIs(t, b.Ping(ctx), models.ErrClosed)
	require.ErrorIs(t, b.Purge(ctx), models.ErrClosed)
	require.ErrorIs(t, b.Wake(ctx, "u"), models.ErrClosed)
	require.ErrorIs(t, b.SubscribeWakes(ctx, func([]string) {}), models.ErrClosed)
}
