package consumers

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
	r := newRig(t, cfg, func(s models.Store) models.Store { slow.Store = s; return slow }, newScripted("sg", always(models.Accepted)))
	a, b, gone := received(t, r.store, []byte("[]")), received(t, r.store, []byte("[]")), models.NewInboxID(time.Now())
	handle := func(id models.ID) models.Disposition {
		return r.engine.events.handle(context.Background(), models.Message{Kind: models.EventMessage, Account: "sg", ID: id})
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
	require.Empty(t, r.engine.events.working)
}
