package storetest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

func summaryCases() []testCase {
	return []testCase{
		{"Summary/RoundTrip", testSummary},
		{"Summary/LowerVersionChangesNothing", testSummaryVersions},
		{"Summary/VersionsConcurrently", testSummaryVersionsConcurrent},
		{"Summary/RepairsOfOneVersion", testSummaryRepairs},
		{"Summary/InOrderOfChunks", testSummaryOrder},
		{"RollUp/Tree", testRollUpTree},
		{"RollUp/Grows", testRollUpGrows},
		{"RollUp/Concurrent", testRollUpConcurrent},
		{"RollUp/LateSumChangesNothing", testRollUpLate},
		{"RollUp/Nodes", testNodes},
		{"Summary/OfASecond", testSecondSummaries},
	}
}

// summariesOf returns the stored summaries of a batch from a chunk on.
func summariesOf(t *testing.T, s models.Store, user string, batch models.ID, from int) []models.ChunkSummary {
	t.Helper()
	return collect(t, s.Summaries(t.Context(), user, batch, from))
}

// testSecondSummaries reads the summaries of all batches of a second, and of no other.
func testSecondSummaries(t *testing.T, s models.Store) {
	user, second := models.NewUserID(), now().Truncate(time.Second)
	var want []models.ChunkSummary
	for _, off := range []time.Duration{-time.Millisecond, 0, 0, 999 * time.Millisecond, time.Second} {
		id := models.NewBatchID(second.Add(off))
		for n := range 2 {
			c := models.ChunkSummary{User: user, Chunk: id.Chunk(n), Summary: models.Summary{Version: 1, Accepted: 3, Queued: 3}}
			require.NoError(t, s.PutSummaries(t.Context(), c))
			other := c
			other.User = models.NewUserID()
			require.NoError(t, s.PutSummaries(t.Context(), other))
			if off >= 0 && off < time.Second {
				want = append(want, c)
			}
		}
	}
	slices.SortFunc(want, func(a, b models.ChunkSummary) int { return slices.Compare(a.Chunk[:], b.Chunk[:]) })
	require.Equal(t, want, collect(t, s.SecondSummaries(t.Context(), user, second.Add(500*time.Millisecond))))
}

func testSummary(t *testing.T, s models.Store) {
	user, id := models.NewUserID(), models.NewBatchID(now())
	require.Empty(t, summariesOf(t, s, user, id, 0))
	sum := models.Summary{
		Version:     1 << 40,
		Batches:     1,
		Accepted:    10,
		Queued:      1,
		Success:     2,
		Failed:      3,
		Cancelled:   4,
		Untried:     1,
		Unconfirmed: 1,
		Rerouted:    2,
		MayDouble:   3,
		Doubled:     1,
		Reasons:     map[models.Reason]int64{models.CancelledByRq: 3},
		Providers: map[string]models.ProviderCounts{"sg": {
			Tried:     6,
			Delivered: 1,
			Refused:   2,
			Failed:    1,
			Waiting:   1,
			Unknown:   1,
		}, "mg": {Tried: 1}},
	}
	want := models.ChunkSummary{User: user, Chunk: id, Summary: sum}
	for range 2 {
		require.NoError(t, s.PutSummaries(t.Context(), want))
		require.Equal(t, []models.ChunkSummary{want}, summariesOf(t, s, user, id, 0))
	}
	require.Empty(t, summariesOf(t, s, user, id, 1))
	require.Empty(t, summariesOf(t, s, models.NewUserID(), id, 0))
	require.Empty(t, summariesOf(t, s, user, models.NewBatchID(id.Time()), 0))
}

func testSummaryVersions(t *testing.T, s models.Store) {
	user, id := models.NewUserID(), models.NewBatchID(now())
	high := int64(0)
	for _, v := range []int64{3, 1, 2, 3, 9, 4, 8, 10, 1} {
		high = max(high, v)
		require.NoError(t, s.PutSummaries(t.Context(),
			models.ChunkSummary{User: user, Chunk: id, Summary: summary(v, v, 100-v)}))
		require.Equal(t, []models.ChunkSummary{{User: user, Chunk: id, Summary: summary(high, high, 100-high)}},
			summariesOf(t, s, user, id, 0))
	}
}

