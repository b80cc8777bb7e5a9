package storetest

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

func agendaCases() []testCase {
	return []testCase{
		{"Agenda/RoundTrip", testAgenda},
		{"Agenda/HalfOpenAscending", testAgendaRange},
		{"Agenda/SameEntryOnce", testAgendaSame},
		{"Agenda/PastIsNow", testAgendaPast},
		{"Agenda/Thousands", testAgendaThousands},
		{"Agenda/WhileWriting", testAgendaWhileWriting},
		{"Agenda/CallsInsideCursor", testAgendaNested},
		{"Agenda/MarksMoveForward", testAgendaMarks},
		{"Dues/InOrderOfTime", testDues},
	}
}

// agendaOf returns the entries with own IDs that are due in [from, to), and checks what
// must be true for every cursor.
func agendaOf(t *testing.T, s models.Store, from, to time.Time, own map[models.ID]bool) []models.AgendaEntry {
	t.Helper()
	var out []models.AgendaEntry
	for shard := range s.Shards() {
		last := from
		for e, err := range s.Agenda(t.Context(), shard, from, to) {
			require.NoError(t, err)
			require.False(t, e.Due.Before(last), "not ascending, or before the range")
			require.True(t, e.Due.Before(to), "to is not in the range")
			require.Equal(t, shard, e.ID.Shard(s.Shards()), "an entry of another shard")
			last = e.Due
			if own[e.ID] {
				out = append(out, e)
			}
		}
	}
	slices.SortStableFunc(out, func(a, b models.AgendaEntry) int { return a.Due.Compare(b.Due) })
	return out
}

// entries returns n agenda entries that are due from a time on, step apart, and their IDs.
func entries(n int, from time.Time, step time.Duration) ([]models.AgendaEntry, map[models.ID]bool) {
	es, own := make([]models.AgendaEntry, n), map[models.ID]bool{}
	for i := range es {
		es[i] = models.AgendaEntry{
			Due:   from.Add(time.Duration(i) * step),
			Kind:  models.LookAtChunk,
			ID:    models.NewBatchID(now()).Chunk(i % 3),
			User:  models.NewUserID(),
			Round: i,
		}
		own[es[i].ID] = true
	}
	return es, own
}

func testAgenda(t *testing.T, s models.Store) {
	es, own := entries(3, now().Add(10*time.Minute), time.Second)
	es[0].Kind, es[0].Chunks, es[0].ID, es[0].Lane = models.LookAtBatch, 17, es[0].ID.Batch(), models.Urgent
	es[1].Lane, es[1].Missed, es[1].Unsent = models.Bulk, true, true
	own[es[0].ID] = true
	fine := es[2]
	fine.Due = fine.Due.Add(123456 * time.Nanosecond) // stores keep milliseconds
	for range 2 {
		require.NoError(t, s.Schedule(t.Context(), es[0], es[1], fine))
		require.Equal(t, es, agendaOf(t, s, now(), now().Add(time.Hour), own))
	}
}

func testAgendaRange(t *testing.T, s models.Store) {
	base := now().Truncate(time.Minute).Add(20 * time.Minute)
	es, own := entries(9, base.Add(-2*time.Minute), 30*time.Second) // across minutes
	back := slices.Clone(es)
	slices.Reverse(back)
	require.NoError(t, s.Schedule(t.Context(), back...))
	ms := time.Millisecond
	for _, c := range []struct {
		from, to time.Time
		want     []models.AgendaEntry
	}{
		{base.Add(-time.Hour), base.Add(time.Hour), es},
		{es[2].Due, es[5].Due, es[2:5]},
		{es[2].Due.Add(ms), es[5].Due.Add(ms), es[3:6]},
		{es[2].Due.Add(-ms), es[2].Due, nil},
		{es[2].Due, es[2].Due.Add(ms), es[2:3]},
		{es[2].Due, es[2].Due, nil},
		{es[5].Due, es[2].Due, nil},
	} {
		require.Equal(t, c.want, agendaOf(t, s, c.from, c.to, own), "[%v, %v)", c.from, c.to)
	}
}

