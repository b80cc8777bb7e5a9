package storetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

func recordCases() []testCase {
	return []testCase{
		{"Append/Ascending", testAppend},
		{"Append/Gap", testAppendGap},
		{"Append/Race", testAppendRace},
		{"Append/RaceUpTheLedger", testAppendRaceLong},
		{"Append/SameTokenAgain", testAppendAgain},
		{"Append/ManyChunks", testAppendManyChunks},
		{"Append/TimeOut", testAppendTimeOut},
		{"Append/TimeOutAgainstRival", testAppendTimeOutRival},
		{"Append/WrongClocks", testAppendWrongClocks},
		{"Facts/Put", testFacts},
		{"Facts/FirstStays", testFactsFirstStays},
		{"Facts/ManyChunksInOneCall", testFactsManyChunks},
		{"Facts/Large", testFactsLarge},
		{"Facts/Concurrent", testFactsConcurrent},
	}
}

// requireRecord checks the whole record of a chunk.
func requireRecord(t *testing.T, s models.Store, chunk models.ID, entries []models.Entry, facts []models.Fact) {
	t.Helper()
	gotEntries, gotFacts, err := s.Record(t.Context(), chunk)
	require.NoError(t, err)
	ledger, err := s.Ledger(t.Context(), chunk)
	require.NoError(t, err)
	if len(entries) == 0 {
		require.Empty(t, gotEntries)
		require.Empty(t, ledger)
	} else {
		require.Equal(t, entries, gotEntries)
		require.Equal(t, entries, ledger)
	}
	require.Equal(t, byKey(facts), byKey(gotFacts))
	require.Len(t, gotFacts, len(facts))
	called, outcomes, err := s.Calls(t.Context(), chunk)
	require.NoError(t, err)
	require.Equal(t, ledger, called)
	var want []models.Outcome
	for _, f := range facts {
		if f.Outcome != nil && f.Key == models.OutcomeKey(f.Outcome.Attempt) {
			want = append(want, *f.Outcome)
		}
	}
	require.ElementsMatch(t, want, outcomes)
}

func byKey(facts []models.Fact) map[string]models.Fact {
	m := map[string]models.Fact{}
	for _, f := range facts {
		m[f.Key] = f
	}
	return m
}

func testAppend(t *testing.T, s models.Store) {
	ctx := t.Context()
	id := models.NewBatchID(now())
	requireRecord(t, s, id, nil, nil)
	entries := []models.Entry{
		attempt(1, "sg"),
		{
			Number:     2,
			Token:      models.NewToken(),
			Kind:       models.Cancel,
			At:         now(),
			Recipients: models.SetOf(2),
			Reason:     models.CancelledByRq,
			Detail:     "by “Zoë”",
		},
		{
			Number:     3,
			Token:      models.NewToken(),
			Kind:       models.Ending,
			At:         now(),
			Recipients: models.SetTo(1000),
			Reason:     models.CancelledByRq,
		},
		{
			Number:     4,
			Token:      models.NewToken(),
			Kind:       models.Release,
			At:         now(),
			Recipients: models.SetOf(1000),
		},
	}
	for i := 5; i <= 12; i++ { // numbers with two digits must sort as numbers
		entries = append(entries, attempt(i, "mg"))
	}
	for i, e := range entries {
		require.NoError(t, s.Append(ctx, id, e))
		requireRecord(t, s, id, entries[:i+1], nil)
	}
	requireRecord(t, s, id.Chunk(1), nil, nil)

	require.ErrorIs(t, s.Append(ctx, id, attempt(0, "sg")), models.ErrInvalid)
	require.ErrorIs(t, s.Append(ctx, id, attempt(-1, "sg")), models.ErrInvalid)
	requireRecord(t, s, id, entries, nil)
}

// testAppendGap appends a number that leaves a gap. That must be ErrInvalid.
func testAppendGap(t *testing.T, s models.Store) {
	ctx := t.Context()
	id := models.NewBatchID(now())
	require.ErrorIs(t, s.Append(ctx, id, attempt(2, "sg")), models.ErrInvalid)
	requireRecord(t, s, id, nil, nil)
	first := attempt(1, "sg")
	require.NoError(t, s.Append(ctx, id, first))
	require.ErrorIs(t, s.Append(ctx, id, attempt(3, "sg")), models.ErrInvalid)
	requireRecord(t, s, id, []models.Entry{first}, nil)
}

// race lets n callers append the same number to a chunk and returns the winner's entry.
func race(t *testing.T, s models.Store, chunk models.ID, number, n int) models.Entry {
	t.Helper()
	mine := make([]models.Entry, n)
	for i := range mine {
		mine[i] = attempt(number, fmt.Sprint("provider-", i))
	}
	errs := together(n, func(i int) error {
		return settled(t.Context(), func() error { return s.Append(t.Context(), chunk, mine[i]) })
	})
	winner := slices.Index(errs, nil)
	require.NotEqual(t, -1, winner, "no caller won")
	for i, err := range errs {
		if i == winner {
			continue
		}
		var conflict *models.ConflictError
		require.ErrorAs(t, err, &conflict, "two winners, or a loser that does not know")
		require.Equal(t, mine[winner], conflict.Winner)
	}
	return mine[winner]
}

