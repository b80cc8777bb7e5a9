package rabbit

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/brokertest"
)

// testURL is where scripts/services started RabbitMQ.
func testURL(t *testing.T) string {
	t.Helper()
	u := os.Getenv("SAFEDELIVR_TEST_AMQP_URL")
	if u == "" {
		t.Skip("needs RabbitMQ: start it with scripts/services up and set SAFEDELIVR_TEST_AMQP_URL")
	}
	return u
}

func openTest(t *testing.T, providers ...string) *Broker {
	t.Helper()
	return openAt(t, testURL(t), providers...)
}

// openProxied opens a broker whose connections go through a proxy.
func openProxied(t *testing.T, providers ...string) (*Broker, *proxy) {
	t.Helper()
	p, through := newProxy(t)
	return openAt(t, through, providers...), p
}

func openAt(t *testing.T, u string, providers ...string) *Broker {
	t.Helper()
	return openWith(t, Config{URL: u, Providers: providers})
}

// openWith opens a broker with a prefix of its own.
func openWith(t *testing.T, c Config) *Broker {
	t.Helper()
	c.Prefix = "t" + models.NewUserID()
	b, err := Open(context.Background(), c)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, b.Close())
		c.URL = testURL(t)
		again, err := Open(context.Background(), c) // some tests have closed b
		require.NoError(t, err)
		require.NoError(t, again.Remove(context.Background()))
		require.NoError(t, again.Close())
	})
	return b
}

// remote is a broker behind a proxy. It implements brokertest.Remote.
type remote struct {
	*Broker
	proxy  *proxy
	config Config
}

var _ brokertest.Remote = (*remote)(nil)

func (r *remote) Lose() { r.proxy.cut() }

