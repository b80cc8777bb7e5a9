package queue

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// patience bounds the wait for a state. Only a failing test waits that long.
const patience = time.Minute

func bulk() models.Queue { return models.Queue{Kind: models.BatchMessage, Lane: models.Bulk} }

func messages(n int) (ms []models.Message) {
	for range n {
		ms = append(ms, models.Message{Kind: models.BatchMessage, ID: models.NewBatchID(time.Now()), Lane: models.Bulk})
	}
	return ms
}

// counter counts the messages that handlers get, by ID.
type counter struct {
	mu  sync.Mutex
	got map[models.ID]int
}

func (c *counter) handle(_ context.Context, m models.Message) models.Disposition {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.got == nil {
		c.got = map[models.ID]int{}
	}
	c.got[m.ID]++
	return models.Done()
}

func (c *counter) len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.got)
}

func (c *counter) wait(t *testing.T, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return c.len() >= n }, patience, 5*time.Millisecond, "%d messages", n)
}

// subscribe runs a subscription until the test ends or stop is called.
func subscribe(t *testing.T, b *Broker, n int, h models.Handler) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- b.Subscribe(ctx, bulk(), n, h) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-over)
	})
	t.Cleanup(stop)
	return stop
}

// hang returns a handler that hangs until release is called, and a channel that is closed when it got a message.
func hang() (h models.Handler, began chan struct{}, release func()) {
	over := make(chan struct{})
	began = make(chan struct{})
	first := sync.OnceFunc(func() { close(began) })
	return func(context.Context, models.Message) models.Disposition {
		first()
		<-over
		return models.Done()
	}, began, sync.OnceFunc(func() { close(over) })
}

// rows counts the rows that match a condition.
func rows(t *testing.T, c Config, where string, args ...any) int {
	t.Helper()
	return int(admin(t, `SELECT 1 FROM `+c.Schema+`.queue_message WHERE `+where, args...))
}

// A process that cannot reach the server any more loses its messages when their leases end, and not before.
func TestDeadProcessGivesMessagesBack(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	c.lease = 2 * time.Second
	proxied, p := through(t, c)
	dead, alive := openWith(t, proxied), openWith(t, c)
	h, began, release := hang()
	defer release()
	subscribe(t, dead, 3, h)
	ms := messages(3)
	published := time.Now()
	require.NoError(t, alive.Publish(t.Context(), ms...))
	<-began
	require.Eventually(t, func() bool { return rows(t, c, "taken_until > now()") == 3 }, patience, 5*time.Millisecond)
	p.Refuse()
	defer p.Accept()
	var box counter
	subscribe(t, alive, 1, box.handle)
	box.wait(t, 3)
	require.Greater(t, time.Since(published), c.lease, "not before the leases ended")
	require.Eventually(t, func() bool { return rows(t, c, "true") == 0 }, patience, 5*time.Millisecond)
}

// A handler may run for longer than the lease. No other one gets its message.
func TestLeaseOfLongHandlerIsRenewed(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	c.lease = 5 * time.Second // renewed each third of it, with time left for a process that stands still
	one, two := openWith(t, c), openWith(t, c)
	var other counter
	h, began, release := hang()
	defer release()
	subscribe(t, one, 1, h)
	require.NoError(t, one.Publish(t.Context(), messages(1)...))
	<-began
	first := time.Now().Add(c.lease)
	subscribe(t, two, 1, other.handle)
	renewed := func() bool { return rows(t, c, "taken_until > $1", first.Add(c.lease)) == 1 }
	require.Eventually(t, renewed, patience, 5*time.Millisecond)
	release()
	require.Eventually(t, func() bool { return rows(t, c, "true") == 0 }, patience, 5*time.Millisecond)
	require.Zero(t, other.len())
}

