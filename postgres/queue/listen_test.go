package queue

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// listening waits until n brokers of a schema listen.
func listening(t *testing.T, c Config, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return listeners(t, c, "1") == n }, patience, 5*time.Millisecond)
}

// listeners evaluates an expression for each listening connection of a schema, and returns how many there are.
func listeners(t *testing.T, c Config, expression string) int {
	t.Helper()
	return int(admin(t, `SELECT `+expression+` FROM pg_stat_activity WHERE query LIKE 'LISTEN `+c.Schema+`%'`))
}

// Subscriptions that do not poll get the messages that other processes publish. Two processes share them.
func TestTwoProcessesShare(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	c.poll = time.Hour
	one, two := openWith(t, c), openWith(t, c)
	listening(t, c, 2)
	var boxes [2]counter
	for i, b := range []*Broker{one, two} {
		subscribe(t, b, 2, func(ctx context.Context, m models.Message) models.Disposition {
			time.Sleep(5 * time.Millisecond)
			return boxes[i].handle(ctx, m)
		})
	}
	published := 0
	require.Eventually(t, func() bool {
		published += 10
		require.NoError(t, one.Publish(t.Context(), messages(10)...))
		return boxes[0].len() > 0 && boxes[1].len() > 0
	}, patience, 5*time.Millisecond)
	require.Eventually(t, func() bool { return boxes[0].len()+boxes[1].len() == published }, patience, 5*time.Millisecond)
	for i := range boxes {
		for id, n := range boxes[i].got {
			require.Equal(t, 1, n)
			require.NotContains(t, boxes[1-i].got, id)
		}
	}
}

// A delayed message is delivered when it is due, without a poll.
func TestDelayNeedsNoPoll(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	c.poll = time.Hour
	one, two := openWith(t, c), openWith(t, c)
	listening(t, c, 2)
	var box counter
	subscribe(t, two, 1, box.handle)
	ms := messages(2)
	ms[0].NotBefore = time.Now().Add(300 * time.Millisecond)
	require.NoError(t, one.Publish(t.Context(), ms[1]))
	box.wait(t, 1)
	require.NoError(t, one.Publish(t.Context(), ms[0]))
	box.wait(t, 2)
}

// Messages whose notifications are lost are delivered after the next poll.
func TestLostNotification(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	b := openWith(t, c)
	var box counter
	subscribe(t, b, 1, box.handle)
	require.NoError(t, b.Publish(t.Context(), messages(1)...))
	box.wait(t, 1)
	for i := range 3 { // the first may be found by chance
		admin(t, `INSERT INTO `+c.Schema+`.queue_message (queue, due, body)
			VALUES ('batch.bulk', now(), '{"k":"batch","l":"bulk","id":"`+messages(1)[0].ID.String()+`"}')`)
		box.wait(t, i+2)
	}
}

// The listening connection is lost again and again. Messages and wakes arrive all the same.
func TestLostListener(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	c.poll = time.Hour
	one, two := openWith(t, c), openWith(t, c)
	var box counter
	subscribe(t, two, 1, box.handle)
	for i := range 3 {
		listening(t, c, 2)
		require.Equal(t, 2, listeners(t, c, "pg_terminate_backend(pid)"))
		require.NoError(t, one.Publish(t.Context(), messages(1)...))
		box.wait(t, i+1)
	}
}

// A wake of many users needs more than one notification. All users are woken.
func TestWakeOfManyUsers(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	b := openWith(t, c)
	listening(t, c, 1)
	ctx, stop := context.WithCancel(t.Context())
	var mu sync.Mutex
	var woken []string
	var all sync.WaitGroup
	all.Go(func() {
		_ = b.SubscribeWakes(ctx, func(users []string) {
			mu.Lock()
			defer mu.Unlock()
			woken = append(woken, users...)
		})
	})
	defer all.Wait()
	defer stop()
	var users []string
	for i := range models.MaxWoken {
		users = append(users, fmt.Sprintf("user %d \x00 \"ä\" %s", i, models.NewUserID()))
	}
	require.Eventually(t, func() bool {
		require.NoError(t, b.Wake(t.Context(), users...))
		mu.Lock()
		defer mu.Unlock()
		return len(woken) >= len(users) && slices.Equal(users, woken[:len(users)])
	}, patience, 100*time.Millisecond)
	require.ErrorIs(t, b.Wake(t.Context(), string(make([]byte, 10_000))), models.ErrInvalid)
}

// Other ways to send statements need no prepared ones, as PgBouncer wants it.
func TestExecModes(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"cache_describe", "describe_exec", "exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := newConfig(t)
			u, err := url.Parse(c.URL)
			require.NoError(t, err)
			q := u.Query()
			q.Set("default_query_exec_mode", mode)
			u.RawQuery = q.Encode()
			c.URL = u.String()
			b := openWith(t, c)
			var box counter
			var deliveries sync.Map
			subscribe(t, b, 2, func(ctx context.Context, m models.Message) models.Disposition {
				n, _ := deliveries.LoadOrStore(m.ID, new(int))
				count, _ := n.(*int)
				switch *count++; *count {
				case 1:
					return models.Later(time.Millisecond)
				case 2:
					return models.Park(`it's a "reason" \`)
				}
				return box.handle(ctx, m)
			})
			require.NoError(t, b.Publish(t.Context(), messages(3)...))
			for _, p := range waitParked(t, b, 3) {
				require.Equal(t, `it's a "reason" \`, p.Why)
				require.NoError(t, b.Unpark(t.Context(), p.ID))
			}
			box.wait(t, 3)
			require.NoError(t, b.Wake(t.Context(), "u"))
			require.NoError(t, b.Ping(t.Context()))
			require.NoError(t, b.Purge(t.Context()))
			depths, err := b.Depths(t.Context())
			require.NoError(t, err)
			require.Len(t, depths, len(models.Queues(nil)))
		})
	}
}
