// Package storetest is the conformance suite of models.Store. For each promise of the
// contract there is a case. Every implementation runs all cases; there are no
// exceptions.
package storetest

import (
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// testCase checks one promise. Cases share a store, so each uses new users, IDs and names
// and ignores the rows of others.
type testCase struct {
	name string
	run  func(t *testing.T, s models.Store)
}

// patience is how long a case waits for something that should happen soon.
const patience = 5 * time.Minute

// Run checks every promise that can be checked without closing and reopening. open returns
// a store on new, empty data and closes it in t.Cleanup. It is called twice.
func Run(t *testing.T, open func(t *testing.T) models.Store) {
	t.Helper()
	s := open(t)
	t.Run("Empty", func(t *testing.T) { testEmpty(t, s) })
	t.Run("Shared", func(t *testing.T) {
		for _, c := range allCases() {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				c.run(t, s)
			})
		}
	})
	t.Run("Close", func(t *testing.T) { testClose(t, open(t)) })
}

// allCases lists the cases that share a store.
func allCases() []testCase {
	return slices.Concat(
		userCases(),
		batchCases(),
		redactCases(),
		attachmentCases(),
		eraseCases(),
		purgeCases(),
		recordCases(),
		summaryCases(),
		agendaCases(),
		inboxCases(),
		replayGuardCases(),
		leaseCases(),
		transientCases(),
		commandCases(),
		claimCases(),
		addressIndexCases(),
		suppressionCases(),
		softBounceCases(),
		feedCases(),
		documentCases(),
		lifeCases(),
	)
}

// testEmpty checks an empty store.
func testEmpty(t *testing.T, s models.Store) {
	ctx := t.Context()
	require.NoError(t, s.Ping(ctx))
	require.Positive(t, s.Shards())
	users, err := s.Users(ctx)
	require.NoError(t, err)
	require.Empty(t, users)
	for shard := range s.Shards() {
		mark, err := s.AgendaMark(ctx, shard)
		require.NoError(t, err)
		require.True(t, mark.IsZero(), "shard %d was never processed, but its mark is %v", shard, mark)
		require.Empty(t, collect(t, s.Agenda(ctx, shard, now().Add(-time.Hour), now().Add(time.Hour))))
		require.Empty(t, collect(t, s.Pending(ctx, shard, now().Add(-time.Hour), now().Add(time.Hour))))
	}
	// Calls without arguments do nothing.
	require.NoError(t, s.PutFacts(ctx))
	require.NoError(t, s.PutSummaries(ctx))
	require.NoError(t, s.Schedule(ctx))
	require.NoError(t, s.InboxDone(ctx))
	posts, err := s.Inbox(ctx)
	require.NoError(t, err)
	require.Empty(t, posts)
}

// now returns the time with the precision that every store keeps.
func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// together calls f(0) to f(n-1) at the same time and returns their results.
func together(n int, f func(i int) error) []error {
	var (
		errs  = make([]error, n)
		start = make(chan struct{})
		all   sync.WaitGroup
	)
	for i := range n {
		all.Go(func() {
			<-start
			errs[i] = f(i)
		})
	}
	close(start)
	all.Wait()
	return errs
}

// allNil fails the test for the first error of errs.
func allNil(t testing.TB, errs []error) {
	t.Helper()
	for i, err := range errs {
		require.NoError(t, err, "call %d", i)
	}
}

// collect reads a cursor to its end.
func collect[T any](t *testing.T, seq iter.Seq2[T, error]) []T {
	t.Helper()
	out, err := drain(seq)
	require.NoError(t, err)
	return out
}

// drain reads a cursor to its end or its first error.
func drain[T any](seq iter.Seq2[T, error]) ([]T, error) {
	var out []T
	for v, err := range seq {
		if err != nil {
			return out, err
		}
		out = append(out, v)
	}
	return out, nil
}

