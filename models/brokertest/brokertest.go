// Package brokertest is the conformance suite of models.Broker. Every
// implementation runs all of it.
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

// Open returns a broker with empty queues for the given accounts, that the test
// may close and that is cleaned up after it.
type Open func(t *testing.T, accounts ...string) models.Broker

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
		{"DeadHandlerGetsItAgain", deadHandler},
		{"DeadlyMessageIsParked", deadly},
		{"ParkUnparkDiscard", parking},
		{"ConcurrencyIsABound", concurrency},
		{"StopWaitsForRunningHandlers", stopWaits},
		{"UnbegunMessagesStayForOthers", handOver},
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

func everyKey(t *testing.T, open Open) {
	accounts := []string{"sg", "mg", "sg-eu"}
	b := open(t, accounts...)
	boxes := map[string]*inbox{}
	for _, q := range models.Queues(accounts) {
		boxes[q.Name()] = &inbox{}
		subscribe(t, b, q, 2, boxes[q.Name()].handler)
	}
	want := map[string][]models.Message{}
	total := 0
	send := func(queue string, m models.Message) {
		want[queue] = append(want[queue], m)
		publish(t, b, m)
		total++
	}
	for _, lane := range []models.Lane{models.Urgent, models.Bulk} {
		id := models.NewBatchID(time.Now())
		send("batch."+string(lane), models.Message{Kind: models.BatchMessage, ID: id.Chunk(7), Lane: lane})
		send("batch."+string(lane), models.Message{Kind: models.BatchMessage, ID: id, Lane: lane, Retry: 2})
		for _, a := range accounts {
			send(a+"."+string(lane), models.Message{Kind: models.AccountMessage, Account: a, ID: id, Lane: lane})
			send(a+"."+string(lane), models.Message{Kind: models.AccountMessage, Account: a, ID: id, Lane: lane, Retry: 3})
			send("log."+a+"."+string(lane), models.Message{Kind: models.LogMessage, Account: a, ID: id.Log(9), Lane: lane, Retry: 1})
		}
	}
	for _, a := range accounts {
		send("event", models.Message{Kind: models.EventMessage, Account: a, ID: models.NewInboxID(time.Now())})
	}
	for queue, ms := range want {
		got := boxes[queue].wait(t, len(ms))
		require.ElementsMatch(t, ms, got, queue)
	}
	n := 0
	for _, box := range boxes {
		n += len(box.list())
	}
	require.Equal(t, total, n, "each message in one queue")
}

func order(t *testing.T, open Open) {
	b := open(t, "sg")
	var want []models.Message
	for range 200 {
		want = append(want, batch(models.Bulk))
	}
	publish(t, b, want...)
	var box inbox
	subscribe(t, b, bulk(), 1, box.handler)
	require.Equal(t, want, box.wait(t, len(want)))
}

func unroutable(t *testing.T, open Open) {
	b := open(t, "sg")
	m := models.Message{Kind: models.AccountMessage, Account: "nobody", ID: models.NewBatchID(time.Now()), Lane: models.Bulk}
	require.ErrorIs(t, b.Publish(context.Background(), m), models.ErrUnroutable)
	m.Kind, m.ID = models.LogMessage, m.ID.Log(1)
	require.ErrorIs(t, b.Publish(context.Background(), batch(models.Urgent), m), models.ErrUnroutable)
	publish(t, b, batch(models.Bulk)) // and it goes on working
}

