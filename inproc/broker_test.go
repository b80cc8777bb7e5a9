package inproc

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/brokertest"
)

func TestBroker(t *testing.T) {
	t.Parallel()
	brokertest.Run(t, func(t *testing.T, providers ...string) models.Broker {
		b, err := New(providers, nil)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Close()) })
		return b
	})
}

// Only the newest parked messages may stay in memory.
func TestParkedMessagesAreBounded(t *testing.T) {
	t.Parallel()
	b, err := New(nil, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Close()) }()
	const more = 5
	m := models.Message{Kind: models.BatchMessage, ID: models.NewBatchID(time.Now()), Lane: models.Bulk}
	for range maxParked + more {
		b.park(m, "cannot be read")
	}
	all, err := b.Parked(t.Context(), 2*maxParked)
	require.NoError(t, err)
	require.Len(t, all, maxParked)
	for i, p := range all {
		require.Equal(t, strconv.Itoa(more+1+i), p.ID)
	}
	require.ErrorIs(t, b.Discard(t.Context(), strconv.Itoa(more)), models.ErrNotFound)
	require.NoError(t, b.Discard(t.Context(), strconv.Itoa(more+1)))
}

// TestStandbyIsBounded: a standby refuses what is more than its handlers can do in a minute or two, waiting or delayed.
func TestStandbyIsBounded(t *testing.T) {
	t.Parallel()
	b, err := NewStandby([]string{"sg"}, nil, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Close()) }()
	m := models.Message{Kind: models.BatchMessage, ID: models.NewBatchID(time.Now()), Lane: models.Bulk}
	late := m
	late.NotBefore = time.Now().Add(time.Hour)
	for range maxStandby {
		require.NoError(t, b.Publish(t.Context(), late))
	}
	require.ErrorIs(t, b.Publish(t.Context(), late), models.ErrUnavailable)
	for range maxStandby {
		require.NoError(t, b.Publish(t.Context(), m))
	}
	require.ErrorIs(t, b.Publish(t.Context(), m), models.ErrUnavailable)
	m.Lane = models.Urgent
	require.NoError(t, b.Publish(t.Context(), m), "lanes do not fill each other")
}

// TestHand: a message is handed only to a handler that has nothing to do. None takes it before there are handlers,
// while all are busy, and after they have begun to stop.
func TestHand(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, err := NewStandby([]string{"sg"}, nil, nil)
		require.NoError(t, err)
		defer func() { require.NoError(t, b.Close()) }()
		batch := models.NewBatchID(time.Now())
		next := 0
		hand := func() bool {
			next++
			return b.Hand(models.Message{Kind: models.BatchMessage, ID: batch.Chunk(next), Lane: models.Urgent})
		}
		require.False(t, hand(), "there is no handler")

		busy := make(chan struct{})
		var handled atomic.Int64
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			ended <- b.Subscribe(ctx, models.Queue{Kind: models.BatchMessage, Lane: models.Urgent}, 2,
				func(context.Context, models.Message) models.Disposition {
					<-busy
					handled.Add(1)
					return models.Done()
				})
		}()
		synctest.Wait()
		require.Equal(t, []bool{true, true, false}, []bool{hand(), hand(), hand()}, "two handlers")
		synctest.Wait()
		require.False(t, hand(), "both are busy")
		busy <- struct{}{}
		synctest.Wait()
		require.Equal(t, []bool{true, false}, []bool{hand(), hand()})
		synctest.Wait()
		stop()
		close(busy)
		synctest.Wait()
		require.False(t, hand(), "they have stopped")
		require.NoError(t, <-ended)
		require.EqualValues(t, 3, handled.Load())
	})
}

// refusing is a broker that takes messages or none.
type refusing struct {
	*Broker
	refuses bool
}

func (r *refusing) Publish(ctx context.Context, ms ...models.Message) error {
	if r.refuses {
		return models.ErrUnavailable
	}
	return r.Broker.Publish(ctx, ms...)
}

// TestStandbyPassesOn: the broker behind a standby gets what handlers of the standby park, and what they panic at. The
// standby keeps it while that broker takes none.
func TestStandbyPassesOn(t *testing.T) {
	t.Parallel()
	for name, handle := range map[string]func() models.Disposition{
		"parks":  func() models.Disposition { return models.Park("it is broken") },
		"panics": func() models.Disposition { panic("broken") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				broker, err := New([]string{"sg"}, nil)
				require.NoError(t, err)
				behind := &refusing{Broker: broker, refuses: true}
				standby, err := NewStandby([]string{"sg"}, behind, nil)
				require.NoError(t, err)
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan error)
				q := models.Queue{Kind: models.BatchMessage, Lane: models.Urgent}
				go func() {
					ended <- standby.Subscribe(ctx, q, 1, func(context.Context, models.Message) models.Disposition {
						return handle()
					})
				}()
				synctest.Wait()
				m := models.Message{Kind: models.BatchMessage, ID: models.NewBatchID(time.Now()), Lane: models.Urgent}
				require.True(t, standby.Hand(m))
				time.Sleep(time.Minute)
				parked, err := standby.Parked(ctx, 10)
				require.NoError(t, err)
				require.Len(t, parked, 1)

				behind.refuses = false
				require.True(t, standby.Hand(m))
				synctest.Wait()
				depths, err := broker.Depths(ctx)
				require.NoError(t, err)
				waiting := 0
				for _, d := range depths {
					waiting += d.Ready
				}
				require.Equal(t, 1, waiting)
				stop()
				require.NoError(t, <-ended)
				require.False(t, standby.Hand(m))
				require.NoError(t, standby.Close())
				require.NoError(t, broker.Close())
			})
		})
	}
}

// TestStandbyStops: when the handlers of a standby stop, the broker behind it gets what they put off, and what waits.
func TestStandbyStops(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		broker, err := New([]string{"sg"}, nil)
		require.NoError(t, err)
		standby, err := NewStandby([]string{"sg"}, broker, nil)
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		q := models.Queue{Kind: models.BatchMessage, Lane: models.Urgent}
		go func() {
			ended <- standby.Subscribe(ctx, q, 1, func(ctx context.Context, _ models.Message) models.Disposition {
				<-ctx.Done()
				return models.Later(time.Hour)
			})
		}()
		batch := models.NewBatchID(time.Now())
		for n := range 3 {
			m := models.Message{Kind: models.BatchMessage, ID: batch.Chunk(n), Lane: models.Urgent}
			require.NoError(t, standby.Publish(ctx, m))
		}
		synctest.Wait()
		stop()
		require.NoError(t, <-ended)
		waiting := func() int {
			ready, _ := broker.byName[q.Name()].depth()
			return ready
		}
		require.Equal(t, 2, waiting())
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Equal(t, 3, waiting())
		require.NoError(t, standby.Close())
		require.NoError(t, broker.Close())
	})
}