// testSummaryRepairs replaces a wrong sum by a repaired one with the same version, which may
// count less. The sums above it must change, too, and the wrong sum must not come back.
func testSummaryRepairs(t *testing.T, s models.Store) {
	user, id := models.NewUserID(), models.NewBatchID(now())
	put := func(version, repairs, success int64) models.Summary {
		sum := summary(version, success, 9-success)
		sum.Repairs = repairs
		require.NoError(t, s.PutSummaries(t.Context(), models.ChunkSummary{User: user, Chunk: id, Summary: sum}))
		for _, level := range models.Levels {
			err := s.RollUp(t.Context(), models.SpanOf(user, level, id.Time()))
			require.NoError(t, err)
		}
		return sum
	}
	requireStored := func(want models.Summary) {
		t.Helper()
		require.Equal(t, []models.ChunkSummary{{User: user, Chunk: id, Summary: want}}, summariesOf(t, s, user, id, 0))
		for _, level := range models.Levels {
			nodes, err := s.Nodes(t.Context(), user, level, id.Time().AddDate(0, 0, -1), id.Time().AddDate(0, 0, 1))
			require.NoError(t, err)
			require.Len(t, nodes, 1)
			require.Equal(t, want.Success, nodes[0].Summary.Success, level)
			require.Equal(t, want.Repairs, nodes[0].Summary.Repairs, level)
		}
	}
	requireStored(put(3, 0, 9))
	first := put(3, 1, 2)
	requireStored(first)
	put(3, 0, 9)
	requireStored(first)
	second := put(3, 2, 1)
	requireStored(second)
	put(2, 7, 5)
	requireStored(second)
	requireStored(put(4, 0, 6))
}

func testSummaryVersionsConcurrent(t *testing.T, s models.Store) {
	user, id := models.NewUserID(), models.NewBatchID(now())
	allNil(t, together(16, func(i int) error {
		for k := range 5 {
			v := int64((i*7+k*11)%80 + 1)
			if err := s.PutSummaries(t.Context(),
				models.ChunkSummary{User: user, Chunk: id, Summary: summary(v, v, 100-v)}); err != nil {
				return err
			}
			got, err := drain(s.Summaries(t.Context(), user, id, 0))
			if err != nil {
				return err
			}
			if len(got) != 1 || got[0].Summary.Version < v || got[0].Summary.Success != got[0].Summary.Version {
				return fmt.Errorf("after version %d: %+v", v, got)
			}
		}
		return nil
	}))
	top := int64(0)
	for i := range 16 {
		for k := range 5 {
			top = max(top, int64((i*7+k*11)%80+1))
		}
	}
	require.Equal(t, []models.ChunkSummary{{User: user, Chunk: id, Summary: summary(top, top, 100-top)}},
		summariesOf(t, s, user, id, 0))
}

func testSummaryOrder(t *testing.T, s models.Store) {
	user, id := models.NewUserID(), models.NewBatchID(now())
	neighbour := models.ChunkSummary{User: user, Chunk: models.NewBatchID(id.Time()), Summary: summary(1, 1, 0)}
	const chunks = 700
	all := make([]models.ChunkSummary, chunks)
	for n := range all {
		all[n] = models.ChunkSummary{User: user, Chunk: id.Chunk(n), Summary: summary(int64(n+1), int64(n), 1)}
	}
	backwards := []models.ChunkSummary{neighbour}
	var want []models.ChunkSummary
	for n := range all {
		if n%10 != 9 { // some chunks have no summary
			want = append(want, all[n])
		}
		if k := chunks - 1 - n; k%10 != 9 {
			backwards = append(backwards, all[k])
		}
	}
	require.NoError(t, s.PutSummaries(t.Context(), backwards...))
	require.Equal(t, want, summariesOf(t, s, user, id, 0))
	require.Equal(t, want[9:], summariesOf(t, s, user, id, 10))
	require.Equal(t, want[9:], summariesOf(t, s, user, id, 9), "chunk 9 has none")
	require.Empty(t, summariesOf(t, s, user, id, chunks))
	require.Equal(t, []models.ChunkSummary{neighbour}, summariesOf(t, s, user, neighbour.Chunk, 0))
	seen := 0
	for _, err := range s.Summaries(t.Context(), user, id, 0) { // a reader may stop early
		require.NoError(t, err)
		if seen++; seen == 3 {
			break
		}
	}
}