func invalid(t *testing.T, open Open) {
	b := open(t, "sg")
	ctx := context.Background()
	good := batch(models.Bulk)
	for _, m := range []models.Message{
		{}, {Kind: "other", ID: good.ID, Lane: models.Bulk}, {Kind: models.BatchMessage, Lane: models.Bulk},
		{Kind: models.BatchMessage, ID: good.ID, Lane: "middle"}, {Kind: models.AccountMessage, ID: good.ID, Lane: models.Bulk},
		{Kind: models.AccountMessage, Account: "a.b", ID: good.ID, Lane: models.Bulk}, {Kind: models.BatchMessage, ID: good.ID, Lane: models.Bulk, Retry: -1},
	} {
		require.ErrorIs(t, b.Publish(ctx, m), models.ErrInvalid, "%+v", m)
	}
	h := func(context.Context, models.Message) models.Disposition { return models.Done() }
	require.ErrorIs(t, b.Subscribe(ctx, models.Queue{Kind: models.AccountMessage, Account: "nobody", Lane: models.Bulk}, 1, h), models.ErrInvalid)
	require.ErrorIs(t, b.Subscribe(ctx, bulk(), 0, h), models.ErrInvalid)
}

func lanes(t *testing.T, open Open) {
	b := open(t, "sg")
	hold := make(chan struct{})
	var box inbox
	subscribe(t, b, bulk(), 1, func(context.Context, models.Message) models.Disposition {
		<-hold
		return models.Done()
	})
	subscribe(t, b, models.Queue{Kind: models.BatchMessage, Lane: models.Urgent}, 1, box.handler)
	for range 50 {
		publish(t, b, batch(models.Bulk))
	}
	m := batch(models.Urgent)
	publish(t, b, m)
	require.Equal(t, m, box.wait(t, 1)[0], "urgent mail does not queue behind bulk")
	close(hold)
}

func notBefore(t *testing.T, open Open) {
	b := open(t, "sg")
	var box inbox
	subscribe(t, b, bulk(), 4, box.handler)
	var ms []models.Message
	for _, wait := range []time.Duration{300 * time.Millisecond, 700 * time.Millisecond, 1300 * time.Millisecond, -time.Second} {
		m := batch(models.Bulk)
		m.NotBefore = time.Now().Add(wait)
		ms = append(ms, m)
	}
	publish(t, b, ms...)
	got := box.wait(t, len(ms))
	for i, m := range got {
		box.mu.Lock()
		at := box.at[i]
		box.mu.Unlock()
		require.GreaterOrEqual(t, at.Sub(m.NotBefore), -55*time.Millisecond, "too early")
	}
	m := models.Message{Kind: models.AccountMessage, Account: "nobody", ID: models.NewBatchID(time.Now()), Lane: models.Bulk, NotBefore: time.Now().Add(time.Second)}
	require.ErrorIs(t, b.Publish(context.Background(), m), models.ErrUnroutable, "delayed or not")
}

// stamped: who takes a message learns when it came into its queue, however it
// came there.
func stamped(t *testing.T, open Open) {
	b := open(t, "sg")
	ctx := context.Background()
	began := time.Now().Round(0)
	first, delayed, told := batch(models.Bulk), batch(models.Bulk), batch(models.Bulk)
	delayed.NotBefore = began.Add(400 * time.Millisecond)
	told.At = began.Add(-time.Hour).UTC()
	ms := []models.Message{first, delayed, told}
	require.NoError(t, b.Publish(ctx, ms...))
	require.Equal(t, []models.Message{first, delayed, told}, ms, "the caller's messages stay as they are")
	published := time.Now().Round(0)

	var box inbox
	var later, park sync.Once
	subscribe(t, b, bulk(), 1, func(_ context.Context, m models.Message) models.Disposition {
		box.add(m)
		said := models.Done()
		switch m.ID {
		case first.ID:
			later.Do(func() { said = models.Later(300 * time.Millisecond) })
		case delayed.ID:
			park.Do(func() { said = models.Park("for a while") })
		}
		return said
	})
	parked := waitParked(t, b, 1)[0]
	unparked := time.Now().Round(0)
	require.NoError(t, b.Unpark(ctx, parked.ID))
	box.wait(t, 5)
	box.mu.Lock()
	defer box.mu.Unlock()
	seen := map[models.ID][]time.Time{}
	for i := range box.all {
		seen[box.all[i].ID] = append(seen[box.all[i].ID], box.in[i])
	}
	between := func(at, from, to time.Time) {
		t.Helper()
		require.False(t, at.Before(from) || at.After(to), "%v is not between %v and %v", at, from, to)
	}
	between(seen[first.ID][0], began, published)
	require.GreaterOrEqual(t, seen[first.ID][1].Sub(seen[first.ID][0]), 300*time.Millisecond, "it came anew")
	require.True(t, seen[delayed.ID][0].Equal(delayed.NotBefore), "it was not in its queue before")
	between(seen[delayed.ID][1], unparked, time.Now())
	require.True(t, seen[told.ID][0].Equal(told.At), "who publishes may know better")
}