func testAppendRace(t *testing.T, s models.Store) {
	id := models.NewBatchID(now())
	winner := race(t, s, id, 1, 16)
	requireRecord(t, s, id, []models.Entry{winner}, nil)

	late := attempt(1, "late")
	var conflict *models.ConflictError
	for range 2 {
		require.ErrorAs(t, s.Append(t.Context(), id, late), &conflict)
		require.Equal(t, winner, conflict.Winner)
		requireRecord(t, s, id, []models.Entry{winner}, nil)
	}
}

func testAppendRaceLong(t *testing.T, s models.Store) {
	id := models.NewBatchID(now()).Chunk(7)
	var entries []models.Entry
	for n := range 10 {
		entries = append(entries, race(t, s, id, n+1, 4))
	}
	requireRecord(t, s, id, entries, nil)
}

func testAppendAgain(t *testing.T, s models.Store) {
	ctx := t.Context()
	id := models.NewBatchID(now())
	first, second := attempt(1, "sg"), attempt(2, "mg")
	require.NoError(t, s.Append(ctx, id, first))
	require.NoError(t, s.Append(ctx, id, first))
	require.NoError(t, s.Append(ctx, id, second))
	require.NoError(t, s.Append(ctx, id, first), "even if the ledger has grown since")
	requireRecord(t, s, id, []models.Entry{first, second}, nil)

	third := attempt(3, "sg")
	allNil(t, together(8, func(int) error {
		return settled(ctx, func() error { return s.Append(ctx, id, third) })
	}))
	requireRecord(t, s, id, []models.Entry{first, second, third}, nil)
}

func testAppendManyChunks(t *testing.T, s models.Store) {
	ctx := t.Context()
	id := models.NewBatchID(now())
	entries := make([][]models.Entry, 40)
	for i := range entries {
		entries[i] = []models.Entry{attempt(1, "sg"), attempt(2, "mg"), attempt(3, "ses")}
	}
	allNil(t, together(len(entries), func(i int) error {
		for _, e := range entries[i] {
			if err := s.Append(ctx, id.Chunk(i), e); err != nil {
				return err
			}
		}
		return nil
	}))
	for i := range entries {
		requireRecord(t, s, id.Chunk(i), entries[i], nil)
	}
}

// typical returns the duration of an append, so that time-outs can end one in the middle.
func typical(t *testing.T, s models.Store) time.Duration {
	t.Helper()
	id := models.NewBatchID(now())
	start := time.Now()
	for n := range 5 {
		require.NoError(t, s.Append(t.Context(), id, attempt(n+1, "sg")))
	}
	return time.Since(start) / 5
}

// requireTimedOut checks that an append succeeded or timed out.
func requireTimedOut(t *testing.T, err error) {
	t.Helper()
	if err == nil || errors.Is(err, models.ErrOutcomeUnknown) || errors.Is(err, models.ErrUnavailable) {
		return
	}
	var conflict *models.ConflictError
	require.ErrorAs(t, err, &conflict, "an append that timed out")
}

// testAppendTimeOut repeats appends that timed out. The repeat must succeed.
func testAppendTimeOut(t *testing.T, s models.Store) {
	most := 2 * typical(t, s)
	for range 40 {
		id, e := models.NewBatchID(now()), attempt(1, "sg")
		short, cancel := context.WithTimeout(t.Context(), rand.N(most))
		first := s.Append(short, id, e)
		cancel()
		requireTimedOut(t, first)
		require.NoError(t, s.Append(t.Context(), id, e), "there is no rival, so the repeat wins")
		requireRecord(t, s, id, []models.Entry{e}, nil)
	}
}

// testAppendTimeOutRival is testAppendTimeOut with a rival that may time out, too.
func testAppendTimeOutRival(t *testing.T, s models.Store) {
	most := 2 * typical(t, s)
	for range 25 {
		id := models.NewBatchID(now())
		mine := []models.Entry{attempt(1, "sg"), attempt(1, "mg")}
		errs := together(2, func(i int) error {
			short, cancel := context.WithTimeout(t.Context(), rand.N(most))
			defer cancel()
			first := s.Append(short, id, mine[i])
			again := settled(t.Context(), func() error { return s.Append(t.Context(), id, mine[i]) })
			if first == nil && again != nil {
				return fmt.Errorf("won, and lost when asked again: %w", again)
			}
			return again
		})
		winner := slices.Index(errs, nil)
		require.NotEqual(t, -1, winner, "no caller won: %v", errs)
		var conflict *models.ConflictError
		require.ErrorAs(t, errs[1-winner], &conflict)
		require.Equal(t, mine[winner], conflict.Winner)
		requireRecord(t, s, id, mine[winner:winner+1], nil)
	}
}

// testAppendWrongClocks appends entries with wrong times. The order must be that of the
// numbers.
func testAppendWrongClocks(t *testing.T, s models.Store) {
	id := models.NewBatchID(now().Add(time.Hour))
	var entries []models.Entry
	for n := 1; n <= 6; n++ {
		e := attempt(n, "sg")
		e.At = e.At.Add(time.Duration(3-n) * 20 * time.Minute)
		entries = append(entries, e)
		require.NoError(t, s.Append(t.Context(), id, e))
	}
	requireRecord(t, s, id, entries, nil)
}

