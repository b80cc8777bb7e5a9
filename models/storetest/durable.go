package storetest

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// RunDurable checks that what was written is there after the store is closed and opened
// again. openAt makes a new, empty place for data and removes it in t.Cleanup. The function
// that it returns opens a store there. The suite closes one store before it opens the next.
func RunDurable(t *testing.T, openAt func(t *testing.T) (open func() models.Store)) {
	t.Helper()
	open := openAt(t)
	t.Run("Everything", func(t *testing.T) { testReopen(t, open) })
	t.Run("AcknowledgedBeforeClose", func(t *testing.T) { testAcknowledged(t, open) })
}

func testReopen(t *testing.T, open func() models.Store) {
	ctx := t.Context()
	s := open()
	u := newUser("durable")
	k, _ := models.NewKey(u.ID, "k", now())
	k.Created, k.Revoked = now(), now()
	live := k
	live.Revoked = time.Time{}
	require.NoError(t, s.CreateUser(ctx, u))
	require.NoError(t, s.CreateKey(ctx, live))
	require.NoError(t, s.RevokeKey(ctx, u.ID, k.ID, k.Revoked))

	b, gone, half := newBatch(u.ID, noon(), 3), newBatch(u.ID, noon(), 2), newBatch(u.ID, noon(), 2)
	accept(t, s, b)
	abandoned, err := s.AbandonBatch(ctx, gone.ID, 2)
	require.NoError(t, err)
	require.True(t, abandoned)
	require.NoError(t, s.PutChunk(ctx, chunkOf(half, 1)))

	e, f := attempt(1, "sg"), outcome(1)
	require.NoError(t, s.Append(ctx, b.ID, e))
	require.NoError(t, s.PutFacts(ctx, models.ChunkFact{Chunk: b.ID, Fact: f}))
	require.NoError(t, s.PutSummaries(ctx, models.ChunkSummary{User: u.ID, Chunk: b.ID, Summary: summary(2, 2, 1)}))
	sum := rollUp(t, s, u.ID, noon())

	due, own := entries(50, now().Add(time.Minute), time.Second)
	require.NoError(t, s.Schedule(ctx, due...))
	mark := now().Add(-time.Hour)
	require.NoError(t, s.SetAgendaMark(ctx, 0, mark))
	posts := []models.Inbox{post(now(), "done"), post(now(), "pending")}
	for _, p := range posts {
		require.NoError(t, s.PutInbox(ctx, p))
	}
	require.NoError(t, s.InboxDone(ctx, posts[0].ID))
	oldest := models.NewInboxID(now())
	_, err = s.GuardReplays(ctx, models.ReplayMark{
		Group:  "g",
		Key:    u.Name,
		Digest: "first",
		Entry:  oldest,
	})
	require.NoError(t, err)
	held, err := s.Lease(ctx, u.Name, "me", time.Hour)
	require.NoError(t, err)
	require.True(t, held)
	shards := s.Shards()

	for range 2 {
		require.NoError(t, s.Close())
		s = open()
		require.Equal(t, shards, s.Shards())
		got, err := s.UserByName(ctx, u.Name)
		require.NoError(t, err)
		require.Equal(t, u, got)
		key, err := s.KeyByHash(ctx, k.Hash)
		require.NoError(t, err)
		require.Equal(t, k, key)
		requirePresent(t, s, b)
		requireAbsent(t, s, gone)
		require.ErrorIs(t, s.PutBatch(ctx, gone, chunkOf(gone, 0)), models.ErrNotFound)
		requireAbsent(t, s, half)
		requireRecord(t, s, b.ID, []models.Entry{e}, []models.Fact{f})
		var conflict *models.ConflictError
		require.ErrorAs(t, s.Append(ctx, b.ID, attempt(1, "mg")), &conflict)
		require.Equal(t, e, conflict.Winner)
		require.Equal(t, sum, rollUp(t, s, u.ID, noon()))
		require.Equal(t, due, agendaOf(t, s, now(), now().Add(time.Hour), own))
		at, err := s.AgendaMark(ctx, 0)
		require.NoError(t, err)
		require.Equal(t, mark, at)
		in, err := s.Inbox(ctx, ids(posts)...)
		require.NoError(t, err)
		require.Equal(t, posts, in)
		require.Equal(t, ids(posts[1:]), pendingOf(t, s, now().Add(-time.Hour), now().Add(time.Hour), posts))
		first, err := s.GuardReplays(ctx, models.ReplayMark{
			Group:  "g",
			Key:    u.Name,
			Digest: "second",
			Entry:  models.NewInboxID(now().Add(time.Second)),
		})
		require.NoError(t, err)
		require.Equal(t, []string{"first"}, first)
		held, err := s.Lease(ctx, u.Name, "me", time.Hour)
		require.NoError(t, err)
		require.True(t, held, "renewed, or free again")
	}
	require.NoError(t, s.PutBatch(ctx, half, chunkOf(half, 0)), "its other chunk was kept")
	requirePresent(t, s, half)
	require.NoError(t, s.Close())
}

// testAcknowledged closes a store while goroutines write. All writes that returned nil must
// be there afterwards.
func testAcknowledged(t *testing.T, open func() models.Store) {
	ctx := t.Context()
	s := open()
	const writers = 12
	var (
		all     sync.WaitGroup
		busy    sync.WaitGroup
		ledger  [writers][]models.Entry
		batches [writers][]models.Batch
		posts   [writers][]models.Inbox
		ends    [writers]error
	)
	chunk := models.NewBatchID(now())
	for i := range writers {
		busy.Add(1)
		all.Go(func() {
			ready := sync.OnceFunc(busy.Done)
			defer ready()
			for n := 1; ; n++ {
				e, b, p := attempt(n, "sg"), newBatch(models.NewUserID(), now(), 1), post(now(), fmt.Sprint("post ", n))
				if ends[i] = s.Append(ctx, chunk.Chunk(i), e); ends[i] != nil {
					return
				}
				ledger[i] = append(ledger[i], e)
				if ends[i] = s.PutBatch(ctx, b, chunkOf(b, 0)); ends[i] != nil {
					return
				}
				batches[i] = append(batches[i], b)
				if ends[i] = s.PutInbox(ctx, p); ends[i] != nil {
					return
				}
				posts[i] = append(posts[i], p)
				if n == 3 {
					ready()
				}
			}
		})
	}
	busy.Wait()
	require.NoError(t, s.Close())
	all.Wait()

	s = open()
	for i := range writers {
		require.ErrorIs(t, ends[i], models.ErrClosed)
		got, err := s.Ledger(ctx, chunk.Chunk(i))
		require.NoError(t, err)
		require.Equal(t, ledger[i], got[:len(ledger[i])])
		for _, b := range batches[i] {
			requirePresent(t, s, b)
		}
		in, err := s.Inbox(ctx, ids(posts[i])...)
		require.NoError(t, err)
		require.Equal(t, posts[i], in)
	}
	require.NoError(t, s.Close())
}