func testAgendaSame(t *testing.T, s models.Store) {
	es, own := entries(1, now().Add(5*time.Minute), 0)
	e := es[0]
	e.ID = e.ID.Batch()
	own[e.ID] = true
	other := e
	other.Kind = models.LookAtBatch
	later := e
	later.Due = e.Due.Add(time.Millisecond)
	again := e
	again.Round++
	require.NoError(t, s.Schedule(t.Context(), e, other, later, again, e))
	require.NoError(t, s.Schedule(t.Context(), again, other))
	got := agendaOf(t, s, now(), now().Add(time.Hour), own)
	require.Len(t, got, 3, "same Due, Kind and ID are one")
	require.Equal(t, later, got[2])
	require.ElementsMatch(t, []models.AgendaKind{models.LookAtBatch, models.LookAtChunk},
		[]models.AgendaKind{got[0].Kind, got[1].Kind})
}

func testAgendaPast(t *testing.T, s models.Store) {
	es, own := entries(3, now().Add(-30*time.Second), 0)
	es[1].Due = now().Add(-10 * time.Minute)
	es[2].Due = now().Add(-100 * 24 * time.Hour)
	start := now().Add(-time.Second)
	require.NoError(t, s.Schedule(t.Context(), es...))
	end := now().Add(2 * time.Second)
	got := agendaOf(t, s, now().Add(-2*time.Minute), end, own)
	require.Len(t, got, 3)
	require.Equal(t, es[0], got[0], "half a minute is within reach")
	for _, e := range got[1:] {
		require.False(t, e.Due.Before(start), "due now, not %v", e.Due)
		want := es[slices.IndexFunc(es, func(x models.AgendaEntry) bool { return x.ID == e.ID })]
		want.Due = e.Due
		require.Equal(t, want, e)
	}
}

func testAgendaThousands(t *testing.T, s models.Store) {
	es, own := entries(3000, now().Add(time.Minute), 97*time.Millisecond)
	for i := range 500 { // many in the same millisecond
		es[i].Due = es[0].Due
	}
	require.NoError(t, s.Schedule(t.Context(), es...))
	got := agendaOf(t, s, now(), now().Add(10*time.Minute), own)
	require.Len(t, got, len(es))
	require.ElementsMatch(t, es[:500], got[:500])
	require.Equal(t, es[500:], got[500:])
	seen := 0
	for _, err := range s.Agenda(t.Context(), 0, now(), now().Add(time.Hour)) { // a reader may stop early
		require.NoError(t, err)
		if seen++; seen == 2 {
			break
		}
	}
}

func testAgendaWhileWriting(t *testing.T, s models.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	from := now().Add(15 * time.Minute)
	es, own := entries(1200, from, 100*time.Millisecond)
	require.NoError(t, s.Schedule(ctx, es...))
	wrote := make(chan error, 1)
	var more atomic.Int64
	go func() {
		for ctx.Err() == nil {
			others, _ := entries(20, from, 6*time.Second)
			if err := s.Schedule(ctx, others...); err != nil && ctx.Err() == nil {
				wrote <- err
				return
			}
			more.Add(1)
		}
		wrote <- nil
	}()
	for round := 0; round < 3 || more.Load() < 3; round++ {
		require.Equal(t, es, agendaOf(t, s, from, from.Add(3*time.Minute), own))
	}
	cancel()
	require.NoError(t, <-wrote)
}

// testAgendaNested calls the store while many goroutines read cursors.
func testAgendaNested(t *testing.T, s models.Store) {
	ctx := t.Context()
	from := now().Add(25 * time.Minute)
	es, own := entries(8, from, time.Second)
	for i := range es {
		es[i].ID = models.ID(append(slices.Clone(es[0].ID[:12]), es[i].ID[12:]...)).Chunk(i) // one shard
		own[es[i].ID] = true
	}
	require.NoError(t, s.Schedule(ctx, es...))
	shard := es[0].ID.Shard(s.Shards())
	allNil(t, together(12, func(int) error {
		for e, err := range s.Agenda(ctx, shard, from, from.Add(time.Minute)) {
			if err != nil {
				return err
			}
			if _, err := s.Ledger(ctx, e.ID); err != nil {
				return err
			}
			if _, err := drain(s.Agenda(ctx, shard, e.Due, e.Due.Add(time.Second))); err != nil {
				return err
			}
			if err := s.Schedule(ctx, e); err != nil {
				return err
			}
		}
		return nil
	}))
	require.Equal(t, es, agendaOf(t, s, from, from.Add(time.Minute), own))
}

