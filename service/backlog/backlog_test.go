package backlog

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store/memory"
)

var now = time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)

// TestLines: mail of one lane that waits for the same is one line, with what its oldest batch says and the first time
// at which some of it is tried again.
func TestLines(t *testing.T) {
	t.Parallel()
	ids := make([]models.ID, 7)
	for i := range ids {
		ids[i] = models.NewBatchID(now)
	}
	old, older := now.Add(-time.Minute), now.Add(-time.Hour)
	soon, later := now.Add(time.Minute), now.Add(time.Hour)
	down := func(text string, until time.Time) models.Wait {
		return models.Wait{Code: models.WaitProviderSuspend, Provider: "sg", Text: text, Until: until}
	}
	scheduled := models.Wait{Code: models.WaitSchedule, Text: "its time", Until: later}
	stopped := models.Wait{Code: models.WaitBatchStopped, Text: "stopped"}
	batches := map[models.ID]Batch{
		ids[0]: {ids[0], models.Bulk, 10, down("newer", later), old},
		ids[1]: {ids[1], models.Bulk, 20, down("older", time.Time{}), older},
		ids[2]: {ids[2], models.Bulk, 30, down("newest", soon), now},
		ids[3]: {ids[3], models.Urgent, 1, down("urgent", soon), old},
		ids[4]: {ids[4], models.Urgent, 2, scheduled, time.Time{}},
		ids[5]: {ids[5], models.Bulk, 3, stopped, older.Add(-time.Hour)},
	}
	var b Backlog
	require.NoError(t, b.look(t.Context(), ids, func(_ context.Context, id models.ID) (Batch, bool, error) {
		one, waits := batches[id]
		return one, waits, nil // the last is sent meanwhile
	}))
	mg := Batch{ids[6], models.Urgent, 4, models.Wait{Code: models.WaitProviderSuspend, Provider: "mg"}, now}
	b.add(&mg)
	require.Equal(t, Line{
		Lane: models.Urgent, Code: models.WaitProviderSuspend, Provider: "mg", Recipients: 4, Batches: 1, Since: now,
		Oldest: ids[6],
	}, b.Lines[4], "another provider is another line")
	b.Lines = b.Lines[:4]
	require.Equal(t, []Line{
		{models.Urgent, models.WaitProviderSuspend, "sg", 1, 1, old, soon, "urgent", ids[3]},
		{models.Urgent, models.WaitSchedule, "", 2, 1, time.Time{}, later, "its time", ids[4]},
		{models.Bulk, models.WaitBatchStopped, "", 3, 1, older.Add(-time.Hour), time.Time{}, "stopped", ids[5]},
		{models.Bulk, models.WaitProviderSuspend, "sg", 60, 3, older, soon, "older", ids[1]},
	}, b.Lines)

	oldest, ok := b.Oldest(models.Bulk)
	require.True(t, ok)
	require.Equal(t, ids[1], oldest.Oldest, "a command withholds what is older")
	oldest, ok = b.Oldest(models.Urgent)
	require.True(t, ok)
	require.Equal(t, ids[3], oldest.Oldest)
	b.Lines = b.Lines[1:3]
	_, ok = b.Oldest(models.Urgent)
	require.False(t, ok, "its time has not come")
}

// TestByReason: the lines of several providers are one sum.
func TestByReason(t *testing.T) {
	t.Parallel()
	b := Backlog{Lines: []Line{
		{Lane: models.Bulk, Code: models.WaitProviderSuspend, Provider: "sg", Recipients: 1, Since: now},
		{Lane: models.Bulk, Code: models.WaitProviderSuspend, Provider: "mg", Recipients: 2, Since: now.Add(-time.Hour)},
		{Lane: models.Urgent, Code: models.WaitProviderSuspend, Provider: "mg", Recipients: 4},
	}}
	sums := b.ByReason()
	require.Len(t, sums, 2)
	bulk := sums[Reason{models.Bulk, models.WaitProviderSuspend}]
	require.EqualValues(t, 3, bulk.Recipients)
	require.Equal(t, now.Add(-time.Hour), bulk.Since)
	require.EqualValues(t, 4, sums[Reason{models.Urgent, models.WaitProviderSuspend}].Recipients)
}

// store stores n batches of a user, a second apart, the newest now, each with one queued recipient.
func store(t *testing.T, s *memory.Store, user string, n int) (ids []models.ID) {
	t.Helper()
	ctx := t.Context()
	for i := range n {
		at := now.Add(time.Duration(i+1-n) * time.Second)
		b := models.Batch{
			ID: models.NewBatchID(at), User: user, Recipients: 1, Chunks: 1, Lane: models.Bulk, OnUnknown: models.Hold,
			Content: models.Content{From: models.Address{Email: "a@b.c"}, Subject: "s", Text: "t"}, ExpiresAt: at.Add(time.Hour),
		}
		chunk := models.Chunk{ID: b.ID, Recipients: []models.Recipient{{Email: "a@x.test"}}}
		require.NoError(t, s.PutBatch(ctx, b, chunk))
		sum := models.Resolve(1, nil, nil).SummaryOf(b.ID, nil)
		require.NoError(t, s.PutSummaries(ctx, models.ChunkSummary{User: user, Chunk: b.ID, Summary: sum}))
		err := s.RollUp(ctx, models.SpanOf(user, models.Second, at))
		require.NoError(t, err)
		ids = append(ids, b.ID)
	}
	for _, level := range models.Levels[1:] {
		spans := map[models.Span]bool{}
		for _, id := range ids {
			spans[models.SpanOf(user, level, id.Time())] = true
		}
		for span := range spans {
			err := s.RollUp(ctx, span)
			require.NoError(t, err)
		}
	}
	return ids
}

// TestReadIsBounded: of a long backlog the oldest and the newest batches are looked at, each once, and the sums count
// all.
func TestReadIsBounded(t *testing.T) {
	t.Parallel()
	for n, partial := range map[int]bool{3: false, side: false, 2*side + 5: true} {
		s := memory.Open(t)
		ids := store(t, s, "ann", n)
		store(t, s, "bob", 1)
		var mu sync.Mutex
		looked := map[models.ID]int{}
		b, err := Read(t.Context(), s, []string{"ann", "cat"}, now.AddDate(0, 0, -1), now,
			func(_ context.Context, id models.ID) (Batch, bool, error) {
				mu.Lock()
				defer mu.Unlock()
				looked[id]++
				return Batch{ID: id, Lane: models.Bulk, Recipients: 1, Since: id.Time()}, true, nil
			})
		require.NoError(t, err)
		require.EqualValues(t, n, b.Queued)
		require.Equal(t, partial, b.Partial)
		require.Len(t, looked, min(n, 2*side))
		for i, id := range ids {
			want := 1
			if i >= side && i < n-side {
				want = 0
			}
			require.Equal(t, want, looked[id], "batch %d of %d", i, n)
		}
		require.Equal(t, len(looked), b.Lines[0].Batches)
		require.Equal(t, ids[0], b.Lines[0].Oldest)
	}
}
