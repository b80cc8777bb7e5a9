package dispatch

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/models/settings"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/policy"
	"github.com/safedelivr/safedelivr/models/suppression"
	"github.com/safedelivr/safedelivr/store/memory"
)

const evidenceWindow = time.Millisecond

// adapter is a provider with an answer of the test.
type adapter struct {
	models.Adapter
	answer models.Class
	files  [][]byte // of the last call
	mu     sync.Mutex
	calls  []*models.Call
}

func (*adapter) MaxRecipients() int { return 1000 }

func (a *adapter) Send(_ context.Context, c *models.Call) []models.Part {
	a.mu.Lock()
	a.files = c.Files
	a.calls = append(a.calls, c)
	a.mu.Unlock()
	return []models.Part{{Class: a.answer, Recipients: c.Numbers(), Final: a.answer == models.Accepted}}
}

// alone is a worker without peers.
type alone struct{}

func (alone) Share() (provider.Share, bool) { return provider.Share{Size: 1}, true }

func (alone) MaxCalls(_ string, n int, _ provider.Share) int { return n }

// nothing implements the evidence, the summaries and the observer, and does nothing.
type nothing struct{}

func (nothing) Answered(*Chunk, *policy.Step, time.Time) bool { return true }

func (nothing) MayEndSoon(*Chunk, *policy.Step, time.Time) bool { return false }

func (nothing) Mark(string, models.ID, ...func()) {}

func (nothing) MarkChunk(*Chunk) {}

func (nothing) Called(*provider.Provider, *Chunk, Call) {}

func (nothing) Ended(*models.Entry) {}

// fixture is a dispatcher on the embedded backends that handles no message by itself.
type fixture struct {
	*Dispatcher
	store models.Store
}

// newFixture returns a fixture with a provider for each name. They give the same answer.
func newFixture(t *testing.T, answer models.Class, names ...string) *fixture {
	t.Helper()
	specs := make([]provider.Spec, len(names))
	for i, name := range names {
		specs[i] = provider.Spec{Adapter: &adapter{answer: answer}, Provider: models.Provider{
			Name:        name,
			Weight:      1,
			Concurrency: 4,
			ChunkLimit:  1000,
			Timeout:     time.Second,
			Events:      models.EventsNone,
			Carries:     models.Capabilities{Attachments: true, Size: 25_000_000},
		}}
	}
	return fixtureOf(t, evidenceWindow, specs)
}

// fixtureOf returns a fixture with some providers, and a time for which evidence is waited for.
func fixtureOf(t *testing.T, window time.Duration, specs []provider.Spec) *fixture {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	names, configured := make([]string, len(specs)), make([]models.Provider, len(specs))
	for i := range specs {
		names[i], configured[i] = specs[i].Name, specs[i].Provider
	}
	health := &provider.Config{
		Times:      settings.Times{Hold: time.Minute, BreakerOpen: time.Second},
		Pace:       settings.Pace{Heartbeat: time.Second, SlowCall: time.Minute},
		FirstDelay: time.Second,
		Logger:     log,
	}
	providers, err := provider.NewSet(specs, health, alone{})
	require.NoError(t, err)
	store := memory.Open(t)
	decisions := policy.Config{
		MaxRetries:     10,
		Recheck:        time.Minute,
		EvidenceWindow: window,
		FinalEventWait: time.Hour,
		Delays:         []time.Duration{time.Second},
	}
	cfg := Config{
		Times: settings.Times{
			StartBy:     5 * time.Second,
			Recheck:     time.Minute,
			KeepContent: time.Hour,
		},
		Worker:   models.NewUserID(),
		Priority: priority.New(),
		Logger:   log,
	}
	follower, work := control.NewFollower(store), NewWork()
	d := New(cfg, Deps{
		Store:        store,
		Chunks:       NewChunks(cfg, store, follower),
		Outbox:       NewOutbox(inproctest.New(t, names...), nil, log),
		Work:         work,
		Follower:     follower,
		Suppressions: suppression.New(store, suppression.DefaultMemory),
		Policy:       policy.New(decisions, configured),
		Providers:    providers,
		Observer:     nothing{},
		Evidence:     nothing{},
		Summaries:    nothing{},
	})
	t.Cleanup(func() {
		work.Stop()
		work.Wait()
	})
	return &fixture{d, store}
}

// batch stores a batch of n recipients.
func (f *fixture) batch(t *testing.T, n int, onUnknown models.UnknownPolicy) *models.Batch {
	t.Helper()
	return f.batchWith(t, n, onUnknown, func(*models.Batch) {})
}

// batchWith stores a batch of n recipients after prepare has changed it.
func (f *fixture) batchWith(
	t *testing.T, n int, onUnknown models.UnknownPolicy, prepare func(*models.Batch),
) *models.Batch {
	t.Helper()
	now := time.Now()
	b := models.Batch{
		ID:         models.NewBatchID(now),
		User:       models.NewUserID(),
		Content:    models.Content{From: models.Address{Email: "a@b.c"}, Subject: "s", Text: "t"},
		Lane:       models.Bulk,
		OnUnknown:  onUnknown,
		Recipients: n,
		Chunks:     1,
		ExpiresAt:  now.Add(time.Hour),
	}
	prepare(&b)
	to := make([]models.Recipient, n)
	for i := range to {
		to[i].Email = fmt.Sprintf("u%d@x.test", i+1)
	}
	require.NoError(t, f.store.PutBatch(t.Context(), b, models.Chunk{ID: b.ID, Recipients: to}))
	return &b
}

// attempted appends attempt 1 at a provider, whose call has ended without an answer.
func (f *fixture) attempted(t *testing.T, b *models.Batch, provider string) {
	t.Helper()
	at := time.Now().Add(-time.Second).UTC()
	require.NoError(t, f.store.Append(t.Context(), b.ID, models.Entry{
		Number:     1,
		Token:      models.NewToken(),
		Kind:       models.Attempt,
		Provider:   provider,
		Recipients: models.SetTo(b.Recipients),
		At:         at,
		CallEnds:   at,
	}))
}