// testAgendaMarks is the only case that sets marks. They lie in the past, so that no entries
// of other cases may be removed.
func testAgendaMarks(t *testing.T, s models.Store) {
	ctx := t.Context()
	base := now().Add(-2 * time.Hour)
	for shard := range s.Shards() {
		top := base.Add(time.Duration(shard) * time.Second)
		for _, off := range []time.Duration{-time.Hour, 0, -time.Minute, 0, -time.Millisecond} {
			at := base.Add(time.Duration(shard)*time.Second + off)
			require.NoError(t, s.SetAgendaMark(ctx, shard, at))
			mark, err := s.AgendaMark(ctx, shard)
			require.NoError(t, err)
			if off == -time.Hour {
				require.Equal(t, at, mark)
			} else {
				require.Equal(t, top, mark, "marks only move forward")
			}
		}
	}
	shard := s.Shards() - 1
	allNil(t, together(16, func(i int) error {
		return s.SetAgendaMark(ctx, shard, base.Add(time.Minute*time.Duration(1+(i*5)%16)))
	}))
	mark, err := s.AgendaMark(ctx, shard)
	require.NoError(t, err)
	require.Equal(t, base.Add(16*time.Minute), mark)
}

// testDues: the times of batches are listed in their order in both directions, whenever the batches were accepted.
func testDues(t *testing.T, s models.Store) {
	ctx, u, base := t.Context(), models.NewUserID(), now().Add(time.Hour)
	var all []models.Due
	for i := range 120 { // some at the same time
		b := models.NewBatchID(now().Add(-time.Duration(i) * time.Second))
		all = append(all, models.Due{At: base.Add(time.Duration(i*37%60) * time.Minute), Batch: b})
	}
	all[7].After = all[7].At.Add(-time.Minute)
	require.NoError(t, s.PutDue(ctx, u))
	require.NoError(t, s.PutDue(ctx, u, all[0]))
	for range 2 {
		require.NoError(t, s.PutDue(ctx, u, all...))
	}
	require.NoError(t, s.PutDue(ctx, models.NewUserID(), models.Due{At: base, Batch: models.NewBatchID(base)}))
	byID := func(a, b models.Due) int { return a.ID().Compare(b.ID()) }
	slices.SortFunc(all, byID)
	require.True(t, slices.IsSortedFunc(all, func(a, b models.Due) int { return a.At.Compare(b.At) }))
	list := func(from models.ID, back bool, limit int) []models.Due {
		t.Helper()
		got, err := s.Dues(ctx, u, from, back, limit)
		require.NoError(t, err)
		return got
	}
	require.Equal(t, all, list(models.ID{}, false, 1000))
	require.Equal(t, all[31:36], list(all[30].ID(), false, 5))
	before := slices.Clone(all[25:30])
	slices.Reverse(before)
	require.Equal(t, before, list(all[30].ID(), true, 5))
	require.Empty(t, list(all[0].ID(), true, 5))
	require.Empty(t, list(models.ID{}, false, 0))

	changed := all[40]
	changed.After = changed.At.Add(-time.Hour)
	require.NoError(t, s.PutDue(ctx, u, changed))
	require.Equal(t, []models.Due{changed}, list(all[39].ID(), false, 1), "it replaces the entry")
	for range 2 {
		require.NoError(t, s.RemoveDue(ctx, u, changed.ID()))
	}
	all = slices.Delete(all, 40, 41)
	require.Equal(t, all, list(models.ID{}, false, 1000))
	require.NoError(t, s.DropDues(ctx, u, all[50].At))
	first := slices.IndexFunc(all, func(d models.Due) bool { return !d.At.Before(all[50].At) })
	require.Equal(t, all[first:], list(models.ID{}, false, 1000))
}
