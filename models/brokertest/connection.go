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

// Remote is a broker that is reached over a network. Other brokers have no connection
// to lose, and no other process uses them.
type Remote interface {
	models.Broker
	Lose()                           // breaks all connections
	Peer(t *testing.T) models.Broker // opens the broker of another process
}

// lose breaks the connections of a remote broker.
func lose(b models.Broker) {
	if r, ok := b.(Remote); ok {
		r.Lose()
	}
}

// peer returns the broker of another process, or b itself if there is none.
func peer(t *testing.T, b models.Broker) models.Broker {
	t.Helper()
	if r, ok := b.(Remote); ok {
		return r.Peer(t)
	}
	return b
}

// publishAnyway repeats Publish until it succeeds, because the connection may be gone.
func publishAnyway(t *testing.T, b models.Broker, ms ...models.Message) {
	t.Helper()
	require.Eventually(t, func() bool {
		return b.Publish(context.Background(), ms...) == nil
	}, patience, 5*time.Millisecond)
}

// handlerOutlivesConnection loses the connection while a handler hangs. The handler must
// keep only its own slot, and give it back when it ends.
func handlerOutlivesConnection(t *testing.T, open Open) {
	b := open(t, "sg")
	hung, release := make(chan struct{}), make(chan struct{})
	var first, met, meet atomic.Int64
	both := make(chan struct{})
	var running gauge
	var box inbox
	subscribe(t, b, bulk(), 2, func(ctx context.Context, m models.Message) models.Disposition {
		running.add(1)
		defer running.add(-1)
		if first.Add(1) == 1 {
			close(hung)
			<-release
		}
		if meet.Load() > 0 {
			if met.Add(1) == 2 {
				close(both)
			}
			<-both
		}
		return box.handler(ctx, m)
	})
	released := sync.OnceFunc(func() { close(release) })
	t.Cleanup(released)
	publish(t, b, batch(models.Bulk))
	<-hung
	for range 2 {
		lose(b)
		for range 5 {
			m := batch(models.Bulk)
			publishAnyway(t, b, m)
			require.Eventually(t, func() bool {
				return has(box.list(), m.ID)
			}, patience, 5*time.Millisecond, "while the first hangs")
		}
	}
	released()
	meet.Store(1)
	publishAnyway(t, b, batch(models.Bulk), batch(models.Bulk))
	select {
	case <-both:
	case <-time.After(patience):
		t.Fatal("the slot did not come back")
	}
	require.LessOrEqual(t, running.highest(), 2)
}

func has(ms []models.Message, id models.ID) bool {
	for i := range ms {
		if ms[i].ID == id {
			return true
		}
	}
	return false
}
