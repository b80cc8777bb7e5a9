package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

func batchCases() []testCase {
	return []testCase{
		{"Batch/AcceptOneChunk", func(t *testing.T, s models.Store) { testAccept(t, s, 1) }},
		{"Batch/AcceptManyChunks", func(t *testing.T, s models.Store) { testAccept(t, s, 12) }},
		{"Batch/Abandon", testAbandon},
		{"Batch/AbandonOneChunk", testAbandonOneChunk},
		{"Batch/AbandonTooLate", testAbandonTooLate},
		{"Batch/AbandonWrongCount", testAbandonWrongCount},
		{"Batch/AbandonRace", testAbandonRace},
		{"Batch/CommitRace", testCommitRace},
		{"Batch/List", testBatchList},
		{"Batch/ListOldAndFuture", testBatchListWrongClocks},
		{"Batch/ListWhileWriting", testBatchListWhileWriting},
		{"Recipients/Kinds", testRecipients},
		{"Recipients/Thousand", testRecipientsThousand},
		{"Recipients/Large", testRecipientsLarge},
	}
}

// requireAbsent checks that nothing of b is visible.
func requireAbsent(t *testing.T, s models.Store, b models.Batch) {
	t.Helper()
	ctx := t.Context()
	_, err := s.Batch(ctx, b.ID)
	require.ErrorIs(t, err, models.ErrNotFound)
	list, err := s.Batches(ctx, b.User, models.ID{}, 1000)
	require.NoError(t, err)
	require.NotContains(t, list, b)
	for n := range b.Chunks {
		_, err := s.Recipients(ctx, b.ID.Chunk(n))
		require.ErrorIs(t, err, models.ErrNotFound, "chunk %d", n)
	}
}

// requirePresent checks that all of b is visible and unchanged.
func requirePresent(t *testing.T, s models.Store, b models.Batch) {
	t.Helper()
	ctx := t.Context()
	got, err := s.Batch(ctx, b.ID)
	require.NoError(t, err)
	require.Equal(t, b, got)
	list, err := s.Batches(ctx, b.User, models.ID{}, 1000)
	require.NoError(t, err)
	require.Contains(t, list, b)
	for n := range b.Chunks {
		rs, err := s.Recipients(ctx, b.ID.Chunk(n))
		require.NoError(t, err, "chunk %d", n)
		require.Equal(t, chunkOf(b, n).Recipients, rs, "chunk %d", n)
	}
	_, err = s.Recipients(ctx, b.ID.Chunk(b.Chunks))
	require.ErrorIs(t, err, models.ErrNotFound)
}

func testAccept(t *testing.T, s models.Store, chunks int) {
	ctx := t.Context()
	b := newBatch(models.NewUserID(), now(), chunks)
	requireAbsent(t, s, b)
	for n := chunks - 1; n > 0; n-- { // in any order
		require.NoError(t, s.PutChunk(ctx, chunkOf(b, n)))
	}
	requireAbsent(t, s, b)
	for n := 1; n < chunks; n++ { // and again
		require.NoError(t, s.PutChunk(ctx, chunkOf(b, n)))
	}
	requireAbsent(t, s, b)
	due := now().Add(time.Hour)
	entry := models.AgendaEntry{Due: due, Kind: models.LookAtBatch, ID: b.ID, User: b.User, Chunks: chunks}
	for range 2 {
		require.NoError(t, s.PutBatch(ctx, b, chunkOf(b, 0), entry))
		requirePresent(t, s, b)
		scheduled := agendaOf(t, s, due, due.Add(time.Millisecond), map[models.ID]bool{b.ID: true})
		require.Equal(t, []models.AgendaEntry{entry}, scheduled)
	}

	require.NoError(t, s.PutBatch(ctx, b, chunkOf(b, 0)))
	if chunks > 1 {
		require.NoError(t, s.PutChunk(ctx, chunkOf(b, 1)))
	}
	requirePresent(t, s, b)
	list, err := s.Batches(ctx, b.User, models.ID{}, 10)
	require.NoError(t, err)
	require.Equal(t, []models.Batch{b}, list, "listed once")
	list, err = s.Batches(ctx, models.NewUserID(), models.ID{}, 10)
	require.NoError(t, err)
	require.Empty(t, list)
	_, err = s.Batch(ctx, models.NewBatchID(b.Created()))
	require.ErrorIs(t, err, models.ErrNotFound)
}