func shortPassesLong(t *testing.T, open Open) {
	b := open(t, "sg")
	long, short := batch(models.Bulk), batch(models.Bulk)
	long.NotBefore = time.Now().Add(time.Hour)
	short.NotBefore = time.Now().Add(300 * time.Millisecond)
	publish(t, b, long, short)
	var box inbox
	subscribe(t, b, bulk(), 1, box.handler)
	same(t, short, box.wait(t, 1)[0])
}

func later(t *testing.T, open Open) {
	b := open(t, "sg")
	var box inbox
	subscribe(t, b, bulk(), 1, func(_ context.Context, m models.Message) models.Disposition {
		if box.add(m) < 3 {
			return models.Later(300 * time.Millisecond)
		}
		return models.Done()
	})
	m := batch(models.Bulk)
	m.Retry = 4
	publish(t, b, m)
	for _, got := range box.wait(t, 3) {
		require.Equal(t, m.Key(), got.Key(), "it keeps its key")
	}
	box.mu.Lock()
	defer box.mu.Unlock()
	require.GreaterOrEqual(t, box.at[1].Sub(box.at[0]), 240*time.Millisecond)
}

func laterNow(t *testing.T, open Open) {
	b := open(t, "sg")
	var box inbox
	subscribe(t, b, bulk(), 1, func(_ context.Context, m models.Message) models.Disposition {
		if box.add(m) == 1 {
			return models.Later(0)
		}
		return models.Done()
	})
	m := batch(models.Bulk)
	publish(t, b, m)
	same(t, m, box.wait(t, 2)[1])
}