// eventFact returns a fact with a number of events of an inbox entry.
func eventFact(inbox models.ID, events int) models.Fact {
	f := models.Fact{Key: models.EventsKey(inbox)}
	for i := range events {
		f.Events = append(f.Events, models.Event{
			ID:          fmt.Sprint(inbox, i),
			Recipient:   i + 1,
			Attempt:     1,
			Provider:    "sg",
			Kind:        models.Bounced,
			At:          now(),
			BounceClass: "hard",
			Status:      550,
			Enhanced:    "5.1.1",
			Text:        "no such user “" + strings.Repeat("x", i%200) + "”",
			Async:       i%2 == 0,
		})
	}
	return f
}

func testFacts(t *testing.T, s models.Store) {
	ctx := t.Context()
	id := models.NewBatchID(now())
	e := attempt(1, "sg")
	facts := []models.Fact{outcome(1), outcome(2), eventFact(models.NewInboxID(now()), 3),
		{Key: "v1.messages: “à”", Outcome: outcome(1).Outcome}}
	require.NoError(t, s.PutFacts(ctx, models.ChunkFact{Chunk: id, Fact: facts[2]}), "a fact may come before the ledger")
	requireRecord(t, s, id, nil, facts[2:3])
	require.NoError(t, s.Append(ctx, id, e))
	for range 2 {
		for _, f := range facts {
			require.NoError(t, s.PutFacts(ctx, models.ChunkFact{Chunk: id, Fact: f}))
		}
	}
	requireRecord(t, s, id, []models.Entry{e}, facts)
	requireRecord(t, s, id.Chunk(1), nil, nil)
}

func testFactsFirstStays(t *testing.T, s models.Store) {
	ctx := t.Context()
	id := models.NewBatchID(now())
	first := outcome(1)
	require.NoError(t, s.PutFacts(ctx, models.ChunkFact{Chunk: id, Fact: first}))
	for _, text := range []string{"", "another"} { // a smaller and a larger value
		later := outcome(1)
		later.Outcome.Parts[1].Text = text
		later.Outcome.At = first.Outcome.At.Add(-time.Hour)
		require.NoError(t, s.PutFacts(ctx, models.ChunkFact{Chunk: id, Fact: later},
			models.ChunkFact{Chunk: id.Chunk(1), Fact: later}))
		requireRecord(t, s, id, nil, []models.Fact{first})
	}
}

func testFactsManyChunks(t *testing.T, s models.Store) {
	id := models.NewBatchID(now())
	var all []models.ChunkFact
	for n := range 300 {
		all = append(all, models.ChunkFact{Chunk: id.Chunk(n % 100), Fact: eventFact(models.NewInboxID(now()), 2)})
	}
	require.NoError(t, s.PutFacts(t.Context(), all...))
	require.NoError(t, s.PutFacts(t.Context(), all[10:20]...))
	for n := range 100 {
		requireRecord(t, s, id.Chunk(n), nil, []models.Fact{all[n].Fact, all[n+100].Fact, all[n+200].Fact})
	}
}

func testFactsLarge(t *testing.T, s models.Store) {
	id := models.NewBatchID(now())
	f := eventFact(models.NewInboxID(now()), models.MaxChunkRecipients)
	o := outcome(1)
	o.Outcome.Parts = nil
	for r := range models.MaxChunkRecipients {
		o.Outcome.Parts = append(o.Outcome.Parts, models.Part{
			Class:      models.RejectedRecipient,
			Recipients: models.SetOf(r + 1),
			Status:     400,
			Text:       strings.Repeat("é", 100),
		})
	}
	require.NoError(t, s.PutFacts(t.Context(), models.ChunkFact{Chunk: id, Fact: f}, models.ChunkFact{Chunk: id, Fact: o}))
	requireRecord(t, s, id, nil, []models.Fact{f, o})
}

func testFactsConcurrent(t *testing.T, s models.Store) {
	ctx := t.Context()
	id := models.NewBatchID(now())
	want := map[string]models.Fact{}
	var each [16][]models.Fact
	for i := range each {
		for range 5 {
			f := eventFact(models.NewInboxID(now()), 1)
			each[i] = append(each[i], f)
			want[f.Key] = f
		}
	}
	allNil(t, together(len(each), func(i int) error {
		for k, f := range each[i] {
			if err := s.PutFacts(ctx, models.ChunkFact{Chunk: id, Fact: f}); err != nil {
				return err
			}
			_, facts, err := s.Record(ctx, id)
			if err != nil {
				return err
			}
			got := byKey(facts)
			for _, f := range each[i][:k+1] {
				if _, ok := got[f.Key]; !ok {
					return fmt.Errorf("fact %s was put and is not seen", f.Key)
				}
			}
		}
		return nil
	}))
	requireRecord(t, s, id, nil, slices.Collect(maps.Values(want)))
}