func testAbandon(t *testing.T, s models.Store) {
	ctx := t.Context()
	b := newBatch(models.NewUserID(), now(), 4)
	for n := 1; n < 3; n++ { // the client disconnected before chunk 3
		require.NoError(t, s.PutChunk(ctx, chunkOf(b, n)))
	}
	for range 2 {
		gone, err := s.AbandonBatch(ctx, b.ID, b.Chunks)
		require.NoError(t, err)
		require.True(t, gone)
		requireAbsent(t, s, b)
	}
	require.NoError(t, s.PutChunk(ctx, chunkOf(b, 3)), "the writer does not know that it was abandoned")
	for range 2 {
		require.ErrorIs(t, s.PutBatch(ctx, b, chunkOf(b, 0)), models.ErrNotFound)
		requireAbsent(t, s, b)
	}

	never := newBatch(models.NewUserID(), now(), 2) // nothing of it was stored
	gone, err := s.AbandonBatch(ctx, never.ID, never.Chunks)
	require.NoError(t, err)
	require.True(t, gone)
	require.ErrorIs(t, s.PutBatch(ctx, never, chunkOf(never, 0)), models.ErrNotFound)
	requireAbsent(t, s, never)
}

// testAbandonOneChunk abandons a batch of one chunk that does not exist.
func testAbandonOneChunk(t *testing.T, s models.Store) {
	ctx := t.Context()
	b := newBatch(models.NewUserID(), now(), 1)
	gone, err := s.AbandonBatch(ctx, b.ID, 1)
	require.NoError(t, err)
	require.True(t, gone)
	requireAbsent(t, s, b)
}

func testAbandonTooLate(t *testing.T, s models.Store) {
	for _, chunks := range []int{1, 3} {
		b := newBatch(models.NewUserID(), now(), chunks)
		accept(t, s, b)
		for range 2 {
			gone, err := s.AbandonBatch(t.Context(), b.ID, chunks)
			require.NoError(t, err)
			require.False(t, gone)
			requirePresent(t, s, b)
		}
		require.NoError(t, s.PutBatch(t.Context(), b, chunkOf(b, 0)))
	}
}

// testAbandonWrongCount abandons batches with a wrong number of chunks. It must not change
// the decision.
func testAbandonWrongCount(t *testing.T, s models.Store) {
	ctx := t.Context()
	for _, chunks := range []int{1, 3} {
		for _, count := range []int{-1, 0, 1, 2, 50} {
			b := newBatch(models.NewUserID(), now(), chunks)
			accept(t, s, b)
			for range 2 {
				gone, err := s.AbandonBatch(ctx, b.ID, count)
				require.NoError(t, err)
				require.False(t, gone, "%d chunks, abandoned as %d", chunks, count)
				requirePresent(t, s, b)
			}

			half := newBatch(models.NewUserID(), now(), chunks)
			for n := 1; n < chunks; n++ {
				require.NoError(t, s.PutChunk(ctx, chunkOf(half, n)))
			}
			gone, err := s.AbandonBatch(ctx, half.ID, count)
			require.NoError(t, err)
			require.True(t, gone)
			requireAbsent(t, s, half)
			require.ErrorIs(t, s.PutBatch(ctx, half, chunkOf(half, 0)), models.ErrNotFound)
			requireAbsent(t, s, half)
		}
	}
}

// errKept counts a call to AbandonBatch that came too late.
var errKept = errors.New("the batch exists")