func (r *remote) Peer(t *testing.T) models.Broker {
	t.Helper()
	b, err := Open(t.Context(), r.config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

func TestBroker(t *testing.T) {
	t.Parallel()
	brokertest.Run(t, func(t *testing.T, providers ...string) models.Broker {
		b, p := openProxied(t, providers...)
		return &remote{b, p, Config{URL: testURL(t), Prefix: b.topology.prefix, Providers: providers}}
	})
}

// Only one of three nodes can be reached. Every connection must find it, whichever
// node it starts with.
func TestConnectToAnyNode(t *testing.T) {
	t.Parallel()
	good, _, _ := strings.Cut(testURL(t), ",")
	for range 4 {
		c := Config{URL: "amqp://guest:guest@127.0.0.1:1/, " + good + ",amqp://guest:guest@127.0.0.1:2/",
			Prefix: "t" + models.NewUserID()}
		b, err := Open(t.Context(), c)
		require.NoError(t, err)
		require.NoError(t, b.Ping(t.Context()))
		_, err = b.Depths(t.Context()) // over the other connection
		require.NoError(t, err)
		require.NoError(t, b.Remove(t.Context()))
		require.NoError(t, b.Close())
	}
	_, err := Open(t.Context(), Config{URL: good + ",http://127.0.0.1"})
	require.ErrorIs(t, err, models.ErrInvalid)
}

// A message that was delayed by a publisher whose clock is ahead must not wait for
// that clock.
func TestDelayIgnoresPublishersClock(t *testing.T) {
	t.Parallel()
	at := time.Now().Add(10 * time.Minute).UTC().Round(0)
	body, err := json.Marshal(models.Message{
		Kind:      models.BatchMessage,
		ID:        models.NewBatchID(at),
		Lane:      models.Bulk,
		NotBefore: at,
	})
	require.NoError(t, err)
	m, _, err := incoming(&amqp.Delivery{Body: body})
	require.NoError(t, err)
	require.True(t, m.NotBefore.Equal(at), "a message that was in no delay")
	for _, left := range []time.Duration{0, time.Minute} {
		m, _, err = incoming(&amqp.Delivery{Body: body, Headers: amqp.Table{leftHeader: left.Milliseconds()}})
		require.NoError(t, err)
		require.WithinRange(t, m.NotBefore, time.Now().Add(left-time.Minute/2), time.Now().Add(left))
	}
	m, _, err = incoming(&amqp.Delivery{Body: body, Headers: amqp.Table{leftHeader: time.Hour.Milliseconds()}})
	require.NoError(t, err)
	require.True(t, m.NotBefore.Equal(at), "never longer than the message says")

	o, err := newTopology("t", nil).outgoing(&models.Message{
		Kind:      models.BatchMessage,
		ID:        models.NewBatchID(at),
		Lane:      models.Bulk,
		NotBefore: time.Now().Add(7 * time.Second),
	}, history{})
	require.NoError(t, err)
	require.Equal(t, "t.delay.5s", o.exchange)
	require.InDelta(t, 2000, o.msg.Headers[leftHeader], 500)
}

// FuzzIncoming reads deliveries that any program may have published. A message that is
// accepted must be valid, lead to one queue, and survive a round trip.
func FuzzIncoming(f *testing.F) {
	at := time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)
	id := models.NewBatchID(at)
	for _, m := range []models.Message{{Kind: models.BatchMessage, ID: id, Lane: models.Urgent},
		{
			Kind:      models.ProviderMessage,
			Provider:  "sg",
			ID:        id,
			Lane:      models.Bulk,
			Retry:     3,
			NotBefore: at,
		},
		{
			Kind:     models.LogMessage,
			Provider: "sg",
			ID:       id.Log(7),
			Lane:     models.Bulk,
		}, {Kind: models.EventMessage, Provider: "sg", ID: id}} {
		body, err := json.Marshal(&m)
		require.NoError(f, err)
		f.Add(body, int32(1), int64(2000))
	}
	f.Add([]byte(`{"k":"batch","id":"x"}`), int32(-1), int64(-1))
	f.Add([]byte(`[]`), int32(0), int64(1)<<62)
	top := newTopology("t", []string{"sg"})
	f.Fuzz(func(t *testing.T, body []byte, panics int32, left int64) {
		d := &amqp.Delivery{Body: body, Headers: amqp.Table{panicsHeader: panics, leftHeader: left}}
		m, was, err := incoming(d)
		p := fromParked(d)
		if err != nil {
			require.True(t, errors.Is(err, models.ErrInvalid) || errors.Is(err, models.ErrNewer), "%v", err)
			require.Equal(t, body, p.Raw, "what is no message is shown as it is")
			return
		}
		require.GreaterOrEqual(t, was.panics, 0)
		require.NoError(t, m.Validate())
		queues := 0
		for _, q := range models.Queues([]string{m.Provider}) {
			if m.Provider != "" && (q.Lane == "" || q.Lane == m.Lane) && models.MatchKey(q.Binding(), m.Key()) {
				queues++
			}
		}
		if models.ValidProviderName(m.Provider) {
			require.Equal(t, 1, queues, m.Key())
		}
		m.NotBefore = time.Time{}
		o, err := top.outgoing(&m, was)
		require.NoError(t, err)
		again, _, err := incoming(&amqp.Delivery{Body: o.msg.Body})
		require.NoError(t, err)
		require.Equal(t, m.Key(), again.Key())
		require.Equal(t, m.Lane, again.Lane)
	})
}

func TestQueueNamesHavePrefix(t *testing.T) {
	t.Parallel()
	for _, q := range newTopology("sd", []string{"sg"}).names() {
		require.True(t, strings.HasPrefix(q, "sd."))
	}
}

// A peer that does not answer must block no call for longer than its context, and
// neither the start nor the end of a subscription. A missing heartbeat ends the connection only
// after three minutes, so that the machine may pause.
func TestSilentPeerBlocksNoCall(t *testing.T) {
	t.Parallel()
	p, through := newProxy(t)
	b := openWith(t, Config{URL: through, heartbeat: time.Minute})
	none := func(context.Context, models.Message) models.Disposition { return models.Done() }
	subscribed := make(chan error, 2)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() { subscribed <- b.Subscribe(ctx, models.Queue{Kind: models.EventMessage}, 1, none) }()
	require.Eventually(t, func() bool { return consumers(t, b) == 1 }, time.Minute, 10*time.Millisecond)
	p.freeze()
	defer p.thaw()
	began := time.Now()
	go func() {
		subscribed <- b.Subscribe(ctx, models.Queue{Kind: models.BatchMessage, Lane: models.Bulk}, 1, none)
	}()
	for name, ask := range map[string]func(context.Context) error{
		"depths":  func(ctx context.Context) error { _, err := b.Depths(ctx); return err },
		"parked":  func(ctx context.Context) error { _, err := b.Parked(ctx, 1); return err },
		"unpark":  func(ctx context.Context) error { return b.Unpark(ctx, "id") },
		"discard": func(ctx context.Context) error { return b.Discard(ctx, "id") },
		"purge":   func(ctx context.Context) error { return b.Purge(ctx) },
	} {
		const prompt = 2 * time.Second
		took := prompt
		for i := 0; i < 5 && took >= prompt; i++ { // the machine may pause during some of them
			asked, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			start := time.Now()
			require.ErrorIs(t, ask(asked), models.ErrUnavailable, name)
			took = time.Since(start)
			cancel()
		}
		require.Less(t, took, prompt, name)
	}
	stop()
	for range cap(subscribed) {
		require.NoError(t, <-subscribed)
	}
	require.Less(t, time.Since(began), 100*time.Second, "the heartbeat would have ended it later")
}

// consumers counts the consumers of the event queue.
func consumers(t *testing.T, b *Broker) (n int) {
	t.Helper()
	require.NoError(t, b.channel(t.Context(), func(ch *amqp.Channel) error {
		q, err := ch.QueueDeclarePassive(b.topology.queue(models.Queue{Kind: models.EventMessage}), true, false, false, false,
			nil)
		n = q.Consumers
		return err
	}))
	return n
}

// TestNewerMessage: a message of a newer version is neither handled nor parked. It waits as it
// is, so that a newer process may take it.
func TestNewerMessage(t *testing.T) {
	t.Parallel()
	raw := []byte(`{"v": 2, "k": "not yet known", "id": 7}`)
	d := &amqp.Delivery{Body: raw, RoutingKey: "batch.x", ContentType: "application/json",
		Headers: amqp.Table{laneHeader: "bulk", panicsHeader: int32(3)}}
	_, _, err := incoming(d)
	require.ErrorIs(t, err, models.ErrNewer)
	o := newTopology("t", nil).postponed(d)
	require.Equal(t, "t.delay.5s", o.exchange)
	require.Equal(t, "batch.x", o.key)
	require.Equal(t, raw, o.msg.Body)
	require.Equal(t, d.Headers, o.msg.Headers)

	o, err = newTopology("t", nil).outgoing(
		&models.Message{Kind: models.BatchMessage, ID: models.NewBatchID(time.Now()), Lane: models.Bulk}, history{})
	require.NoError(t, err)
	require.Contains(t, string(o.msg.Body), `"v":1`)
}