// rollUp rolls up the spans of every level that hold a time, from the leaves up, and returns
// the sum of the day.
func rollUp(t *testing.T, s models.Store, user string, at time.Time) models.Summary {
	t.Helper()
	var sum models.Summary
	for _, level := range models.Levels {
		var err error
		sum, err = rolledUp(t.Context(), s, models.SpanOf(user, level, at))
		require.NoError(t, err)
	}
	return sum
}

// rolledUp rolls up a span and returns the stored sum.
func rolledUp(ctx context.Context, s models.Store, span models.Span) (sum models.Summary, err error) {
	if err = s.RollUp(ctx, span); err != nil {
		return sum, err
	}
	nodes, err := s.Nodes(ctx, span.User, span.Level, span.Start, span.Start.Add(span.Level.Length()))
	if len(nodes) > 0 {
		sum = nodes[0].Summary
	}
	return sum, err
}

// noon returns a time in the middle of a day, so that cases can spread batches over the day.
func noon() time.Time { return now().Truncate(24 * time.Hour).Add(-12 * time.Hour) }

func testRollUpTree(t *testing.T, s models.Store) {
	ctx := t.Context()
	user, stranger := models.NewUserID(), models.NewUserID()
	got, err := rolledUp(ctx, s, models.SpanOf(user, models.Second, noon()))
	require.NoError(t, err)
	require.Equal(t, models.Summary{}, got, "the sum of no children")

	var total models.Summary
	hours := map[time.Time]*models.Summary{}
	for i, off := range []time.Duration{
		0, time.Millisecond, 999 * time.Millisecond, time.Second, 59 * time.Second, time.Minute,
		time.Hour - time.Millisecond, time.Hour, -time.Millisecond, 5 * time.Hour,
	} {
		id := models.NewBatchID(noon().Add(off))
		for n := range 3 {
			sum := summary(int64(10*i+n+1), int64(i), int64(n))
			require.NoError(t, s.PutSummaries(ctx,
				models.ChunkSummary{User: user, Chunk: id.Chunk(n), Summary: sum},
				models.ChunkSummary{User: stranger, Chunk: models.NewBatchID(id.Time()), Summary: sum}))
			hour := id.Time().Truncate(time.Hour)
			if hours[hour] == nil {
				hours[hour] = &models.Summary{}
			}
			hours[hour].Add(&sum)
			total.Add(&sum)
		}
		rollUp(t, s, user, id.Time())
	}
	require.Equal(t, total, rollUp(t, s, user, noon()))
	nodes, err := s.Nodes(ctx, user, models.Hour, noon().Add(-12*time.Hour), noon().Add(12*time.Hour))
	require.NoError(t, err)
	require.Len(t, nodes, len(hours))
	for _, n := range nodes {
		require.Equal(t, *hours[n.Span.Start], n.Summary)
	}
	day, err := s.Nodes(ctx, user, models.Day, noon().Add(-12*time.Hour), noon())
	require.NoError(t, err)
	require.Equal(t, []models.Node{{Span: models.SpanOf(user, models.Day, noon()), Summary: total}}, day)
}

func testRollUpGrows(t *testing.T, s models.Store) {
	user := models.NewUserID()
	first, second := models.NewBatchID(noon()), models.NewBatchID(noon().Add(time.Millisecond))
	put := func(id models.ID, sum models.Summary) {
		require.NoError(t, s.PutSummaries(t.Context(), models.ChunkSummary{User: user, Chunk: id, Summary: sum}))
	}
	put(first, summary(1, 0, 5))
	require.Equal(t, summary(1, 0, 5), rollUp(t, s, user, noon()))
	put(second, summary(1, 1, 2))
	require.Equal(t, summary(2, 1, 7), rollUp(t, s, user, noon()))
	put(first, summary(4, 5, 0))
	require.Equal(t, summary(5, 6, 2), rollUp(t, s, user, noon()))
	require.Equal(t, summary(5, 6, 2), rollUp(t, s, user, noon()), "overwritten, never added to")
	put(first, summary(2, 1, 4))
	require.Equal(t, summary(5, 6, 2), rollUp(t, s, user, noon()), "a late writer changes nothing")
}

