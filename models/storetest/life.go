package storetest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

func lifeCases() []testCase {
	return []testCase{
		{"Life/CancelledContext", testCancelled},
		{"Life/HundredBatches", testHundredBatches},
	}
}

// prompt is how long a call with a cancelled context may take.
const prompt = 2 * time.Second

// testCancelled calls every method with a cancelled context. It must return an error
// promptly and do no harm.
func testCancelled(t *testing.T, s models.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range calls() {
		if c.name == "SetAgendaMark" {
			continue // only its own case sets marks
		}
		var err error
		took := time.Duration(math.MaxInt64)
		for range 5 { // the machine may pause during some of them
			start := time.Now()
			err = c.do(ctx, s)
			require.Error(t, err, c.name)
			if took = min(took, time.Since(start)); took < prompt {
				break
			}
		}
		require.Less(t, took, prompt, c.name)
		if !errors.Is(err, models.ErrUnavailable) && !errors.Is(err, models.ErrOutcomeUnknown) {
			require.ErrorIs(t, err, context.Canceled, c.name)
		}
	}
	require.NoError(t, s.Ping(t.Context()))
}

// testHundredBatches takes a hundred batches through their whole life at the same time.
func testHundredBatches(t *testing.T, s models.Store) {
	ctx := t.Context()
	users := []string{models.NewUserID(), models.NewUserID(), models.NewUserID()}
	batches := make([]models.Batch, 100)
	entry := make([]map[int][]models.Entry, len(batches))
	facts := make([]map[int][]models.Fact, len(batches))
	for i := range batches {
		batches[i] = newBatch(users[i%len(users)], noon().Add(time.Duration(i)*100*time.Millisecond), 1+i%3)
		entry[i], facts[i] = map[int][]models.Entry{}, map[int][]models.Fact{}
	}
	allNil(t, together(len(batches), func(i int) error {
		b := batches[i]
		if err := s.Schedule(ctx, models.AgendaEntry{
			Due:    now().Add(time.Minute),
			Kind:   models.LookAtBatch,
			ID:     b.ID,
			User:   b.User,
			Chunks: b.Chunks,
		}); err != nil {
			return err
		}
		for n := 1; n < b.Chunks; n++ {
			if err := s.PutChunk(ctx, chunkOf(b, n)); err != nil {
				return err
			}
		}
		if err := settled(ctx, func() error { return s.PutBatch(ctx, b, chunkOf(b, 0)) }); err != nil {
			return err
		}
		for n := range b.Chunks {
			es, fs := []models.Entry{attempt(1, "sg"), attempt(2, "mg")},
				[]models.Fact{outcome(1), eventFact(models.NewInboxID(now()), 3)}
			if err := liveChunk(ctx, s, b, n, es, fs); err != nil {
				return fmt.Errorf("batch %d, chunk %d: %w", i, n, err)
			}
			entry[i][n], facts[i][n] = es, fs
		}
		for _, level := range models.Levels {
			if err := s.RollUp(ctx, models.SpanOf(b.User, level, b.Created())); err != nil {
				return err
			}
		}
		return nil
	}))
	want := map[string]*models.Summary{}
	for i, b := range batches {
		requirePresent(t, s, b)
		stored := summariesOf(t, s, b.User, b.ID, 0)
		require.Len(t, stored, b.Chunks)
		for n := range b.Chunks {
			requireRecord(t, s, b.ID.Chunk(n), entry[i][n], facts[i][n])
			require.Equal(t, summary(4, 2, 1), stored[n].Summary)
			if want[b.User] == nil {
				want[b.User] = &models.Summary{}
			}
			want[b.User].Add(&stored[n].Summary)
		}
	}
	for _, b := range batches { // the last roll-up may have missed the last child
		rollUp(t, s, b.User, b.Created())
	}
	for _, user := range users {
		require.Equal(t, *want[user], rollUp(t, s, user, noon()), "the day is the sum of its chunks")
	}
}

// liveChunk appends entries, stores facts and a summary of one chunk of b.
func liveChunk(ctx context.Context, s models.Store, b models.Batch, n int, es []models.Entry, fs []models.Fact) error {
	id := b.ID.Chunk(n)
	rs, err := s.Recipients(ctx, id)
	if err != nil {
		return err
	}
	if len(rs) != b.ChunkSize(n) {
		return fmt.Errorf("%d recipients", len(rs))
	}
	for i, e := range es {
		if err := settled(ctx, func() error { return s.Append(ctx, id, e) }); err != nil {
			return err
		}
		if err := s.PutFacts(ctx, models.ChunkFact{Chunk: id, Fact: fs[i]}); err != nil {
			return err
		}
		entries, facts, err := s.Record(ctx, id)
		if err != nil {
			return err
		}
		if len(entries) != i+1 || len(facts) != i+1 {
			return fmt.Errorf("after entry %d: %d entries, %d facts", i+1, len(entries), len(facts))
		}
		sum := summary(int64(len(entries)+len(facts)), int64(i)+1, int64(1-i)+1)
		if err := s.PutSummaries(ctx, models.ChunkSummary{User: b.User, Chunk: id, Summary: sum}); err != nil {
			return err
		}
	}
	return nil
}