func testAbandonRace(t *testing.T, s models.Store) {
	ctx := t.Context()
	for range 12 {
		b := newBatch(models.NewUserID(), now(), 3)
		for n := 1; n < b.Chunks; n++ {
			require.NoError(t, s.PutChunk(ctx, chunkOf(b, n)))
		}
		errs := together(4, func(i int) error {
			if i%2 == 0 {
				return settled(ctx, func() error { return s.PutBatch(ctx, b, chunkOf(b, 0)) })
			}
			return settled(ctx, func() error {
				gone, err := s.AbandonBatch(ctx, b.ID, b.Chunks)
				if err == nil && !gone {
					return errKept
				}
				return err
			})
		})
		if errs[0] == nil {
			require.NoError(t, errs[2])
			require.ErrorIs(t, errs[1], errKept)
			require.ErrorIs(t, errs[3], errKept)
			requirePresent(t, s, b)
		} else {
			require.ErrorIs(t, errs[0], models.ErrNotFound)
			require.ErrorIs(t, errs[2], models.ErrNotFound)
			require.NoError(t, errs[1])
			require.NoError(t, errs[3])
			requireAbsent(t, s, b)
		}
	}
}

// settled repeats f while it returns ErrOutcomeUnknown or ErrUnavailable.
func settled(ctx context.Context, f func() error) error {
	for {
		err := f()
		if ctx.Err() != nil || !errors.Is(err, models.ErrOutcomeUnknown) && !errors.Is(err, models.ErrUnavailable) {
			return err
		}
	}
}

func testCommitRace(t *testing.T, s models.Store) {
	b := newBatch(models.NewUserID(), now(), 2)
	require.NoError(t, s.PutChunk(t.Context(), chunkOf(b, 1)))
	allNil(t, together(8, func(int) error {
		return settled(t.Context(), func() error { return s.PutBatch(t.Context(), b, chunkOf(b, 0)) })
	}))
	requirePresent(t, s, b)
	list, err := s.Batches(t.Context(), b.User, models.ID{}, 10)
	require.NoError(t, err)
	require.Equal(t, []models.Batch{b}, list)
}

func newestFirst(a, b models.Batch) int { return -slices.Compare(a.ID[:], b.ID[:]) }

func testBatchList(t *testing.T, s models.Store) {
	ctx := t.Context()
	user := models.NewUserID()
	var want []models.Batch
	for i := range 25 {
		at := now().Add(-time.Duration(i/5) * 7 * time.Hour) // five in the same millisecond
		b := newBatch(user, at, 1+i%2)
		accept(t, s, b)
		accept(t, s, newBatch(models.NewUserID(), at, 1))
		want = append(want, b)
	}
	slices.SortFunc(want, newestFirst)
	for _, limit := range []int{1, 7, 25, 100} {
		var got []models.Batch
		for before := (models.ID{}); ; {
			page, err := s.Batches(ctx, user, before, limit)
			require.NoError(t, err)
			require.LessOrEqual(t, len(page), limit)
			if len(page) == 0 {
				break
			}
			got = append(got, page...)
			require.LessOrEqual(t, len(got), len(want), "pages of %d do not end", limit)
			before = page[len(page)-1].ID
		}
		require.Equal(t, want, got, "pages of %d", limit)
	}
	page, err := s.Batches(ctx, user, models.MinID(now().Add(-20*time.Hour)), 100)
	require.NoError(t, err)
	require.Equal(t, want[15:], page, "from a moment on")
	var oldestFirst []models.ID
	for _, b := range slices.Backward(want) {
		oldestFirst = append(oldestFirst, b.ID)
	}
	for _, limit := range []int{1, 7, 25, 100} {
		var got []models.ID
		for after := (models.ID{}); ; after = got[len(got)-1] {
			page, err := s.BatchIDsAfter(ctx, user, after, limit)
			require.NoError(t, err)
			require.LessOrEqual(t, len(page), limit)
			if got = append(got, page...); len(page) == 0 {
				break
			}
		}
		require.Equal(t, oldestFirst, got, "pages of %d, oldest first", limit)
	}
}

// testBatchListWrongClocks lists batches that were accepted by wrong clocks.
func testBatchListWrongClocks(t *testing.T, s models.Store) {
	user := models.NewUserID()
	var want []models.Batch
	for _, off := range []time.Duration{0, -400 * 24 * time.Hour, time.Hour, -time.Hour, -40 * 24 * time.Hour} {
		b := newBatch(user, now().Add(off), 1)
		accept(t, s, b)
		want = append(want, b)
	}
	slices.SortFunc(want, newestFirst)
	got, err := s.Batches(t.Context(), user, models.ID{}, 10)
	require.NoError(t, err)
	require.Equal(t, want, got)
	got, err = s.Batches(t.Context(), user, want[0].ID, 3)
	require.NoError(t, err)
	require.Equal(t, want[1:4], got)
}

