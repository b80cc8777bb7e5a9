package storetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

func purgeCases() []testCase {
	return []testCase{
		{"Purge/Batch", testPurge},
		{"Purge/Abandoned", testPurgeAbandoned},
		{"Purge/Sums", testDropSums},
	}
}

// testPurge purges one of two batches. The other one keeps everything.
func testPurge(t *testing.T, s models.Store) {
	ctx := t.Context()
	for _, chunks := range []int{1, 3} {
		u := newUser("purge").ID
		at := now().Add(-500 * 24 * time.Hour)
		gone, kept := newBatch(u, at, chunks), newBatch(u, at, chunks)
		for _, b := range []models.Batch{gone, kept} {
			accept(t, s, b)
			for n := range chunks {
				id := b.ID.Chunk(n)
				require.NoError(t, s.Append(ctx, id, attempt(1, "sg")))
				require.NoError(t, s.PutFacts(ctx, models.ChunkFact{Chunk: id, Fact: outcome(1)}))
				require.NoError(t, s.PutSummaries(ctx,
					models.ChunkSummary{User: u, Chunk: id, Summary: summary(2, 3, 0)}))
				require.NoError(t, s.PutPublished(ctx, published(id, 1)))
			}
		}
		require.NoError(t, s.Redact(ctx, gone.ID))
		for range 2 { // again does nothing more
			require.NoError(t, s.Purge(ctx, u, gone.ID))
			requireAbsent(t, s, gone)
			for n := range chunks {
				requireRecord(t, s, gone.ID.Chunk(n), nil, nil)
				ts, err := s.Published(ctx, gone.ID.Chunk(n), kept.ID.Chunk(n))
				require.NoError(t, err)
				require.Equal(t, []models.Published{published(kept.ID.Chunk(n), 1)}, ts)
			}
			require.Empty(t, summariesOf(t, s, u, gone.ID, 0))
			ids, err := s.BatchIDs(ctx, u, models.ID{}, 10)
			require.NoError(t, err)
			require.Equal(t, []models.ID{kept.ID}, ids)
		}
		requirePresent(t, s, kept)
		require.Len(t, summariesOf(t, s, u, kept.ID, 0), chunks)
		entries, facts, err := s.Record(ctx, kept.ID.Chunk(chunks-1))
		require.NoError(t, err)
		require.Len(t, entries, 1)
		require.Len(t, facts, 1)
	}
}

// testPurgeAbandoned purges a batch that never existed.
func testPurgeAbandoned(t *testing.T, s models.Store) {
	ctx := t.Context()
	b := newBatch(newUser("purge").ID, now(), 2)
	require.NoError(t, s.PutChunk(ctx, chunkOf(b, 1)))
	gone, err := s.AbandonBatch(ctx, b.ID, 2)
	require.NoError(t, err)
	require.True(t, gone)
	require.NoError(t, s.Purge(ctx, b.User, b.ID))
	requireAbsent(t, s, b)
}

// testDropSums drops the sums of a day. Those of the next day and the sum of the day stay.
func testDropSums(t *testing.T, s models.Store) {
	ctx := t.Context()
	u := newUser("sums").ID
	day := models.DayOf(now().Add(-500 * 24 * time.Hour))
	next := day.AddDate(0, 0, 1)
	times := []time.Time{day, day.Add(13*time.Hour + 7*time.Minute), next.Add(-time.Millisecond), next}
	for _, at := range times {
		require.NoError(t, s.PutSummaries(ctx,
			models.ChunkSummary{User: u, Chunk: models.NewBatchID(at), Summary: summary(1, 2, 0)}))
	}
	for _, level := range models.Levels {
		for _, at := range times {
			err := s.RollUp(ctx, models.SpanOf(u, level, at))
			require.NoError(t, err)
		}
	}
	for range 2 {
		require.NoError(t, s.DropSums(ctx, u, day.Add(5*time.Hour)))
		for _, level := range models.Levels {
			nodes, err := s.Nodes(ctx, u, level, day, next.AddDate(0, 0, 1))
			require.NoError(t, err)
			if level == models.Day {
				require.Len(t, nodes, 2)
				require.EqualValues(t, 6, nodes[0].Summary.Success)
				continue
			}
			require.Len(t, nodes, 1, "%s", level)
			require.Equal(t, next, nodes[0].Span.Start)
		}
	}
}

// testDropCommands removes old commands of a log with numbers up to last. It checks
// that followers take the rules instead, and that no number is given twice.
func testDropCommands(t *testing.T, s models.Store, last int) {
	ctx := t.Context()
	_, _, err := s.Rules(ctx)
	require.ErrorIs(t, err, models.ErrNotFound)
	require.ErrorIs(t, s.DropCommands(ctx, 1), models.ErrInvalid, "no rules are stored")
	behind, whole := control.NewFollower(s), control.NewFollower(s)
	first, err := s.Commands(ctx, 0, 1)
	require.NoError(t, err)
	for _, f := range []*control.Follower{behind, whole} {
		require.NoError(t, f.Sync(ctx))
	}
	more := models.Command{Kind: models.ProviderOffline, Provider: "dropped"}
	_, err = whole.Append(ctx, &more, nil)
	require.NoError(t, err)
	last++
	number, rules, err := whole.Rules().Snapshot(models.ID{})
	require.NoError(t, err)
	require.Equal(t, last, number)
	require.NoError(t, s.PutRules(ctx, number, rules))
	require.NoError(t, s.PutRules(ctx, number-1, []byte("older")), "changes nothing")
	got, raw, err := s.Rules(ctx)
	require.NoError(t, err)
	require.Equal(t, number, got)
	require.Equal(t, rules, raw)
	require.ErrorIs(t, s.DropCommands(ctx, number), models.ErrInvalid, "the newest command stays")
	for range 2 {
		require.NoError(t, s.DropCommands(ctx, number-1))
		left, err := s.Commands(ctx, 0, 1000)
		require.NoError(t, err)
		require.Len(t, left, 1)
		require.Equal(t, more, left[0])
	}
	for _, n := range []int{1, 2, number - 1} {
		require.ErrorIs(t, s.AppendCommand(ctx, command(n)), models.ErrInvalid, "number %d was removed", n)
	}
	require.Error(t, s.AppendCommand(ctx, first[0]), "a removed command again")
	started := control.NewFollower(s)
	for _, f := range []*control.Follower{behind, whole, started} {
		require.NoError(t, f.Sync(ctx))
		require.Equal(t, number, f.Rules().UpTo())
		require.Equal(t, models.ProviderOffline, f.Rules().Provider("dropped").Mode)
		require.True(t, f.Rules().Paused("3/4"))
	}
	end := models.Command{Kind: models.ResumeUser, User: "3/4"}
	_, err = started.Append(ctx, &end, nil)
	require.NoError(t, err)
	require.Equal(t, number+1, end.Number)
	require.NoError(t, behind.Sync(ctx))
	require.False(t, behind.Rules().Paused("3/4"))
}
