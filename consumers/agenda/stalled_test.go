package agenda

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/dispatch"
	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/store/memory"
)

// deaf is a broker whose first subscription to each queue delivers nothing, although it stays.
type deaf struct {
	models.Broker
	subscribed atomic.Int32
	unread     atomic.Bool // whether its queues cannot be read
}

func (b *deaf) Depths(ctx context.Context) ([]models.Depth, error) {
	if b.unread.Load() {
		return nil, fmt.Errorf("%w: queue 'sd.batch.urgent' has no leader", models.ErrUnavailable)
	}
	return b.Broker.Depths(ctx)
}

func (b *deaf) Subscribe(ctx context.Context, q models.Queue, n int, h models.Handler) error {
	if b.subscribed.Add(1) == 1 {
		<-ctx.Done()
		return nil
	}
	return b.Broker.Subscribe(ctx, q, n, h)
}

// TestStalledQueueIsSubscribedAnew: a queue whose messages reach no handler although one is free is subscribed anew
// within a minute, and reported. That does not happen while its handlers are busy, and while it is empty.
func TestStalledQueueIsSubscribedAnew(t *testing.T) {
	t.Parallel()
	queue := models.Queue{Kind: models.BatchMessage, Lane: models.Urgent}
	message := func() models.Message {
		return models.Message{Kind: models.BatchMessage, Lane: models.Urgent, ID: models.NewBatchID(time.Now())}
	}
	// start subscribes through a broker that is deaf or not, and returns what it has reported about the queue.
	start := func(t *testing.T, b *deaf, h models.Handler) (reported func() telemetry.StalledQueue) {
		store := memory.Open(t)
		ages := NewQueueAges(store, b, "w")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 2)
		go func() { ended <- ages.Subscribe(ctx, queue, 1, h) }()
		go func() { ages.Run(ctx, 5*time.Second, slog.New(slog.DiscardHandler)); ended <- nil }()
		t.Cleanup(func() {
			cancel()
			require.NoError(t, <-ended)
			require.NoError(t, <-ended)
		})
		return func() (s telemetry.StalledQueue) {
			all, err := store.Transients(t.Context(), telemetry.StalledQueueReport)
			require.NoError(t, err)
			for _, raw := range all {
				require.NoError(t, json.Unmarshal(raw, &s))
			}
			return s
		}
	}
	t.Run("deaf", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			handled := make(chan struct{}, 2)
			b := &deaf{Broker: inproctest.New(t, "sg")}
			reported := start(t, b, func(context.Context, models.Message) models.Disposition {
				handled <- struct{}{}
				return models.Done()
			})
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			require.EqualValues(t, 1, b.subscribed.Load(), "an empty queue is not subscribed anew")
			began := time.Now()
			require.NoError(t, b.Publish(t.Context(), message(), message()))
			for range 2 {
				select {
				case <-handled:
				case <-time.After(2 * time.Minute):
					require.Fail(t, "a message reached no handler")
				}
			}
			require.LessOrEqual(t, time.Since(began), time.Minute)
			synctest.Wait()
			require.EqualValues(t, 2, b.subscribed.Load())
			require.Equal(t, 2, reported().Waiting)
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			require.EqualValues(t, 2, b.subscribed.Load())
		})
	})
	t.Run("busy", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			b := &deaf{Broker: inproctest.New(t, "sg")}
			b.subscribed.Add(1)
			reported := start(t, b, func(ctx context.Context, _ models.Message) models.Disposition {
				models.Pause(ctx, 10*time.Minute) // as if it waited for a slot
				return models.Done()
			})
			require.NoError(t, b.Publish(t.Context(), message(), message(), message()))
			time.Sleep(25 * time.Minute)
			synctest.Wait()
			require.EqualValues(t, 2, b.subscribed.Load())
			require.Zero(t, reported())
		})
	})
}

// TestBrokerWithoutLeaderIsReported: a worker reports since when it cannot read the queues, and that it can again. A
// look that its end interrupts says nothing about the broker.
func TestBrokerWithoutLeaderIsReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &deaf{Broker: inproctest.New(t, "sg")}
		store := memory.Open(t)
		ages := NewQueueAges(store, b, "w")
		reported := func() telemetry.BrokerState {
			all, err := telemetry.Reports[telemetry.BrokerState](t.Context(), store, telemetry.BrokerReport)
			require.NoError(t, err)
			return all["w"]
		}
		log := slog.New(slog.DiscardHandler)
		require.NoError(t, ages.poll(t.Context(), log))
		require.Zero(t, reported())
		b.unread.Store(true)
		began := time.Now()
		for range 3 {
			require.Error(t, ages.poll(t.Context(), log))
			time.Sleep(40 * time.Second)
		}
		require.True(t, began.Equal(reported().Since))
		require.Contains(t, reported().Why, "sd.batch.urgent")
		b.unread.Store(false)
		require.NoError(t, ages.poll(t.Context(), log))
		require.Zero(t, reported())

		b.unread.Store(true)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		require.Error(t, ages.poll(ended, log))
		require.Zero(t, reported())
	})
}

// TestBrokerThatTakesNothingIsReported: without a majority of its nodes, RabbitMQ describes its queues and confirms no
// message. A worker reports that since its first failure, until a message is taken or a minute has passed without one.
// It does not report queues that deliver nothing meanwhile.
func TestBrokerThatTakesNothingIsReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memory.Open(t)
		ages := NewQueueAges(store, &deaf{Broker: inproctest.New(t, "sg")}, "w")
		outage := &dispatch.Outage{}
		ages.outage = outage
		since := func(kind string) (out time.Time) {
			require.NoError(t, ages.poll(t.Context(), slog.New(slog.DiscardHandler)))
			all, err := telemetry.Reports[telemetry.BrokerState](t.Context(), store, kind)
			require.NoError(t, err)
			for _, s := range all {
				out = s.Since
			}
			return out
		}
		fail := func() time.Time {
			require.True(t, outage.Begin(time.Now()))
			outage.End(time.Now(), fmt.Errorf("%w: it confirmed nothing", models.ErrUnavailable))
			return time.Now()
		}
		require.Zero(t, since(telemetry.BrokerReport))
		began := fail()
		for range 3 {
			time.Sleep(40 * time.Second)
			fail()
			require.True(t, began.Equal(since(telemetry.BrokerReport)))
		}
		require.Zero(t, since(telemetry.StalledQueueReport))
		require.True(t, outage.Begin(time.Now().Add(time.Second)))
		outage.End(time.Now(), nil)
		require.Zero(t, since(telemetry.BrokerReport))

		began = fail()
		require.True(t, began.Equal(since(telemetry.BrokerReport)))
		time.Sleep(61 * time.Second)
		require.Zero(t, since(telemetry.BrokerReport), "nothing was published after that, so that it is not known")
	})
}
