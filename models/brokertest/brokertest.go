// Package brokertest is the conformance suite of models.Broker. Every
// implementation runs all of it.
package brokertest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// Open returns a broker with empty queues for the given providers, that the test
// may close and that is cleaned up after it.
type Open func(t *testing.T, providers ...string) models.Broker

// patience is how long a state is waited for. It bounds a failure, not a test.
const patience = 60 * time.Second

// Run runs the suite.
func Run(t *testing.T, open Open) {
	t.Helper()
	for _, c := range []struct {
		name string
		run  func(*testing.T, Open)
	}{
		{"EveryKeyReachesItsQueueAndNoOther", everyKey},
		{"OrderWithinAQueue", order},
		{"UnroutableIsAnError", unroutable},
		{"InvalidIsAnError", invalid},
		{"LaneOfItsOwn", lanes},
		{"NotBefore", notBefore},
		{"TimeInTheQueueIsTold", stamped},
		{"ShortDelayPassesLongDelay", shortPassesLong},
		{"Later", later},
		{"LaterNowComesBackAtOnce", laterNow},
		{"LaterOften", laterOften},
		{"StopsOften", stopsOften},
		{"LostConnectionsOften", lossesOften},
		{"DeadHandlerGetsItAgain", deadHandler},
		{"DeadlyMessageIsParked", deadly},
		{"ParkUnparkDiscard", parking},
		{"ParkingLotOfTwo", parkingOfTwo},
		{"FailedUnparkChangesNothing", failedUnpark},
		{"LongReasons", longReasons},
		{"ConcurrencyIsABound", concurrency},
		{"StopWaitsForRunningHandlers", stopWaits},
		{"UnbegunMessagesStayForOthers", handOver},
		{"HandlerHangsOverALostConnection", hangsOverLoss},
		{"SubscribersShare", share},
		{"Depths", depths},
		{"Purge", purge},
		{"ManyPublishersManyConsumers", many},
		{"EndedContext", endedContext},
		{"CloseDuringUse", closeDuringUse},
		{"AfterClose", afterClose},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(t, open)
		})
	}
}

// inbox collects what handlers get.
type inbox struct {
	mu  sync.Mutex
	all []models.Message
	at  []time.Time
	in  []time.Time // what they say of when they came into their queue
}

func (i *inbox) add(m models.Message) int {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.in = append(i.in, m.At)
	m.At = time.Time{}
	i.all = append(i.all, m)
	i.at = append(i.at, time.Now())
	return len(i.all)
}

func (i *inbox) handler(_ context.Context, m models.Message) models.Disposition {
	i.add(m)
	return models.Done()
}

func (i *inbox) list() []models.Message {
	i.mu.Lock()
	defer i.mu.Unlock()
	return append([]models.Message(nil), i.all...)
}

func (i *inbox) wait(t *testing.T, n int) []models.Message {
	t.Helper()
	require.Eventually(t, func() bool { return len(i.list()) >= n }, patience, 5*time.Millisecond, "%d messages", n)
	return i.list()
}

// gauge counts what is under way, and remembers the most.
type gauge struct {
	mu        sync.Mutex
	now, most int
}

func (g *gauge) add(n int) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now += n
	g.most = max(g.most, g.now)
	return g.now
}

func (g *gauge) highest() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.most
}

// subscribe runs a subscription until the test ends or stop is called, which
// waits for its end.
func subscribe(t *testing.T, b models.Broker, q models.Queue, n int, h models.Handler) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- b.Subscribe(ctx, q, n, h) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			select {
			case err := <-over:
				if err != nil {
					t.Errorf("Subscribe: %v", err)
				}
			case <-time.After(patience):
				t.Error("Subscribe did not end")
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

func batch(lane models.Lane) models.Message {
	return models.Message{Kind: models.BatchMessage, ID: models.NewBatchID(time.Now()), Lane: lane}
}

func bulk() models.Queue { return models.Queue{Kind: models.BatchMessage, Lane: models.Bulk} }

func publish(t *testing.T, b models.Broker, ms ...models.Message) {
	t.Helper()
	require.NoError(t, b.Publish(context.Background(), ms...))
}

// same compares messages as what they mean: times may lose their zone.
func same(t *testing.T, want, got models.Message) {
	t.Helper()
	require.True(t, want.NotBefore.Equal(got.NotBefore) || want.NotBefore.IsZero())
	want.NotBefore, got.NotBefore = time.Time{}, time.Time{}
	want.At, got.At = time.Time{}, time.Time{}
	require.Equal(t, want, got)
}
