package brokertest

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// sleeper collects the users that were woken.
type sleeper struct {
	mu    sync.Mutex
	users []string
}

func (s *sleeper) woken(users []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users = append(s.users, users...)
}

func (s *sleeper) has(user string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.users, user)
}

// sleep subscribes to wakes until the test ends or stop is called.
func (s *sleeper) sleep(t *testing.T, b models.Broker) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- b.SubscribeWakes(ctx, s.woken) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-over)
	})
	t.Cleanup(stop)
	return stop
}

// wakeAll wakes users, each time others, until each sleeper has got one of them.
func wakeAll(t *testing.T, b models.Broker, all ...*sleeper) {
	t.Helper()
	var sent []string
	require.Eventually(t, func() bool {
		user := models.NewUserID()
		if b.Wake(context.Background(), user) == nil {
			sent = append(sent, user)
		}
		return !slices.ContainsFunc(all, func(s *sleeper) bool { return !slices.ContainsFunc(sent, s.has) })
	}, patience, 10*time.Millisecond)
}

// wakes checks that a wake reaches the subscribers of all processes, and no queue.
func wakes(t *testing.T, open Open) {
	b := open(t, "sg")
	other := peer(t, b)
	ctx := context.Background()
	require.NoError(t, b.Wake(ctx, "u1", "u2"), "although no process listens")
	var one, two, late sleeper
	stop := one.sleep(t, b)
	two.sleep(t, other)
	wakeAll(t, b, &one, &two)
	require.False(t, one.has("u1"), "it waits for no subscriber")
	require.NoError(t, other.Wake(ctx, "u3", "u4"))
	for _, s := range []*sleeper{&one, &two} {
		require.Eventually(t, func() bool { return s.has("u3") && s.has("u4") }, patience, 5*time.Millisecond)
	}
	require.NoError(t, b.Purge(ctx))
	wakeAll(t, other, &one, &two)

	depths, err := b.Depths(ctx)
	require.NoError(t, err)
	require.Len(t, depths, len(models.Queues([]string{"sg"})))
	for _, d := range depths {
		require.Zero(t, d.Ready, d.Queue.Name())
	}

	stop()
	require.NoError(t, b.Wake(ctx, "u5"))
	require.Eventually(t, func() bool { return two.has("u5") }, patience, 5*time.Millisecond)
	require.False(t, one.has("u5"))
	late.sleep(t, b)
	lose(b)
	wakeAll(t, other, &late, &two)
	require.False(t, late.has("u5"))

	require.ErrorIs(t, b.Wake(ctx), models.ErrInvalid)
	require.ErrorIs(t, b.Wake(ctx, make([]string, models.MaxWoken+1)...), models.ErrInvalid)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	require.ErrorIs(t, b.Wake(ended, "u6"), models.ErrUnavailable)
}
