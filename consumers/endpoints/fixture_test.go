package endpoints

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/internal/outbound"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/endpoint"
	"github.com/safedelivr/safedelivr/models/feed"
	"github.com/safedelivr/safedelivr/store/memory"
)

const patience = 5 * time.Minute

// fixture is a store with a feed of one user.
type fixture struct {
	t     *testing.T
	net   *testkit.Network
	store models.Store
	user  string
	head  int
	last  time.Time // of the newest entry; each is later than the one before

	timeout  time.Duration // of posts
	disabled atomic.Value  // ID of a user
	mailer   endpoint.Mailer
	poster   *Poster // the newest
	broker   models.Broker
	poll     time.Duration // of feeds; 0: the default
	posts    sync.Map      // Class -> *atomic.Int64
}

// count returns how many posts of a class were made.
func (f *fixture) count(c Class) int64 {
	n, _ := f.posts.LoadOrStore(c, new(atomic.Int64))
	return n.(*atomic.Int64).Load()
}

func newFixture(t *testing.T) *fixture {
	return &fixture{
		t: t, net: testkit.NewNetwork(t), store: memory.Open(t), broker: inproctest.New(t), user: models.NewUserID(),
		timeout: patience,
	}
}

// serve returns the URL of a server.
func (f *fixture) serve(h http.Handler) string {
	s := &httptest.Server{Listener: f.net.Listen(), Config: &http.Server{Handler: h, ReadHeaderTimeout: time.Hour}}
	s.Start()
	f.t.Cleanup(s.Close)
	return s.URL
}

// batch stores a batch of n recipients.
func (f *fixture) batch(n int, change func(*models.Batch)) models.ID {
	f.t.Helper()
	b := models.Batch{
		ID: models.NewBatchID(time.Now()), User: f.user, Recipients: n, Chunks: 1, ExpiresAt: time.Now().Add(time.Hour),
		Content:   models.Content{From: models.Address{Email: "a@b.c"}, Subject: "s", Text: "t", Tags: []string{"a"}},
		OnUnknown: models.Hold, Lane: models.Bulk, Category: "news", Metadata: map[string]string{"run": "7"},
	}
	if change != nil {
		change(&b)
	}
	rs := make([]models.Recipient, n)
	for i := range rs {
		rs[i] = models.Recipient{Email: fmt.Sprintf("u%d@x.test", i+1)}
	}
	rs[0].ClientID = "order-1"
	rs[0].Metadata = map[string]string{"customer": "1"}
	require.NoError(f.t, f.store.PutBatch(f.t.Context(), b, models.Chunk{ID: b.ID, Recipients: rs}))
	return b.ID
}

// publish appends the same update of some recipients of a batch to the feed.
func (f *fixture) publish(batch models.ID, number int, s models.State, recipients ...int) {
	f.t.Helper()
	f.happen(batch, models.FeedChange{State: s, Provider: "sg", Number: number, Recipients: models.SetOf(recipients...)})
}

// happen appends an update of a batch to the feed.
func (f *fixture) happen(batch models.ID, c models.FeedChange) {
	f.t.Helper()
	f.head++
	f.last = models.LaterOf(time.Now().UTC().Truncate(time.Microsecond), f.last.Add(time.Microsecond))
	require.NoError(f.t, f.store.AppendFeed(f.t.Context(), f.user, models.FeedEntry{
		Number: f.head, Token: models.NewToken(), At: f.last,
		Chunks: []models.FeedChunk{{Chunk: batch, Version: int64(f.head), Changes: []models.FeedChange{c}}},
	}))
}

// endpoint stores an endpoint of a receiver.
func (f *fixture) endpoint(r *receiver, change func(*endpoint.Endpoint)) *endpoint.Endpoint {
	f.t.Helper()
	e := &endpoint.Endpoint{
		ID: models.NewUserID(), Owner: f.user, EndpointSettings: client.EndpointSettings{URL: r.url},
		Secrets: []endpoint.Secret{endpoint.NewSecret(client.SignatureHMAC)},
		Created: time.Now().UTC(), Generation: 1, Replay: &feed.Position{},
	}
	if change != nil {
		change(e)
	}
	r.mu.Lock()
	r.secret = e.Secrets[0].String()
	r.mu.Unlock()
	require.NoError(f.t, endpoint.In(f.store).Create(f.t.Context(), e.Owner, e.ID, *e))
	return e
}

// newPoster returns a Poster, which posts over the network of the fixture.
func (f *fixture) newPoster(worker string, delays ...time.Duration) *Poster {
	if delays == nil {
		delays = []time.Duration{50 * time.Millisecond, 50 * time.Millisecond, 50 * time.Millisecond}
	}
	return New(Config{
		Worker: worker, Client: outbound.New(nil).Over(f.net.Dial).Within(f.timeout), Mailer: f.mailer, Delays: delays,
		Poll:      f.poll,
		LastPosts: patience, // so that no pause of this process has a post made again
		Logger:    slog.New(slog.DiscardHandler),
		Disabled:  func(user string) bool { return f.disabled.Load() == user },
		Posted: func(c Class) {
			n, _ := f.posts.LoadOrStore(c, new(atomic.Int64))
			n.(*atomic.Int64).Add(1)
		},
	}, f.store, f.broker)
}

// run posts until stop is called.
func (f *fixture) run(worker string, delays ...time.Duration) (stop func()) {
	p := f.newPoster(worker, delays...)
	f.poster = p
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); p.Run(ctx) }()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	f.t.Cleanup(stop)
	return stop
}

// change changes an endpoint.
func (f *fixture) change(e *endpoint.Endpoint, do func(e *endpoint.Endpoint)) {
	f.t.Helper()
	_, err := endpoint.In(f.store).Change(f.t.Context(), f.user, e.ID, func(e *endpoint.Endpoint) error {
		do(e)
		return nil
	})
	require.NoError(f.t, err)
}

func (f *fixture) state(e *endpoint.Endpoint) endpoint.State {
	f.t.Helper()
	s, _, err := endpoint.StateOf(f.t.Context(), f.store, e)
	require.NoError(f.t, err)
	return s
}

// eventually waits until ok, in the time of a bubble.
func (f *fixture) eventually(ok func() bool) {
	f.t.Helper()
	began := time.Now()
	for synctest.Wait(); !ok(); synctest.Wait() {
		require.Less(f.t, time.Since(began), patience)
		time.Sleep(50 * time.Millisecond)
	}
}