// Messages that a process fetched ahead must not wait behind handlers that hang.
func TestMessagesDoNotWaitBehindHangingHandlers(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	one, two := openWith(t, c), openWith(t, c)
	h, began, release := hang()
	defer release()
	ms := messages(50)
	var box counter
	fast := 0
	require.NoError(t, one.Publish(t.Context(), ms...))
	subscribe(t, one, 1, func(ctx context.Context, m models.Message) models.Disposition {
		if fast++; fast <= 10 { // so it fetches ahead
			return box.handle(ctx, m)
		}
		return h(ctx, m)
	})
	<-began
	subscribe(t, two, 1, box.handle)
	box.wait(t, len(ms)-1)
}

// If the answer to a take is lost, the messages do not wait for the end of their lease.
func TestLostAnswerToTake(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	b := openWith(t, c)
	var box counter
	subscribe(t, b, 2, box.handle)
	require.NoError(t, b.Publish(t.Context(), messages(1)...))
	box.wait(t, 1)
	admin(t, `INSERT INTO `+c.Schema+`.queue_message (queue, due, body, taken_by, taken_until)
		SELECT 'batch.bulk', now(), '{"k":"batch","l":"bulk","id":"`+messages(1)[0].ID.String()+`"}', $1,
			now() + interval '1 hour'`, b.name+"/1")
	box.wait(t, 2)
}

// A message that crashes each process that handles it is parked in the end.
func TestMessageThatCrashesIsParked(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	b := openWith(t, c)
	ms := messages(2)
	require.NoError(t, b.Publish(t.Context(), ms...))
	for i, lost := range []int{maxLost - 2, maxLost - 1} {
		admin(t, `UPDATE `+c.Schema+`.queue_message SET lost = $1, taken_by = 'crashed', taken_until = now()
			WHERE body LIKE $2`, strconv.Itoa(lost), "%"+ms[i].ID.String()+"%")
	}
	var box counter
	subscribe(t, b, 1, box.handle)
	p := waitParked(t, b, 1)[0]
	require.Equal(t, ms[1].ID, p.Message.ID)
	require.Contains(t, p.Why, "taken 200 times")
	box.wait(t, 1)
}

func waitParked(t *testing.T, b *Broker, n int) (got []models.Parked) {
	t.Helper()
	require.Eventually(t, func() bool {
		var err error
		got, err = b.Parked(context.Background(), 100)
		return err == nil && len(got) == n
	}, patience, 20*time.Millisecond)
	return got
}

// Rows that another program wrote: a newer message waits for a newer process, and what is no message is parked.
func TestForeignBodies(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	b := openWith(t, c)
	for _, body := range []string{`{"v": 2, "k": "not yet known"}`, `no message`} {
		admin(t, `INSERT INTO `+c.Schema+`.queue_message (queue, due, body, panics)
			VALUES ('batch.bulk', now(), $1, 3)`, body)
	}
	var box counter
	subscribe(t, b, 1, box.handle)
	p := waitParked(t, b, 1)[0]
	require.Equal(t, "no message", string(p.Raw))
	require.Equal(t, "batch.bulk", p.Key)
	require.Eventually(t, func() bool {
		return rows(t, c, `taken_by IS NULL AND due > now() AND panics = 3 AND body LIKE '{"v": 2%'`) == 1
	}, patience, 5*time.Millisecond)
	require.NoError(t, b.Unpark(t.Context(), p.ID))
	require.Eventually(t, func() bool {
		all, err := b.Parked(t.Context(), 2)
		return err == nil && len(all) == 1 && all[0].At.After(p.At)
	}, patience, 5*time.Millisecond, "it is parked again")
	require.Zero(t, box.len())
}

// PostgreSQL stores no zero bytes, so a reason must have none.
func TestReasonWithZeroByte(t *testing.T) {
	t.Parallel()
	b := openWith(t, newConfig(t))
	subscribe(t, b, 1, func(context.Context, models.Message) models.Disposition { return models.Park("a\x00b") })
	require.NoError(t, b.Publish(t.Context(), messages(1)...))
	require.Equal(t, "a b", waitParked(t, b, 1)[0].Why)
}
