package storetest

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

func feedCases() []testCase {
	return []testCase{
		{"Feed", testFeed},
		{"FeedDrop", testFeedDrop},
		{"Published", testPublished},
	}
}

// feedEntry returns entry n of a feed, with every field set.
func feedEntry(n int, chunks ...models.ID) models.FeedEntry {
	e := models.FeedEntry{
		Number:  n,
		Token:   models.NewToken(),
		At:      time.UnixMicro(1_800_000_000_000_000 + int64(n)).UTC(),
		Settled: n - 1,
	}
	for _, id := range chunks {
		e.Chunks = append(e.Chunks, models.FeedChunk{Chunk: id, Version: 7, Ended: 1, Done: n, Changes: []models.FeedChange{
			{State: models.Success, Provider: "sg", Number: 1, Recipients: models.SetTo(900)},
			{State: models.Failed, Reason: models.MailboxInvalid, Provider: "mg", Number: n, Recipients: models.SetOf(1000)},
			{State: models.Queued, Number: 3, Recipients: models.SetOf(950, 952)},
			{Event: models.Bounced, Reason: models.MailboxFull, Provider: "sg", Number: 2, Recipients: models.SetOf(7)},
		}})
	}
	if n%3 == 0 {
		k := models.SuppressionKey{Hash: models.HashAddress("a@x.test"), Category: "news", Reason: models.Unsubscribe}
		at := e.At.Truncate(time.Millisecond)
		e.Suppressions = []models.FeedSuppression{
			{
				SuppressionKey: k,
				Origin:         models.FromLink,
				Log:            models.NewBatchID(now()).Log(n),
				At:             at,
				Expires:        at.Add(time.Hour),
			},
			{SuppressionKey: k, Origin: models.FromImport, At: at},
		}
	}
	if n%2 == 0 {
		e.Notices = []models.Notice{
			{Kind: models.ProviderSuspended, Number: n, Provider: "sg", Reason: "calls", Why: "503", Since: e.At, Until: e.At},
			{Kind: models.QuotaNear, Number: n + 1, Count: 9, User: "u", Limit: models.RecipientsPerDay, Most: 10},
			{Kind: models.EndpointDisabled, Number: n + 2, User: "u", Endpoint: &models.FailedEndpoint{
				ID: "e", Why: "410", Since: e.At,
			}},
		}
		e.Status = []byte{0, 1, 2}
	}
	return e
}

// published returns the state of a chunk that an entry has published.
func published(chunk models.ID, entry int) models.Published {
	e := feedEntry(entry, chunk)
	t := models.Published{Chunk: chunk}
	t.Apply(&e)
	return t
}

// readFeed reads a feed from its begin in pages of a size.
func readFeed(t *testing.T, s models.Store, user string, limit int) (all []models.FeedEntry) {
	t.Helper()
	for after := 0; ; after = all[len(all)-1].Number {
		page, err := s.Feed(t.Context(), user, after, limit)
		require.NoError(t, err)
		require.LessOrEqual(t, len(page), limit)
		if len(page) == 0 {
			return all
		}
		all = append(all, page...)
	}
}

func testFeed(t *testing.T, s models.Store) {
	ctx, user := t.Context(), models.NewUserID()
	require.Empty(t, readFeed(t, s, user, 10))
	_, err := s.FeedHead(ctx, user)
	require.ErrorIs(t, err, models.ErrNotFound)
	require.ErrorIs(t, s.AppendFeed(ctx, user, feedEntry(0)), models.ErrInvalid)
	require.ErrorIs(t, s.AppendFeed(ctx, user, feedEntry(2)), models.ErrInvalid, "a gap")
	first := feedEntry(1, models.NewBatchID(now()), models.NewBatchID(now()).Chunk(7))
	require.NoError(t, s.AppendFeed(ctx, user, first))
	require.NoError(t, s.AppendFeed(ctx, user, first), "the same token again")
	require.ErrorIs(t, s.AppendFeed(ctx, user, feedEntry(1)), models.ErrExists)
	require.ErrorIs(t, s.AppendFeed(ctx, user, feedEntry(3)), models.ErrInvalid, "a gap")
	require.NoError(t, s.AppendFeed(ctx, models.NewUserID(), feedEntry(1)))

	// Exactly one of several wins a number.
	want := []models.FeedEntry{first}
	for n := 2; n <= 20; n++ {
		var won atomic.Pointer[models.FeedEntry]
		allNil(t, together(4, func(int) error {
			e := feedEntry(n, models.NewBatchID(now()))
			err := s.AppendFeed(ctx, user, e)
			if err == nil && !won.CompareAndSwap(nil, &e) {
				return fmt.Errorf("two callers appended %d", n)
			}
			return nil
		}))
		require.NotNil(t, won.Load())
		want = append(want, *won.Load())
	}
	for n := 21; n <= 520; n++ { // more than a partition
		e := feedEntry(n)
		require.NoError(t, s.AppendFeed(ctx, user, e))
		want = append(want, e)
	}
	for _, limit := range []int{13, 250, 1000} {
		require.Equal(t, want, readFeed(t, s, user, limit), "pages of %d", limit)
	}
	head, err := s.FeedHead(ctx, user)
	require.NoError(t, err)
	require.Equal(t, want[519], head)
	page, err := s.Feed(ctx, user, 0, 0)
	require.NoError(t, err)
	require.Empty(t, page)
}

// testFeedDrop drops old entries. Some of them may stay, but no gap appears, and no number is
// given twice.
func testFeedDrop(t *testing.T, s models.Store) {
	ctx, user := t.Context(), models.NewUserID()
	require.NoError(t, s.DropFeed(ctx, user, 5), "there is none")
	var want []models.FeedEntry
	for n := 1; n <= 450; n++ {
		want = append(want, feedEntry(n))
		require.NoError(t, s.AppendFeed(ctx, user, want[n-1]))
	}
	for _, before := range []int{300, 300, 20} {
		require.NoError(t, s.DropFeed(ctx, user, before))
		got := readFeed(t, s, user, 100)
		require.Greater(t, got[0].Number, 1, "something is removed")
		require.LessOrEqual(t, got[0].Number, 300)
		require.Equal(t, want[got[0].Number-1:], got)
	}
	require.NoError(t, s.DropFeed(ctx, user, 1000))
	head, err := s.FeedHead(ctx, user)
	require.NoError(t, err)
	require.Equal(t, want[449], head)
	for _, n := range []int{1, 200, 450} {
		err := s.AppendFeed(ctx, user, feedEntry(n))
		require.Error(t, err)
		require.NotErrorIs(t, err, models.ErrUnavailable)
	}
	require.NoError(t, s.AppendFeed(ctx, user, feedEntry(451)))
}

func testPublished(t *testing.T, s models.Store) {
	ctx, b := t.Context(), models.NewBatchID(now())
	got, err := s.Published(ctx, b)
	require.NoError(t, err)
	require.Empty(t, got)
	require.NoError(t, s.PutPublished(ctx))
	require.NoError(t, s.PutPublished(ctx, published(b, 5), published(b.Chunk(1), 2)))
	require.NoError(t, s.PutPublished(ctx, published(b, 4)), "an older one changes nothing")
	require.NoError(t, s.PutPublished(ctx, published(b.Chunk(1), 3)))
	require.NoError(t, s.PutPublished(ctx, published(b.Chunk(1), 3)), "again")
	got, err = s.Published(ctx, b, b.Chunk(1), b.Chunk(2))
	require.NoError(t, err)
	require.ElementsMatch(t, []models.Published{published(b, 5), published(b.Chunk(1), 3)}, got)
}