// newBatch returns a batch with every field set.
func newBatch(user string, at time.Time, chunks int) models.Batch {
	b := models.Batch{
		ID:   models.NewBatchID(at),
		User: user,
		Content: models.Content{
			From:    models.Address{Email: "news@example.com", Name: "Grüße aus Łódź"},
			ReplyTo: []models.Address{{Email: "reply@example.com"}},
			Subject: "Hello {{name}} 👋 <&>",
			Text:    strings.Repeat("Dear {{name}}, 你好. ", 40),
			HTML:    "<p>Dear {{name}}</p>",
		},
		Providers:  []string{"sg", "mg"},
		Lane:       models.Bulk,
		OnUnknown:  models.Hold,
		Chunks:     chunks,
		Recipients: 3 * chunks,
		Duplicates: 1,
		Envelope:   &models.Envelope{CC: 1, BCC: 1},
		ExpiresAt:  at.Add(72 * time.Hour).UTC().Round(0),
	}
	for range chunks {
		b.Sizes = append(b.Sizes, 3)
	}
	b.Own = []models.OwnTimes{{From: chunks - 1, Schedule: models.Schedule{
		DeliverAt: at.Add(time.Hour).UTC().Round(0),
		Window:    &models.SendWindow{From: 9 * 60, To: 17 * 60, Zone: "Asia/Tokyo", Strict: true},
		ExpiresAt: at.Add(90 * time.Hour).UTC().Round(0),
	}}}
	return b
}

// chunkOf returns the recipients of chunk n of b, three of them.
func chunkOf(b models.Batch, n int) models.Chunk {
	id := b.ID.Chunk(n)
	return models.Chunk{ID: id, Recipients: []models.Recipient{
		{Email: fmt.Sprintf("a%d@example.com", n), Name: "Ana",
			Vars:    map[string]string{"chunk": id.String(), "city": "São Paulo"},
			Headers: []models.Header{{Name: "X-Order", Value: "№ {{chunk}}"}, {Name: "List-Id", Value: ""}}},
		{Email: fmt.Sprintf("b%d@example.com", n)},
		{Email: fmt.Sprintf("c%d@xn--bcher-kva.example", n), Name: "Bücher 📚", Vars: map[string]string{"empty": ""}},
	}}
}

// accept stores b in the order that the contract requires.
func accept(t *testing.T, s models.Store, b models.Batch) {
	t.Helper()
	ctx := t.Context()
	require.NoError(t, s.Schedule(ctx, models.AgendaEntry{
		Due:    now().Add(30 * time.Minute),
		Kind:   models.LookAtBatch,
		ID:     b.ID,
		User:   b.User,
		Chunks: b.Chunks,
	}))
	for n := 1; n < b.Chunks; n++ {
		require.NoError(t, s.PutChunk(ctx, chunkOf(b, n)))
	}
	require.NoError(t, s.PutBatch(ctx, b, chunkOf(b, 0)))
}

// attempt returns entry n of a ledger with every field of an attempt set.
func attempt(n int, provider string) models.Entry {
	at := time.Now().UTC().Round(0)
	return models.Entry{
		Number:     n,
		Token:      models.NewToken(),
		Kind:       models.Attempt,
		At:         at,
		Recipients: models.SetOf(1, 3, 1000),
		Provider:   provider,
		Worker:     "worker-1",
		StartBy:    at.Add(time.Second),
		CallEnds:   at.Add(time.Minute),
		Retry:      2,
		Split:      1,
		MayDouble:  true,
		Together:   true,
		Because:    "throttled: “slow down”",
	}
}

// outcome returns the fact that attempt n was accepted.
func outcome(n int) models.Fact {
	return models.Fact{Key: models.OutcomeKey(n), Outcome: &models.Outcome{
		Attempt: n,
		At:      time.Now().UTC().Round(0),
		Took:    1234567 * time.Nanosecond,
		Parts: []models.Part{
			{
				Class:      models.Accepted,
				Recipients: models.SetOf(1, 3),
				Status:     202,
				MessageID:  "m-1",
			},
			{
				Class:      models.Throttled,
				Recipients: models.SetOf(1000),
				Status:     429,
				Text:       "too fast",
				RetryAt:    now().Add(time.Second),
				Fewer:      500,
			},
		},
	}}
}

// summary returns a balanced summary with a version.
func summary(version, success, queued int64) models.Summary {
	s := models.Summary{
		Version:   version,
		Accepted:  success + queued,
		Queued:    queued,
		Success:   success,
		Untried:   queued,
		Providers: map[string]models.ProviderCounts{"sg": {Tried: success, Delivered: success}},
	}
	if success == 0 {
		s.Providers = nil
	}
	return s
}
