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

// Remote is a broker that is reached over a network. One that is none has no
// connection to lose, and no other process uses it.
type Remote interface {
	models.Broker
	Lose()                           // breaks every connection that there is
	Peer(t *testing.T) models.Broker // opens what another process would
}

func lose(b models.Broker) {
	if r, ok := b.(Remote); ok {
		r.Lose()
	}
}

func peer(t *testing.T, b models.Broker) models.Broker {
	t.Helper()
	if r, ok := b.(Remote); ok {
		return r.Peer(t)
	}
	return b
}

// publishAnyway publishes until it succeeds: a connection may be gone.
func publishAnyway(t *testing.T, b models.Broker, ms ...models.Message) {
	t.Helper()
	require.Eventually(t, func() bool { return b.Publish(context.Background(), ms...) == nil }, patience, 5*time.Millisecond)
}

// hangsOverLoss: a handler that hangs while the connection is lost keeps its own
// slot and no other, and gives it back when it ends.
func hangsOverLoss(t *testing.T, open Open) {
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
			require.Eventually(t, func() bool { return has(box.list(), m.ID) }, patience, 5*time.Millisecond, "while the first hangs")
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
