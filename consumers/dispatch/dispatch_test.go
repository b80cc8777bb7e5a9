package dispatch

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// TestChunkIsReadBeforeDoubtfulDecision: before a decision about mail that a provider may
// have, the chunk is read again, so that an event that arrived meanwhile counts.
func TestChunkIsReadBeforeDoubtfulDecision(t *testing.T) {
	t.Parallel()
	for _, onUnknown := range []models.UnknownPolicy{models.Hold, models.Resend} {
		f := newFixture(t, models.Accepted, "sg", "mg")
		b := f.batch(t, 1, onUnknown)
		f.attempted(t, b, "sg")
		c, err := f.Chunks.Load(t.Context(), b.ID)
		require.NoError(t, err)
		ev := models.Event{ID: "1", Recipient: 1, Attempt: 1, Provider: "sg", Kind: models.Delivered, At: time.Now()}
		fact := models.Fact{Key: models.EventsKey(models.NewInboxID(time.Now())), Events: []models.Event{ev}}
		require.NoError(t, f.store.PutFacts(t.Context(), models.ChunkFact{Chunk: b.ID, Fact: fact}))
		now := time.Now()
		c.read = now.Add(-maxStale / 2)
		steps, err := f.planner.decide(t.Context(), c, now)
		require.NoError(t, err)
		require.True(t, steps[0].InDoubt(), "by what was read before")
		steps, err = f.planner.plan(t.Context(), c, now)
		require.NoError(t, err)
		require.Empty(t, steps, onUnknown)
	}
}

// TestMessageIDAtProvider: a provider that sets the Message-ID of mail itself gets that of the sender in References.
func TestMessageIDAtProvider(t *testing.T) {
	t.Parallel()
	own := []models.Header{{Name: "Message-ID", Value: "<1@b.c>"}}
	for keeps, want := range map[bool][]models.Header{true: own, false: {{Name: "References", Value: "<1@b.c>"}}} {
		f := newFixture(t, models.Accepted, "sg")
		sg := f.Providers.Get("sg")
		sg.Carries.MessageID = keeps
		b := f.batchWith(t, 1, models.Hold, func(b *models.Batch) { b.Content.Headers = own })
		require.True(t, f.HandleBatch(t.Context(), models.Message{Kind: models.BatchMessage, ID: b.ID}).IsDone())
		a, ok := sg.Adapter.(*adapter)
		require.True(t, ok)
		require.Equal(t, want, a.calls[0].Content.Headers)
		stored, err := f.store.Batch(t.Context(), b.ID)
		require.NoError(t, err)
		require.Equal(t, own, stored.Content.Headers)
	}
}

// TestHandlerEndsItsRun: no key stays in flight after a message was handled, or when its
// handler stops.
func TestHandlerEndsItsRun(t *testing.T) {
	t.Parallel()
	f := newFixture(t, models.Accepted, "sg")
	b := f.batch(t, 2, models.Hold)
	stopped, stop := context.WithCancel(t.Context())
	stop()
	m := models.Message{Kind: models.ProviderMessage, Provider: "sg", Lane: b.Lane, ID: b.ID}
	require.False(t, f.HandleProvider(stopped, m).IsDone())
	require.Empty(t, f.inflight.runs)
	require.Equal(t, models.Done(), f.HandleProvider(t.Context(), m))
	require.Empty(t, f.inflight.runs)
	c, err := f.Chunks.Load(t.Context(), b.ID)
	require.NoError(t, err)
	require.Equal(t, models.Success, c.View.Status(2).State)
}
