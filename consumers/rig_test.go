package consumers

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/safedelivr/safedelivr/models/settings"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/inproc"
	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store/memory"
)

func TestMain(m *testing.M) { testkit.VerifyNoLeaks(m) }

// patience is how long a test waits for something that should happen soon.
const patience = 5 * time.Minute

// scripted is a provider with answers of the test.
type scripted struct {
	models.Adapter
	name   string
	mu     sync.Mutex
	calls  []*models.Call
	copies map[models.ID]int // accepted copies by log
	answer func(ctx context.Context, c *models.Call) []models.Part
}

// newScripted returns a provider that gives answer to each call.
func newScripted(name string, answer func(ctx context.Context, c *models.Call) []models.Part) *scripted {
	return &scripted{name: name, copies: map[models.ID]int{}, answer: answer}
}

func (p *scripted) Send(ctx context.Context, c *models.Call) []models.Part {
	p.mu.Lock()
	p.calls = append(p.calls, c)
	p.mu.Unlock()
	parts := p.answer(ctx, c)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, part := range parts {
		for i := range c.Recipients {
			if part.Class == models.Accepted && part.Recipients.Has(c.Recipients[i].Log.Recipient()) {
				p.copies[c.Recipients[i].Log]++
			}
		}
	}
	return parts
}

func (p *scripted) MaxRecipients() int { return 1000 }

// Parse parses a list of events as JSON.
func (p *scripted) Parse(body []byte) models.Parsed {
	var out models.Parsed
	if err := json.Unmarshal(body, &out.Events); err != nil {
		out.Skipped = append(out.Skipped, "not JSON")
	}
	return out
}
func (p *scripted) Close() {}

// count returns how many calls were made.
func (p *scripted) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.calls)
}

// copiesOf returns how many copies of a log the provider has accepted.
func (p *scripted) copiesOf(log models.ID) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.copies[log]
}

// part returns an answer of one class to all recipients of a call.
func part(class models.Class, c *models.Call) []models.Part {
	return []models.Part{{Class: class, Recipients: c.Numbers()}}
}

// always returns the function that gives the same answer to each call.
func always(class models.Class) func(context.Context, *models.Call) []models.Part {
	return func(_ context.Context, c *models.Call) []models.Part { return part(class, c) }
}

// rig is an engine on the embedded backends.
type rig struct {
	t      *testing.T
	net    *testkit.Network
	store  models.Store
	broker models.Broker
	engine *Engine
	user   string
	stop   func() // stops the newest worker
}

// fast returns a configuration with short times.
func fast() Config {
	return Config{
		Times: settings.Times{
			StartBy:        5 * time.Second,
			EvidenceWindow: time.Hour,
			Recheck:        200 * time.Millisecond,
			BreakerOpen:    50 * time.Millisecond,
			Hold:           100 * time.Millisecond,
		},
		Limits: settings.Limits{Retries: 10},
		Pace: settings.Pace{
			Renewal:     20 * time.Millisecond,
			AgendaPoll:  20 * time.Millisecond,
			InboxAge:    200 * time.Millisecond,
			Heartbeat:   50 * time.Millisecond,
			LookUpPause: 100 * time.Millisecond,
		},
		Delays: []time.Duration{10 * time.Millisecond},
	}
}

// newRig returns a rig with a running worker. wrap, if not nil, wraps the store.
func newRig(t *testing.T, cfg Config, wrap func(models.Store) models.Store, providers ...*scripted) *rig {
	t.Helper()
	names := make([]string, len(providers))
	for i, p := range providers {
		names[i] = p.name
	}
	r := emptyRig(t, wrap, names...)
	r.engine = r.worker(cfg, providers...)
	return r
}

// emptyRig returns a rig without a worker, whose broker knows the providers names.
func emptyRig(t *testing.T, wrap func(models.Store) models.Store, names ...string) *rig {
	t.Helper()
	store, broker := memory.Open(t), inproctest.New(t, names...)
	r := &rig{t: t, net: testkit.NewNetwork(t), store: store, broker: broker, user: models.NewUserID()}
	if wrap != nil {
		r.store = wrap(store)
	}
	return r
}

// specOf returns a provider that reports events.
func specOf(a models.Adapter, name string, timeout time.Duration) provider.Spec {
	return provider.Spec{
		Adapter: a,
		Provider: models.Provider{
			Name:        name,
			Weight:      1,
			Concurrency: 4,
			ChunkLimit:  1000,
			Timeout:     timeout,
			Events:      models.EventsWebhook,
		},
	}
}

// worker starts a worker whose providers report no events.
func (r *rig) worker(cfg Config, adapters ...*scripted) *Engine {
	r.t.Helper()
	providers := make([]provider.Spec, len(adapters))
	for i, p := range adapters {
		providers[i] = provider.Spec{
			Adapter: p,
			Provider: models.Provider{Name: p.name, Weight: 1, Concurrency: 4, ChunkLimit: 1000,
				Timeout: time.Second, Events: models.EventsNone},
		}
	}
	return r.start(cfg, providers)
}

// start starts a worker.
func (r *rig) start(cfg Config, providers []provider.Spec) *Engine {
	r.t.Helper()
	e, err := New(r.store, r.broker, providers, cfg)
	require.NoError(r.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx, 5*time.Second) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(r.t, <-done)
	})
	r.t.Cleanup(r.stop)
	return e
}

