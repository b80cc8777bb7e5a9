// Package brokertest is the conformance suite of models.Broker. Every implementation
// runs all of it.
package brokertest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// Open returns a broker with empty queues for the given providers. The test may close
// it. It is cleaned up after the test.
type Open func(t *testing.T, providers ...string) models.Broker

// patience bounds the wait for a state. Only a failing test waits that long.
const patience = 5 * time.Minute

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
		{"UrgentPassesBulk", lanes},
		{"NotBefore", notBefore},
		{"EnqueueTime", enqueueTime},
		{"ShortDelayPassesLongDelay", shortPassesLong},
		{"Later", later},
		{"LaterNowComesBackAtOnce", laterNow},
		{"ManyLatersDoNotPark", manyLaters},
		{"ManyStopsDoNotPark", manyStops},
		{"ManyLostConnectionsDoNotPark", manyLosses},
		{"PanicIsRedelivered", panicRedelivered},
		{"ParkedAfterManyPanics", panicParks},
		{"ParkUnparkDiscard", parking},
		{"ParkingLotOfTwoProcesses", parkingOfTwo},
		{"FailedUnparkChangesNothing", failedUnpark},
		{"LongReasons", longReasons},
		{"ConcurrencyIsBounded", concurrency},
		{"StopWaitsForRunningHandlers", stopWaits},
		{"PrefetchedMessagesGoBack", prefetchedGoBack},
		{"HandlerOutlivesConnection", handlerOutlivesConnection},
		{"SubscribersShare", share},
		{"Depths", depths},
		{"Purge", purge},
		{"WakesReachAllProcesses", wakes},
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

// inbox collects the messages that handlers get.
type inbox struct {
	mu  sync.Mutex
	all []models.Message
	at  []time.Time // when handlers got them
	in  []time.Time // their At: when they were enqueued
}

// add records a message and returns the number of messages so far.
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

// wait waits until there are n messages and returns all.
func (i *inbox) wait(t *testing.T, n int) []models.Message {
	t.Helper()
	require.Eventually(t, func() bool { return len(i.list()) >= n }, patience, 5*time.Millisecond, "%d messages", n)
	return i.list()
}

// gauge counts running handlers and keeps the maximum.
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

// subscribe runs a subscription until the test ends or stop is called. stop waits for
// the end of the subscription.
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

// same compares two messages but for the zone of their times and their At.
func same(t *testing.T, want, got models.Message) {
	t.Helper()
	require.True(t, want.NotBefore.Equal(got.NotBefore) || want.NotBefore.IsZero())
	want.NotBefore, got.NotBefore = time.Time{}, time.Time{}
	want.At, got.At = time.Time{}, time.Time{}
	require.Equal(t, want, got)
}
