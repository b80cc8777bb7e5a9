package events

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
)

// slowInbox counts how often each entry is read, and blocks the first reader.
type slowInbox struct {
	memoryInbox
	first, free chan struct{}
	once        sync.Once

	mu   sync.Mutex
	read map[models.ID]int
}

func (s *slowInbox) Inbox(ctx context.Context, ids ...models.ID) ([]models.Inbox, error) {
	s.once.Do(func() {
		close(s.first)
		<-s.free
	})
	s.mu.Lock()
	for _, id := range ids {
		s.read[id]++
	}
	s.mu.Unlock()
	return s.memoryInbox.Inbox(ctx, ids...)
}

// message announces a post.
func message(id models.ID) models.Message {
	return models.Message{Kind: models.EventMessage, Provider: "sg", ID: id}
}

// TestPostIsProcessedOnce: a post that is announced again, while it is processed or later,
// is processed once. A post that is gone delays no other.
func TestPostIsProcessedOnce(t *testing.T) {
	t.Parallel()
	slow := &slowInbox{first: make(chan struct{}), free: make(chan struct{}), read: map[models.ID]int{}}
	q := New(testConfig(), Deps{Store: slow, Providers: newProviders(t, jsonAdapter{})})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { q.Run(ctx) })
	a, b, gone := slow.put([]byte("[]")), slow.put([]byte("[]")), models.NewInboxID(time.Now())
	handle := func(id models.ID) models.Disposition { return q.Handle(ctx, message(id)) }
	first := make(chan models.Disposition, 1)
	go func() { first <- handle(a) }()
	<-slow.first
	require.Equal(t, models.Done(), handle(a), "it does not wait for the first")
	close(slow.free)
	require.Equal(t, models.Done(), <-first)
	for _, id := range []models.ID{a, gone, b, a, b, gone} {
		require.Equal(t, models.Done(), handle(id))
	}
	require.Equal(t, map[models.ID]int{a: 1, b: 1, gone: 2}, slow.read)
	require.Empty(t, q.inflight)
	cancel()
	running.Wait()
}

// slowAndEmpty is an empty inbox that takes 100 ms to read.
type slowAndEmpty struct{ Store }

func (slowAndEmpty) Inbox(context.Context, ...models.ID) ([]models.Inbox, error) {
	time.Sleep(100 * time.Millisecond)
	return nil, nil
}

// TestEventsYieldToUrgentMail: while urgent mail is sent, a group of events that took
// 100 ms is followed by a pause of three times as long, unless the events are a minute
// late.
func TestEventsYieldToUrgentMail(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		sched := priority.New()
		q := New(Config{Priority: sched}, Deps{Store: slowAndEmpty{}})
		var running sync.WaitGroup
		running.Go(func() { q.Run(ctx) })
		group := func(received time.Time) time.Duration {
			began := time.Now()
			require.Equal(t, models.Done(), q.Handle(ctx, message(models.NewInboxID(received))))
			return time.Since(began)
		}
		const work = linger + 100*time.Millisecond
		require.Equal(t, work, group(time.Now()))
		require.Equal(t, work, group(time.Now()), "no urgent mail is sent")
		sched.NoteUrgent()
		require.Equal(t, work, group(time.Now().Add(-lateAge)))
		require.Equal(t, work, group(time.Now()), "the last group was late")
		require.Equal(t, 300*time.Millisecond+work, group(time.Now()))
		cancel()
		running.Wait()
	})
}
