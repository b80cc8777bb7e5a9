package endpoints

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/endpoint"
)

// watched is a store that notes up to which entry of a feed those who wait for more have read.
type watched struct {
	models.Store
	waits atomic.Int64
}

func (s *watched) Feed(ctx context.Context, user string, after, limit int) ([]models.FeedEntry, error) {
	found, err := s.Store.Feed(ctx, user, after, limit)
	if err == nil && len(found) == 0 && limit == 1 {
		s.waits.Store(int64(after))
	}
	return found, err
}

// TestWakeAlone: an update is posted when another worker says that the feed has grown, although nothing else would have
// the feed read for an hour.
func TestWakeAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		store := &watched{Store: f.store}
		f.store, f.poll = store, time.Hour
		app := newReceiver(f, nil)
		f.endpoint(app, nil)
		b := f.batch(3, nil)
		f.run("w")
		f.publish(b, 1, models.Success, 1)
		other := f.newPoster("other")
		other.owners[f.user] = true // as if it had listed the endpoints
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); other.sendWakes(ctx) }()
		t.Cleanup(func() { stop(); <-done })
		f.eventually(func() bool { // before it waits, it may read the feed by itself, and lose a wake
			other.Grown([]string{f.user})
			return len(app.accepted()) == 1 && store.waits.Load() == int64(f.head)
		})
		for n := 2; n <= 3; n++ {
			f.publish(b, 1, models.Success, n)
			other.Grown([]string{f.user})
			f.eventually(func() bool { return len(app.accepted()) == n && store.waits.Load() == int64(f.head) })
		}
	})
}

// deaf is a broker that loses all wakes.
type deaf struct{ models.Broker }

func (deaf) Wake(context.Context, ...string) error { return models.ErrUnavailable }

// TestWakesAreLost: without any wake, updates are posted by the poll.
func TestWakesAreLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		store := &watched{Store: f.store}
		f.store, f.broker, f.poll = store, deaf{f.broker}, 20*time.Millisecond
		app := newReceiver(f, nil)
		f.endpoint(app, nil)
		b := f.batch(2, nil)
		f.run("w")
		for n := 1; n <= 2; n++ {
			f.publish(b, 1, models.Success, n)
			f.poster.Grown([]string{f.user})
			f.eventually(func() bool { return len(app.accepted()) == n && store.waits.Load() == int64(f.head) })
		}
	})
}

// wakes is a broker that shows the wakes.
type wakes struct {
	models.Broker
	sent chan []string
}

func (w *wakes) Wake(ctx context.Context, users ...string) error {
	select {
	case w.sent <- users:
		return nil
	case <-ctx.Done():
		return models.ErrUnavailable
	}
}

// TestWakesAreBounded: users without an endpoint are in no wake, and all others that are noted before it is sent are
// in one: each once, and not more than a wake may have.
func TestWakesAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		w := &wakes{f.broker, make(chan []string)}
		f.broker = w
		p := f.newPoster("w")
		for range 2 * models.MaxWoken {
			p.owners[models.NewUserID()] = true
		}
		for user := range p.owners {
			p.Grown([]string{user, "without an endpoint"})
			p.Grown([]string{user})
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); p.sendWakes(ctx) }()
		t.Cleanup(func() { stop(); <-done })
		users := <-w.sent
		require.Len(t, users, models.MaxWoken)
		require.Len(t, slices.Compact(slices.Sorted(slices.Values(users))), models.MaxWoken, "each once")
		require.NotContains(t, users, "without an endpoint")
		p.mu.Lock()
		require.Empty(t, p.grown)
		p.mu.Unlock()
	})
}

// TestOwners: users are owners while they have an endpoint.
func TestOwners(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		e := f.endpoint(newReceiver(f, nil), nil)
		f.run("w")
		owner := func() bool {
			f.poster.mu.Lock()
			defer f.poster.mu.Unlock()
			return f.poster.owners[f.user]
		}
		f.eventually(owner)
		f.change(e, func(e *endpoint.Endpoint) { e.Disabled = &endpoint.Disabled{At: time.Now(), Why: "w"} })
		f.eventually(func() bool { return !owner() })
	})
}
