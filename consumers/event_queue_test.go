package consumers

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/events"
	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
)

// slowInbox counts how often each post is read, and holds the first reader.
type slowInbox struct {
	models.Store
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
	return s.Store.Inbox(ctx, ids...)
}

// TestPostsAnnouncedTwiceOrGone: a post that is announced again, while it is
// worked off or later, is worked off once; one that is gone stops nobody.
func TestPostsAnnouncedTwiceOrGone(t *testing.T) {
	t.Parallel()
	slow := &slowInbox{first: make(chan struct{}), free: make(chan struct{}), read: map[models.ID]int{}}
	cfg := fast()
	cfg.InboxAge = time.Hour // nobody else announces them
	r := newRig(
		t,
		cfg,
		func(s models.Store) models.Store { slow.Store = s; return slow },
		newScripted("sg", always(models.Accepted)),
	)
	a, b, gone := received(t, r.store, []byte("[]")), received(t, r.store, []byte("[]")), models.NewInboxID(time.Now())
	handle := func(id models.ID) models.Disposition {
		return r.engine.events.Handle(context.Background(), models.Message{Kind: models.EventMessage, Provider: "sg", ID: id})
	}
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
	require.Empty(t, r.engine.events.Working)
}

// slowAndEmpty is an inbox that takes its time to say that nothing is in it.
type slowAndEmpty struct{ models.Store }

func (slowAndEmpty) Inbox(context.Context, ...models.ID) ([]models.Inbox, error) {
	time.Sleep(100 * time.Millisecond)
	return nil, nil
}

// TestEventsGiveWay: while urgent mail comes, a group of events that took 100 ms
// is followed by three times as long without any; not if events are a minute late.
func TestEventsGiveWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		sched := priority.New()
		q := events.New(events.Config{Priority: sched}, events.Deps{Store: slowAndEmpty{}})
		var running sync.WaitGroup
		running.Go(func() { q.Run(ctx) })
		group := func(received time.Time) time.Duration {
			began := time.Now()
			require.Equal(
				t,
				models.Done(),
				q.Handle(ctx, models.Message{Kind: models.EventMessage, ID: models.NewInboxID(received)}),
			)
			return time.Since(began)
		}
		const work = events.EventsWait + 100*time.Millisecond
		require.Equal(t, work, group(time.Now()))
		require.Equal(t, work, group(time.Now()), "nobody is in a hurry")
		sched.NoteUrgent()
		require.Equal(t, work, group(time.Now().Add(-events.EventsLate)))
		require.Equal(t, work, group(time.Now()), "the last one was late")
		require.Equal(t, 300*time.Millisecond+work, group(time.Now()))
		cancel()
		running.Wait()
	})
}

// TestWorkersTellOfUrgentMail runs alone: others would tell of theirs.
func TestWorkersTellOfUrgentMail(t *testing.T) { //nolint:paralleltest // see above
	r := newRig(t, fast(), nil, newScripted("sg", always(models.Accepted)))
	send := func(lane models.Lane) {
		r.done(r.batch(1, true, func(b *models.Batch, _ []models.Recipient) { b.Lane = lane }))
	}
	require.Eventually(t, func() bool { return !r.engine.cfg.Priority.UrgentLately() }, patience, time.Millisecond)
	send(models.Bulk)
	require.False(t, r.engine.cfg.Priority.UrgentLately())
	require.Eventually(t, func() bool {
		send(models.Urgent)
		return r.engine.cfg.Priority.UrgentLately()
	}, patience, time.Millisecond)
}