func testRollUpConcurrent(t *testing.T, s models.Store) {
	user := models.NewUserID()
	const batches = 8
	errs := together(batches, func(i int) error {
		id := models.NewBatchID(noon().Add(time.Duration(i) * time.Millisecond))
		for v := int64(1); v <= 5; v++ {
			if err := s.PutSummaries(t.Context(),
				models.ChunkSummary{User: user, Chunk: id, Summary: summary(v, v, 5-v)}); err != nil {
				return err
			}
			for _, level := range models.Levels {
				sum, err := rolledUp(t.Context(), s, models.SpanOf(user, level, noon()))
				if err != nil {
					return err
				}
				if !sum.Balanced() || sum.Accepted%5 != 0 || sum.Accepted > 5*batches {
					return fmt.Errorf("%s: %+v", level, sum)
				}
			}
		}
		return nil
	})
	allNil(t, errs)
	require.Equal(t, summary(5*batches, 5*batches, 0), rollUp(t, s, user, noon()))
	nodes, err := s.Nodes(t.Context(), user, models.Minute, noon(), noon().Add(time.Minute))
	require.NoError(t, err)
	require.Equal(t, []models.Node{{Span: models.SpanOf(user, models.Minute, noon()),
		Summary: summary(5*batches, 5*batches, 0)}}, nodes)
}

// testRollUpLate lets several callers put a summary and then roll up. One of them counts all
// summaries. Its sum must stay, however late the others store theirs.
func testRollUpLate(t *testing.T, s models.Store) {
	const writers = 12
	user := models.NewUserID()
	for round := range 15 {
		span := models.SpanOf(user, models.Second, noon().Add(time.Duration(round)*time.Second))
		allNil(t, together(writers, func(i int) error {
			id := models.NewBatchID(span.Start.Add(time.Duration(i) * time.Millisecond))
			if err := s.PutSummaries(t.Context(),
				models.ChunkSummary{User: user, Chunk: id, Summary: summary(1, 1, 1)}); err != nil {
				return err
			}
			sum, err := rolledUp(t.Context(), s, span)
			if err == nil && sum.Version < 1 {
				err = fmt.Errorf("its own summary is missing in %+v", sum)
			}
			return err
		}))
		nodes, err := s.Nodes(t.Context(), user, models.Second, span.Start, span.Start.Add(time.Second))
		require.NoError(t, err)
		require.Equal(t, []models.Node{{Span: span, Summary: summary(writers, writers, writers)}}, nodes)
	}
}

func testNodes(t *testing.T, s models.Store) {
	user := models.NewUserID()
	starts := []time.Time{noon(), noon().Add(time.Minute), noon().Add(3 * time.Minute), noon().Add(2 * time.Hour)}
	for i := range starts {
		at := starts[len(starts)-1-i] // not in order
		require.NoError(t, s.PutSummaries(t.Context(),
			models.ChunkSummary{User: user, Chunk: models.NewBatchID(at), Summary: summary(1, 1, 0)}))
		rollUp(t, s, user, at)
	}
	in := func(level models.Level, from, to time.Time) []time.Time {
		nodes, err := s.Nodes(t.Context(), user, level, from, to)
		require.NoError(t, err)
		var out []time.Time
		for _, n := range nodes {
			require.Equal(t, models.Span{User: user, Level: level, Start: n.Span.Start}, n.Span)
			require.Equal(t, summary(1, 1, 0), n.Summary)
			out = append(out, n.Span.Start)
		}
		return out
	}
	require.Equal(t, starts, in(models.Minute, noon(), noon().Add(3*time.Hour)))
	require.Equal(t, starts[:2], in(models.Minute, noon(), starts[2]), "to is not in the range")
	require.Equal(t, starts[1:3], in(models.Minute, noon().Add(time.Millisecond), starts[3]),
		"a span that began before from")
	require.Equal(t, starts, in(models.Second, noon(), noon().Add(3*time.Hour)))
	require.Empty(t, in(models.Minute, noon(), noon()))
	require.Empty(t, in(models.Hour, noon().Add(time.Hour), noon().Add(2*time.Hour)))
	none, err := s.Nodes(t.Context(), models.NewUserID(), models.Minute, noon(), noon().Add(time.Hour))
	require.NoError(t, err)
	require.Empty(t, none)
}