func testBatchListWhileWriting(t *testing.T, s models.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	user := models.NewUserID()
	var there []models.Batch
	for range 20 {
		b := newBatch(user, now(), 1)
		accept(t, s, b)
		there = append(there, b)
	}
	wrote := make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			b := newBatch(user, now().Add(time.Duration(rand.N(4000)-2000)*time.Millisecond), 1)
			if err := s.PutBatch(ctx, b, chunkOf(b, 0)); err != nil && ctx.Err() == nil {
				wrote <- err
				return
			}
		}
		wrote <- nil
	}()
	for range 5 {
		seen := map[models.ID]bool{}
		for before := (models.ID{}); ; {
			page, err := s.Batches(ctx, user, before, 16)
			require.NoError(t, err)
			for _, b := range page {
				require.False(t, seen[b.ID], "listed twice")
				require.True(t, before.IsZero() || slices.Compare(b.ID[:], before[:]) < 0, "not in order")
				seen[b.ID], before = true, b.ID
			}
			if len(page) == 0 {
				break
			}
		}
		for _, b := range there {
			require.True(t, seen[b.ID], "a batch that was there before the call is missing")
		}
	}
	cancel()
	require.NoError(t, <-wrote)
}

// requireRecipients stores recipients in two chunks and checks them.
func requireRecipients(t *testing.T, s models.Store, rs []models.Recipient) {
	t.Helper()
	b := newBatch(models.NewUserID(), now(), 2)
	b.Recipients, b.Sizes = 2*len(rs), []int{len(rs), len(rs)}
	require.NoError(t, s.PutChunk(t.Context(), models.Chunk{ID: b.ID.Chunk(1), Recipients: rs}))
	require.NoError(t, s.PutBatch(t.Context(), b, models.Chunk{ID: b.ID, Recipients: rs}))
	for n := range 2 {
		got, err := s.Recipients(t.Context(), b.ID.Chunk(n))
		require.NoError(t, err)
		require.Equal(t, rs, got)
	}
}

func testRecipients(t *testing.T, s models.Store) {
	requireRecipients(t, s, []models.Recipient{
		{Email: "plain@example.com"},
		{Email: "δοκιμή@example.com", Name: "Δοκιμή \"quoted\" <x>"},
		{Email: "a'b;--@example.com", Name: "Robert'); DROP TABLE batches;--",
			Vars: map[string]string{"": "empty key", "emoji": "👩‍👩‍👧‍👦"}},
		{Email: "nul@example.com", Vars: map[string]string{"nul": "a\x00b", "newline": "a\r\nb", "bytes": "\xff\xfe"}},
		{Email: "plain@example.com"}, // the store does not check addresses
	})
}

func testRecipientsThousand(t *testing.T, s models.Store) {
	var rs []models.Recipient
	for i := range models.MaxChunkRecipients {
		rs = append(rs, models.Recipient{Email: fmt.Sprintf("user%d@example.com", i), Name: fmt.Sprint("User ", i),
			Vars: map[string]string{"n": fmt.Sprint(i)}})
	}
	requireRecipients(t, s, rs)
}

// testRecipientsLarge stores the largest chunk, with values that do not compress.
func testRecipientsLarge(t *testing.T, s models.Store) {
	var rs []models.Recipient
	for size := 0; size < models.MaxChunkBytes-5000; {
		var v strings.Builder
		for v.Len() < 4000 {
			v.WriteRune(rune(0x20 + rand.N(0x2000)))
		}
		r := models.Recipient{Email: fmt.Sprintf("user%d@example.com", len(rs)), Vars: map[string]string{"v": v.String()}}
		rs = append(rs, r)
		size += r.Size()
	}
	requireRecipients(t, s, rs)
}
