package rollup

import (
	"log/slog"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/models/settings"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/dispatch"
	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store/memory"
)

// fixture is a Rollup that does nothing by itself, with one user.
type fixture struct {
	*testing.T
	*Rollup
	store models.Store
	user  string
	tags  []string // of batches
}

// newFixture returns a fixture on an embedded store. wrap, if not nil, wraps the store.
func newFixture(t *testing.T, wrap func(models.Store) models.Store) *fixture {
	t.Helper()
	f := &fixture{T: t, store: memory.Open(t), user: models.NewUserID()}
	if wrap != nil {
		f.store = wrap(f.store)
	}
	u := models.User{ID: f.user, Name: "u", Created: time.Now().UTC().Truncate(time.Millisecond)}
	require.NoError(t, f.store.CreateUser(t.Context(), u))
	f.restart()
	return f
}

// restart replaces the Rollup by that of another worker.
func (f *fixture) restart() {
	log := slog.New(slog.DiscardHandler)
	reads := dispatch.Config{Times: settings.Times{KeepContent: time.Hour}, Priority: priority.New(), Logger: log}
	cfg := Config{Times: settings.Times{KeepContent: time.Hour}, Pace: settings.Pace{SumsPoll: time.Hour}, Logger: log}
	f.Rollup = New(cfg, f.store, dispatch.NewChunks(reads, f.store, nil), func(*Round) {})
}

// delivered stores a batch of n recipients that a provider has accepted for good, and its
// sums.
func (f *fixture) delivered(n int) *models.Batch {
	f.Helper()
	return f.deliveredAt(n, time.Now())
}

// deliveredAt is delivered for a batch that was accepted at a time.
func (f *fixture) deliveredAt(n int, now time.Time) *models.Batch {
	f.Helper()
	ctx := f.Context()
	b := models.Batch{
		ID:         models.NewBatchID(now),
		User:       f.user,
		Lane:       models.Bulk,
		OnUnknown:  models.Hold,
		Recipients: n,
		Chunks:     1,
		ExpiresAt:  now.Add(time.Hour),
	}
	b.Content.Tags = f.tags
	b.SetGroups()
	require.NoError(f, f.store.PutBatch(ctx, b, models.Chunk{ID: b.ID, Recipients: make([]models.Recipient, n)}))
	require.NoError(f, f.store.Append(ctx, b.ID, models.Entry{
		Number:     1,
		Token:      models.NewToken(),
		Kind:       models.Attempt,
		Provider:   "sg",
		Recipients: models.SetTo(n),
		At:         now.UTC(),
		CallEnds:   now.UTC(),
	}))
	parts := []models.Part{{Class: models.Accepted, Recipients: models.SetTo(n), Final: true}}
	require.NoError(f, f.store.PutFacts(ctx, models.ChunkFact{Chunk: b.ID, Fact: models.Fact{
		Key:     models.OutcomeKey(1),
		Outcome: &models.Outcome{Attempt: 1, At: now.UTC(), Parts: parts},
	}}))
	f.Mark(f.user, b.ID)
	require.NoError(f, f.Flush(ctx))
	return &b
}

// stored returns the stored summary of a batch of one chunk.
func (f *fixture) stored(b *models.Batch) models.Summary {
	f.Helper()
	for s, err := range f.store.Summaries(f.Context(), f.user, b.ID, 0) {
		require.NoError(f, err)
		return s.Summary
	}
	f.Fatal("no summary is stored")
	return models.Summary{}
}

// put stores the summary of a batch of one chunk, over a stored one of any version.
func (f *fixture) put(b *models.Batch, sum models.Summary) {
	f.Helper()
	memory.Forget(f, f.store, f.user, b.ID)
	require.NoError(f, f.store.PutSummaries(f.Context(), models.ChunkSummary{User: f.user, Chunk: b.ID, Summary: sum}))
}

// lie stores a wrong summary of a batch with the version of the right one, which it
// returns.
func (f *fixture) lie(b *models.Batch) (truth models.Summary) {
	f.Helper()
	truth = f.stored(b)
	wrong := truth
	wrong.Success, wrong.Failed = 0, truth.Success
	f.put(b, wrong)
	return truth
}

// rollUp renews the sums of some levels above a batch.
func (f *fixture) rollUp(b *models.Batch, levels ...models.Level) {
	f.Helper()
	for _, level := range levels {
		memory.Forget(f, f.store, f.user, b.ID, level)
		err := f.store.RollUp(f.Context(), models.SpanOf(f.user, level, b.Created()))
		require.NoError(f, err)
	}
}
