package agenda

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/models/settings"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/dispatch"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/policy"
)

const patience = 5 * time.Minute

// idleAdapter is an adapter that is never called.
type idleAdapter struct{ models.Adapter }

func (idleAdapter) MaxRecipients() int { return 1000 }

// cluster is a cluster of a size that the test sets.
type cluster struct{ size atomic.Int64 }

func (c *cluster) Share() (provider.Share, bool) {
	return provider.Share{Size: int(c.size.Load())}, true
}

func (*cluster) NoteGone(time.Time) {}

func (*cluster) GoneSince() time.Time { return time.Time{} }

// inbox is an inbox whose oldest unprocessed post the test sets.
type inbox struct {
	oldest time.Time
	sweeps atomic.Int64
}

func (i *inbox) Sweep(_ context.Context, _ int, from, _ time.Time) (next, oldest time.Time, err error) {
	i.sweeps.Add(1)
	return from, i.oldest, nil
}

// nothing implements the evidence, the observer and the summaries, and does nothing.
type nothing struct{}

func (nothing) Answered(*dispatch.Chunk, *policy.Step, time.Time) bool { return true }

func (nothing) MayEndSoon(*dispatch.Chunk, *policy.Step, time.Time) bool { return false }

func (nothing) Called(*provider.Provider, *dispatch.Chunk, dispatch.Call) {}

func (nothing) Ended(*models.Entry) {}

func (nothing) Mark(string, models.ID, ...func()) {}

func (nothing) MarkChunk(*dispatch.Chunk) {}

// testConfig has times in which nothing becomes due by itself.
func testConfig() Config {
	return Config{
		Times: settings.Times{Recheck: time.Hour, IntakeGrace: time.Hour},
		Pace: settings.Pace{
			AgendaPoll: 20 * time.Millisecond,
			Lease:      15 * time.Second,
			InboxAge:   time.Hour,
		},
		Worker: models.NewUserID(),
		Logger: slog.New(slog.DiscardHandler),
	}
}

// fixture is an agenda that does nothing by itself, in a cluster of one worker with the
// provider sg.
type fixture struct {
	*Agenda
	store   models.Store
	broker  models.Broker
	cluster *cluster
	inbox   *inbox
}

func newFixture(t *testing.T, store models.Store, broker models.Broker, cfg Config) *fixture {
	t.Helper()
	providers, err := provider.NewSet(
		[]provider.Spec{{Adapter: idleAdapter{}, Provider: models.Provider{Name: "sg", Weight: 1, Concurrency: 1}}},
		&provider.Config{Pace: settings.Pace{Heartbeat: time.Second}, Logger: cfg.Logger},
		nil,
	)
	require.NoError(t, err)
	follower := control.NewFollower(store)
	decisions := policy.Config{MaxRetries: 10, Recheck: cfg.Recheck, Delays: []time.Duration{time.Second}}
	calls := dispatch.Config{
		Times: settings.Times{
			StartBy:     time.Second,
			Recheck:     cfg.Recheck,
			KeepContent: 24 * time.Hour,
		},
		Priority: priority.New(),
		Logger:   cfg.Logger,
	}
	chunks, outbox := dispatch.NewChunks(calls, store, follower), dispatch.NewOutbox(broker, nil, cfg.Logger)
	d := dispatch.New(calls, dispatch.Deps{
		Store:     store,
		Chunks:    chunks,
		Outbox:    outbox,
		Follower:  follower,
		Policy:    policy.New(decisions, []models.Provider{{Name: "sg"}}),
		Providers: providers,
		Observer:  nothing{},
		Evidence:  nothing{},
		Summaries: nothing{},
	})
	f := &fixture{store: store, broker: broker, cluster: &cluster{}, inbox: &inbox{}}
	f.cluster.size.Store(1)
	f.Agenda = New(cfg, Deps{
		Store:     store,
		Broker:    broker,
		Follower:  follower,
		Providers: providers,
		Members:   f.cluster,
		Chunks:    chunks,
		Outbox:    outbox,
		Dispatch:  d,
		Inbox:     f.inbox,
		Summaries: nothing{},
		Ages:      NewQueueAges(store, broker, cfg.Worker),
	})
	return f
}

// run runs the agenda until stop is called.
func (f *fixture) run(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	go func() { f.RunLeases(ctx); close(stopped) }()
	ran := make(chan struct{})
	go func() { f.Run(ctx); close(ran) }()
	stop = func() { cancel(); <-ran; <-stopped }
	t.Cleanup(stop)
	return stop
}

// held returns how many shards this worker holds.
func (f *fixture) held() (n int) {
	for _, s := range f.shards {
		if s.held.Load() {
			n++
		}
	}
	return n
}

// put stores a batch of one recipient that is not announced, with an agenda entry.
func (f *fixture) put(t *testing.T, lane models.Lane, due time.Time) models.ID {
	t.Helper()
	return f.putBatch(t, due, func(b *models.Batch) { b.Lane = lane })
}

// putBatch stores a batch of one recipient as change leaves it.
func (f *fixture) putBatch(t *testing.T, due time.Time, change func(*models.Batch)) models.ID {
	t.Helper()
	now := time.Now()
	b := models.Batch{
		ID:         models.NewBatchID(now),
		User:       models.NewUserID(),
		Content:    models.Content{From: models.Address{Email: "a@b.c"}, Subject: "s", Text: "t"},
		Lane:       models.Bulk,
		OnUnknown:  models.Hold,
		Recipients: 1,
		Chunks:     1,
		ExpiresAt:  now.Add(100 * time.Hour),
	}
	change(&b)
	entry := models.AgendaEntry{Due: due, Kind: models.LookAtBatch, ID: b.ID, User: b.User, Chunks: 1, Lane: b.Lane}
	require.NoError(t, f.store.Schedule(t.Context(), entry))
	require.NoError(
		t,
		f.store.PutBatch(t.Context(), b, models.Chunk{ID: b.ID, Recipients: []models.Recipient{{Email: "u@x.test"}}}),
	)
	return b.ID
}

// announced returns how many batch messages wait, by lane.
func (f *fixture) announced(t *testing.T) map[models.Lane]int {
	t.Helper()
	depths, err := f.broker.Depths(t.Context())
	require.NoError(t, err)
	out := map[models.Lane]int{}
	for _, d := range depths {
		if d.Queue.Kind == models.BatchMessage {
			out[d.Queue.Lane] += d.Ready
		}
	}
	return out
}