// batch stores a batch of n recipients. change, if not nil, changes it before.
func (r *rig) batch(n int, announce bool, change func(*models.Batch, []models.Recipient)) *models.Batch {
	r.t.Helper()
	ctx := context.Background()
	now := time.Now()
	b := models.Batch{
		ID:         models.NewBatchID(now),
		User:       r.user,
		Content:    models.Content{From: models.Address{Email: "a@b.c"}, Subject: "s", Text: "t"},
		Lane:       models.Bulk,
		OnUnknown:  models.Hold,
		Recipients: n,
		Chunks:     1,
		ExpiresAt:  now.Add(time.Hour),
	}
	rs := make([]models.Recipient, n)
	for i := range rs {
		rs[i].Email = fmt.Sprintf("u%d@x.test", i+1)
	}
	if change != nil {
		change(&b, rs)
	}
	require.NoError(
		r.t,
		r.store.Schedule(
			ctx,
			models.AgendaEntry{
				Due:    now.Add(200 * time.Millisecond),
				Kind:   models.LookAtBatch,
				ID:     b.ID,
				User:   b.User,
				Chunks: 1,
			},
		),
	)
	require.NoError(r.t, r.store.PutBatch(ctx, b, models.Chunk{ID: b.ID, Recipients: rs}))
	if announce {
		require.NoError(r.t, r.broker.Publish(ctx, models.Message{Kind: models.BatchMessage, ID: b.ID, Lane: b.Lane}))
	}
	return &b
}

// view returns what the store knows of a batch of one chunk.
func (r *rig) view(b *models.Batch) *models.View {
	r.t.Helper()
	entries, facts, err := r.store.Record(context.Background(), b.ID)
	require.NoError(r.t, err)
	return models.Resolve(b.Recipients, entries, facts)
}

// until waits until ok, in the time of a bubble.
func (r *rig) until(ok func() bool) {
	r.t.Helper()
	began := time.Now()
	for synctest.Wait(); !ok(); synctest.Wait() {
		require.Less(r.t, time.Since(began), patience)
		time.Sleep(5 * time.Millisecond)
	}
}

// open returns how many logs of a view are queued or sent.
func open(v *models.View) int64 {
	s := v.Summary()
	return s.Open()
}

// done waits until no log of a batch is open, and returns its view.
func (r *rig) done(b *models.Batch) *models.View {
	r.t.Helper()
	r.until(func() bool {
		s := r.view(b).Summary()
		require.True(r.t, s.Balanced())
		return s.Open() == 0
	})
	return r.view(b)
}

// inLine reports whether mail of a lane waits for a slot of a provider.
func (r *rig) inLine(name string, lane models.Lane) bool {
	return r.engine.providers.Get(name).Slots.Waiting(lane) > 0
}

// known stores the rig's user, for tests of what is done for each user.
func (r *rig) known() {
	r.t.Helper()
	require.NoError(
		r.t,
		r.store.CreateUser(
			r.t.Context(),
			models.User{ID: r.user, Name: "u", Created: time.Now().UTC().Truncate(time.Millisecond)},
		),
	)
}

// taken waits until a provider has accepted the last recipient of a batch.
func (r *rig) taken(b *models.Batch) {
	r.t.Helper()
	r.until(func() bool { return r.view(b).Status(b.Recipients).Last.Verdict == models.VerdictAccepted })
}

// newBrokerFor returns a broker with other providers.
func newBrokerFor(r *rig, names ...string) (models.Broker, error) {
	b, err := inproc.New(names, nil)
	if err == nil {
		r.t.Cleanup(func() { _ = b.Close() })
	}
	return b, err
}

// idle reports whether no message waits or is being handled.
func (r *rig) idle() bool {
	r.t.Helper()
	depths, err := r.broker.Depths(context.Background())
	require.NoError(r.t, err)
	n := 0
	for _, d := range depths {
		n += d.Ready + d.Unacked
	}
	return n == 0
}

// event stores a post with one event and announces it.
func (r *rig) event(provider string, log models.ID, ev models.Event) models.ID {
	r.t.Helper()
	return r.inbox(
		models.Inbox{ID: models.NewInboxID(time.Now()), Provider: provider, Posts: []models.Post{postOf(r.t, "", log, ev)}},
	)
}

// postOf returns a post with one event and a replay token.
func postOf(t *testing.T, token string, log models.ID, ev models.Event) models.Post {
	t.Helper()
	body, err := json.Marshal([]models.ParsedEvent{{Log: log, Event: ev}})
	require.NoError(t, err)
	return models.Post{Body: body, Replay: token}
}

// unsettled returns a rig with a batch of n recipients that has an unknown outcome at the
// provider sg.
func unsettled(t *testing.T, n int) (*rig, *models.Batch) {
	t.Helper()
	r := newRig(t, fast(), nil, newScripted("sg", always(models.Unknown)))
	b := r.batch(n, true, nil)
	r.until(func() bool { return len(r.view(b).Entries) == 1 })
	return r, b
}

// inbox stores an entry of the inbox and announces it.
func (r *rig) inbox(in models.Inbox) models.ID {
	r.t.Helper()
	require.NoError(r.t, r.store.PutInbox(context.Background(), in))
	require.NoError(
		r.t,
		r.broker.Publish(context.Background(), models.Message{Kind: models.EventMessage, Provider: in.Provider, ID: in.ID}),
	)
	return in.ID
}

// rejectKey makes a call that the provider answers by rejecting the key.
func rejectKey(h *provider.Health) {
	if done, ok := h.Begin("a.test", 1); ok {
		done([]models.Part{{Class: models.AccountClass, Recipients: models.SetOf(1)}}, time.Millisecond)
	}
}