func deadHandler(t *testing.T, open Open) {
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

func deadly(t *testing.T, open Open) {
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

func waitParked(t *testing.T, b models.Broker, n int) []models.Parked {
	t.Helper()
	var got []models.Parked
	require.Eventually(t, func() bool {
		var err error
		got, err = b.Parked(context.Background(), 100)
		return err == nil && len(got) == n
	}, patience, 50*time.Millisecond, "%d parked", n)
	return got
}

func parking(t *testing.T, open Open) {
	b := open(t, "sg")
	ctx := context.Background()
	var box inbox
	var parkIt atomic.Bool
	parkIt.Store(true)
	subscribe(t, b, bulk(), 1, func(_ context.Context, m models.Message) models.Disposition {
		if parkIt.Load() {
			return models.Park("cannot be read")
		}
		return box.handler(ctx, m)
	})
	m1, m2 := batch(models.Bulk), batch(models.Bulk)
	publish(t, b, m1, m2)
	for _, p := range waitParked(t, b, 2) {
		require.Equal(t, "cannot be read", p.Why)
		require.Equal(t, p.Message.Key(), p.Key)
		require.WithinDuration(t, time.Now(), p.At, time.Minute)
		require.Nil(t, p.Raw)
	}
	require.NoError(t, b.Purge(ctx), "which leaves the parking lot alone")
	waitParked(t, b, 2)
	one, err := b.Parked(ctx, 1)
	require.NoError(t, err)
	require.Len(t, one, 1)
	require.ErrorIs(t, b.Discard(ctx, "no such id"), models.ErrNotFound)
	require.ErrorIs(t, b.Unpark(ctx, "no such id"), models.ErrNotFound)
	parkIt.Store(false)
	for _, p := range waitParked(t, b, 2) {
		if p.Message.ID == m1.ID {
			require.NoError(t, b.Discard(ctx, p.ID))
		} else {
			require.NoError(t, b.Unpark(ctx, p.ID))
		}
	}
	same(t, m2, box.wait(t, 1)[0])
	waitParked(t, b, 0)
}

func concurrency(t *testing.T, open Open) {
	b := open(t, "sg")
	var now, most atomic.Int64
	var box inbox
	both := make(chan struct{})
	var once sync.Once
	for range 40 {
		publish(t, b, batch(models.Bulk))
	}
	subscribe(t, b, bulk(), 3, func(_ context.Context, m models.Message) models.Disposition {
		n := now.Add(1)
		for {
			old := most.Load()
			if n <= old || most.CompareAndSwap(old, n) {
				break
			}
		}
		if n == 3 {
			once.Do(func() { close(both) })
		}
		<-both // the first three meet: so it is reached
		now.Add(-1)
		return box.handler(context.Background(), m)
	})
	box.wait(t, 40)
	require.EqualValues(t, 3, most.Load())
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
	// It was acknowledged: nobody gets it again.
	var again inbox
	subscribe(t, b, bulk(), 1, again.handler)
	m := batch(models.Bulk)
	publish(t, b, m)
	require.Equal(t, m, again.wait(t, 1)[0])
	require.Len(t, again.list(), 1)
}

func handOver(t *testing.T, open Open) {
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
	require.Eventually(t, func() bool { return len(handled.list())+len(box.list()) == len(ms) }, patience, 5*time.Millisecond)
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

func depths(t *testing.T, open Open) {
	b := open(t, "sg")
	for range 5 {
		publish(t, b, batch(models.Bulk))
	}
	publish(t, b, models.Message{Kind: models.AccountMessage, Account: "sg", ID: models.NewBatchID(time.Now()), Lane: models.Urgent})
	require.Eventually(t, func() bool {
		ds, err := b.Depths(context.Background())
		if err != nil || len(ds) != len(models.Queues([]string{"sg"})) {
			return false
		}
		for _, d := range ds {
			want := map[string]int{"batch.bulk": 5, "sg.urgent": 1}[d.Queue.Name()]
			if d.Ready != want {
				return false
			}
		}
		return true
	}, patience, 20*time.Millisecond)
}

func purge(t *testing.T, open Open) {
	b := open(t, "sg")
	ctx := context.Background()
	for range 10 {
		m := batch(models.Bulk)
		publish(t, b, m, batch(models.Urgent))
		m.NotBefore = time.Now().Add(time.Second)
		publish(t, b, m)
	}
	require.NoError(t, b.Purge(ctx))
	var box inbox
	subscribe(t, b, bulk(), 1, box.handler)
	m := batch(models.Bulk)
	m.NotBefore = time.Now().Add(1500 * time.Millisecond) // after all that was purged
	publish(t, b, m)
	same(t, m, box.wait(t, 1)[0])
	require.Len(t, box.list(), 1)
}

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
						m.Kind, m.Account, m.Lane = models.AccountMessage, "mg", models.Urgent
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
	require.NoError(t, b.Subscribe(ctx, bulk(), 1, func(context.Context, models.Message) models.Disposition { return models.Done() }))
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
	require.ErrorIs(t, b.Subscribe(ctx, bulk(), 1, func(context.Context, models.Message) models.Disposition { return models.Done() }), models.ErrClosed)
	_, err := b.Depths(ctx)
	require.ErrorIs(t, err, models.ErrClosed)
	_, err = b.Parked(ctx, 1)
	require.ErrorIs(t, err, models.ErrClosed)
	require.ErrorIs(t, b.Ping(ctx), models.ErrClosed)
	require.ErrorIs(t, b.Purge(ctx), models.ErrClosed)
}
