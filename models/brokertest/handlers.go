package brokertest

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

func panicRedelivered(t *testing.T, open Open) {
	b := open(t, "sg")
	var box inbox
	subscribe(t, b, bulk(), 1, func(_ context.Context, m models.Message) models.Disposition {
		if box.add(m) < 3 {
			panic("as the test wants")
		}
		return models.Done()
	})
	m := batch(models.Bulk)
	publish(t, b, m)
	same(t, m, box.wait(t, 3)[2])
}

func panicParks(t *testing.T, open Open) {
	b := open(t, "sg")
	var box inbox
	subscribe(t, b, bulk(), 1, func(_ context.Context, m models.Message) models.Disposition {
		box.add(m)
		panic("as the test wants")
	})
	m := batch(models.Bulk)
	publish(t, b, m)
	p := waitParked(t, b, 1)[0]
	same(t, m, p.Message)
	require.Contains(t, p.Why, "as the test wants")
	require.Len(t, box.list(), models.MaxDeliveries)
}

func concurrency(t *testing.T, open Open) {
	b := open(t, "sg")
	var running gauge
	var box inbox
	both := make(chan struct{})
	var once sync.Once
	for range 40 {
		publish(t, b, batch(models.Bulk))
	}
	subscribe(t, b, bulk(), 3, func(_ context.Context, m models.Message) models.Disposition {
		if running.add(1) == 3 {
			once.Do(func() { close(both) })
		}
		<-both // the first three wait for each other, so the bound is reached
		running.add(-1)
		return box.handler(context.Background(), m)
	})
	box.wait(t, 40)
	require.Equal(t, 3, running.highest())
}

func stopWaits(t *testing.T, open Open) {
	b := open(t, "sg")
	began, release := make(chan struct{}), make(chan struct{})
	var ended atomic.Bool
	var box inbox
	stop := subscribe(t, b, bulk(), 1, func(ctx context.Context, m models.Message) models.Disposition {
		close(began)
		<-ctx.Done()
		<-release
		ended.Store(true)
		return box.handler(ctx, m)
	})
	publish(t, b, batch(models.Bulk))
	<-began
	go close(release)
	stop()
	require.True(t, ended.Load(), "Subscribe returned while a handler ran")
	// The message was acknowledged, so it is not delivered again.
	var again inbox
	subscribe(t, b, bulk(), 1, again.handler)
	m := batch(models.Bulk)
	publish(t, b, m)
	require.Equal(t, m, again.wait(t, 1)[0])
	require.Len(t, again.list(), 1)
}

func prefetchedGoBack(t *testing.T, open Open) {
	b := open(t, "sg")
	began, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	var handled, box inbox
	stop := subscribe(t, b, bulk(), 1, func(ctx context.Context, m models.Message) models.Disposition {
		once.Do(func() { close(began) })
		<-release
		return handled.handler(ctx, m)
	})
	var ms []models.Message
	for range 20 {
		ms = append(ms, batch(models.Bulk))
	}
	publish(t, b, ms...)
	<-began
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		stop()
	}()
	close(release)
	<-stopped
	subscribe(t, b, bulk(), 4, box.handler)
	require.Eventually(t, func() bool {
		return len(handled.list())+len(box.list()) == len(ms)
	}, patience, 5*time.Millisecond)
	require.ElementsMatch(t, ms, append(handled.list(), box.list()...), "each handled once, by the first or by the others")
}

func share(t *testing.T, open Open) {
	b := open(t, "sg")
	var boxes [3]inbox
	const n = 300
	meet := make(chan struct{})
	var arrived atomic.Int64
	for i := range boxes {
		var first sync.Once
		subscribe(t, b, bulk(), 2, func(ctx context.Context, m models.Message) models.Disposition {
			first.Do(func() {
				if arrived.Add(1) == int64(len(boxes)) {
					close(meet)
				}
				<-meet
			})
			return boxes[i].handler(ctx, m)
		})
	}
	for range n {
		publish(t, b, batch(models.Bulk))
	}
	require.Eventually(t, func() bool {
		return len(boxes[0].list())+len(boxes[1].list())+len(boxes[2].list()) == n
	}, patience, 5*time.Millisecond)
	seen := map[models.ID]bool{}
	for i := range boxes {
		for _, m := range boxes[i].list() {
			require.False(t, seen[m.ID], "delivered twice")
			seen[m.ID] = true
		}
	}
}
