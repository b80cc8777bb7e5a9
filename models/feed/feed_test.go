package feed

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store/memory"
)

func TestMain(m *testing.M) { testkit.VerifyNoLeaks(m) }

// chunk returns a version of a chunk of size recipients, with those that have ended.
func chunk(id models.ID, size, version int, ended models.Set) Chunk {
	entries := []models.Entry{{Number: 1, Kind: models.Ending, Reason: models.Expired, Recipients: ended}}
	for n := 2; n <= version; n++ {
		entries = append(entries, models.Entry{Number: n, Kind: models.Ending})
	}
	return Chunk{ID: id, View: models.Resolve(size, entries, nil).ForFeed()}
}

// readAll reads a feed to its end.
func readAll(t *testing.T, s models.FeedStore, user string, limit int) (all []Update) {
	t.Helper()
	for p, more := Begin, true; more; {
		page, err := Read(t.Context(), s, user, Query{After: p, Limit: limit})
		require.NoError(t, err)
		require.LessOrEqual(t, len(page.Updates), limit)
		all, p, more = append(all, page.Updates...), page.Next, page.More
	}
	return all
}

// TestManyChunks: the changes of many chunks are several entries of a bounded size, and can be read in pages
// of any size.
func TestManyChunks(t *testing.T) {
	t.Parallel()
	s, user := memory.Open(t), models.NewUserID()
	var chunks []Chunk
	for range 3 * maxChunks / 2 {
		chunks = append(chunks, chunk(models.NewBatchID(time.Now()), 2, 1, models.SetOf(1, 2)))
	}
	odd := models.Set{}
	for n := 1; n < 1000; n += 2 {
		odd.Add(n)
	}
	for range 200 {
		chunks = append(chunks, chunk(models.NewBatchID(time.Now()), 1000, 1, odd))
	}
	require.NoError(t, NewWriter(s).Publish(t.Context(), user, chunks))
	entries, err := s.Feed(t.Context(), user, 0, 1000)
	require.NoError(t, err)
	require.Greater(t, len(entries), 3)
	for i := range entries {
		require.LessOrEqual(t, len(entries[i].Chunks), maxChunks)
		require.Equal(t, i+1, entries[i].Number)
	}
	all := readAll(t, s, user, 7919)
	require.Len(t, all, 3*maxChunks+200*500)
	require.Equal(t, all, readAll(t, s, user, 97))
	require.NoError(t, NewWriter(s).Publish(t.Context(), user, chunks))
	head, err := s.FeedHead(t.Context(), user)
	require.NoError(t, err)
	require.Equal(t, len(entries), head.Number, "nothing is new")
}

// TestBatchesEnd: the end of a batch of several chunks is published when the last of them has ended, with any writers
// of the chunks, and even if its published state is not stored. It is published again when the batch was opened and has
// ended once more.
func TestBatchesEnd(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s, user, batch := memory.Open(t), models.NewUserID(), models.NewBatchID(time.Now())
	const chunks, size = 5, 2
	views := [chunks][]models.Entry{}
	change := func(n int, e models.Entry) {
		e.Number, e.Recipients = len(views[n])+1, models.SetTo(size)
		views[n] = append(views[n], e)
	}
	writers := []*Writer{NewWriter(s), NewWriter(forgetful{s}), NewWriter(s)}
	publish := func(ns ...int) {
		t.Helper()
		i := rand.IntN(len(writers))
		var some []Chunk
		for _, n := range ns {
			view := models.Resolve(size, views[n], nil).ForFeed()
			some = append(some, Chunk{ID: batch.Chunk(n), View: view, Of: chunks})
		}
		if err := writers[i].Publish(ctx, user, some); err != nil { // it has stopped before it stored what was published
			require.ErrorIs(t, err, models.ErrUnavailable)
			writers[i] = NewWriter(forgetful{s})
		}
	}
	end := models.Entry{Kind: models.Ending, Reason: models.Expired}
	release := models.Entry{Kind: models.Release}
	ends := func(from int) (found []Update) {
		for _, u := range readAll(t, s, user, 3)[from:] {
			if u.Event == models.BatchEnded {
				require.Equal(t, batch, u.Log)
				found = append(found, u)
			}
		}
		return found
	}
	for _, n := range rand.Perm(chunks) {
		require.Empty(t, ends(0))
		change(n, end)
		publish(n)
	}
	for round := range 5 {
		found := ends(0)
		require.Len(t, found, round+1)
		require.Equal(t, round+1, found[round].Number)
		a, b := rand.IntN(chunks-1), chunks-1
		for _, n := range []int{a, b} {
			change(n, release)
		}
		publish(a, b)
		change(a, end)
		publish(a)
		require.Len(t, ends(0), round+1, "one chunk is open")
		change(b, end)
		publish(b, a)
	}
	published, err := NewWriter(s).Published(ctx, user, batch)
	require.NoError(t, err)
	require.Equal(t, models.PublishedBatch{Ended: chunks, Done: 6}, published[batch].Batch)
}

// forgetful is a store that does not store what was published.
type forgetful struct{ models.Store }

func (s forgetful) PutPublished(context.Context, ...models.Published) error {
	return models.ErrUnavailable
}

// TestSettle: other workers know what a worker has published that stopped, and store it some time later.
// Only then may its entries be dropped.
func TestSettle(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s, user, id := memory.Open(t), models.NewUserID(), models.NewBatchID(time.Now())
	stopped := NewWriter(forgetful{s})
	require.Error(t, stopped.Publish(ctx, user, []Chunk{chunk(id, 9, 1, models.SetOf(1))}))
	var late time.Duration
	w := NewWriter(s)
	w.now = func() time.Time { return time.Now().Add(late) }
	publish := func(chunk Chunk) models.FeedEntry {
		require.NoError(t, w.Publish(ctx, user, []Chunk{chunk}))
		head, err := s.FeedHead(ctx, user)
		require.NoError(t, err)
		return head
	}
	require.Equal(t, 1, publish(chunk(id, 9, 1, models.SetOf(1))).Number)
	head := publish(chunk(models.NewBatchID(time.Now()), 1, 1, models.SetOf(1)))
	require.Equal(t, 2, head.Number)
	require.Zero(t, head.Settled)
	require.NoError(t, Drop(ctx, s, user, time.Now().Add(time.Hour)))
	require.Len(t, readAll(t, s, user, 10), 2, "they may be needed")
	rows, err := s.Published(ctx, id)
	require.NoError(t, err)
	require.Empty(t, rows)

	late = settleLate
	publish(chunk(models.NewBatchID(time.Now()), 1, 1, models.SetOf(1)))
	rows, err = s.Published(ctx, id)
	require.NoError(t, err)
	require.Len(t, rows, 1)
	require.Equal(t, 1, rows[0].Entry)
	head = publish(chunk(models.NewBatchID(time.Now()), 1, 1, models.SetOf(1)))
	require.Equal(t, 3, head.Settled)
	require.NoError(t, Drop(ctx, s, user, time.Now().Add(time.Hour)))
	require.Len(t, readAll(t, s, user, 10), 1)
	_, err = Read(ctx, s, user, Query{After: Position{Entry: 1}, Limit: 1})
	require.ErrorIs(t, err, ErrExpired)
	require.Equal(t, 5, publish(chunk(id, 9, 2, models.SetOf(1, 2))).Number)
	newest := readAll(t, s, user, 10)
	require.Equal(t, id.Log(2), newest[len(newest)-1].Log)
}

// TestWritersTogether: writers of one feed that are asked for the same at the same time publish it once.
func TestWritersTogether(t *testing.T) {
	t.Parallel()
	s, user := memory.Open(t), models.NewUserID()
	ids := make([]models.ID, 20)
	for i := range ids {
		ids[i] = models.NewBatchID(time.Now())
	}
	var group sync.WaitGroup
	var failed atomic.Value
	for range 4 {
		w := NewWriter(s)
		group.Go(func() {
			for version := 1; version <= 10; version++ {
				var chunks []Chunk
				for _, n := range rand.Perm(len(ids)) {
					chunks = append(chunks, chunk(ids[n], 10, version, models.SetTo(version)))
				}
				if err := w.Publish(context.Background(), user, chunks); err != nil {
					failed.Store(err)
				}
			}
		})
	}
	group.Wait()
	require.Nil(t, failed.Load())
	seen := map[models.ID]bool{}
	for _, u := range readAll(t, s, user, 13) {
		require.False(t, seen[u.Log], "once")
		require.Equal(t, 1, u.Number)
		seen[u.Log] = true
	}
	require.Len(t, seen, 10*len(ids))
}

// TestFind finds positions by time.
func TestFind(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s, user := memory.Open(t), models.NewUserID()
	_, err := Find(ctx, s, user, time.Now())
	require.ErrorIs(t, err, models.ErrNotFound)
	var at []time.Time
	for n := 1; n <= 50; n++ {
		e := models.FeedEntry{Number: n, Token: models.NewToken(), At: time.UnixMicro(int64(1000 * n)).UTC(), Settled: n - 1}
		require.NoError(t, s.AppendFeed(ctx, user, e))
		at = append(at, e.At)
	}
	require.NoError(t, Drop(ctx, s, user, at[9]))
	for n := 10; n <= 50; n++ {
		for d, want := range map[time.Duration]int{0: n - 1, -time.Microsecond: n - 1, time.Microsecond: n} {
			p, err := Find(ctx, s, user, at[n-1].Add(d))
			require.NoError(t, err)
			require.Equal(t, want, max(p.Entry, 9), "%d %s", n, d)
		}
	}
	p, err := Read(ctx, s, user, Query{After: Position{Entry: 20}, To: at[29], Limit: 1})
	require.NoError(t, err)
	require.Equal(t, 29, p.Next.Entry)
	require.Equal(t, at[29], p.Next.Complete)
	before := time.Now().Add(-time.Second)
	require.NoError(t, Complete(ctx, s, user, before))
	head, err := s.FeedHead(ctx, user)
	require.NoError(t, err)
	require.Equal(t, 51, head.Number)
	require.False(t, head.At.Before(before.Truncate(time.Microsecond)))
	require.Equal(t, 50, head.Settled)
	require.NoError(t, Complete(ctx, s, user, before))
	require.NoError(t, Complete(ctx, s, user, time.Now().Add(time.Hour)), "the future counts as now")
}

// TestOtherFeed: a position of a feed that was replaced by an older one, and then got other entries, is
// an error and not a gap.
func TestOtherFeed(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s, user := memory.Open(t), models.NewUserID()
	w := NewWriter(s)
	publish := func() {
		require.NoError(t, w.Publish(ctx, user, []Chunk{chunk(models.NewBatchID(time.Now()), 1, 1, models.SetOf(1))}))
	}
	publish()
	lost := Position{Entry: 3, Complete: time.Now()} // of the feed before the backup was restored
	for range 2 {
		_, err := Read(ctx, s, user, Query{After: lost, Limit: 1})
		require.ErrorIs(t, err, ErrExpired)
		publish()
	}
	for range 3 {
		publish()
		_, err := Read(ctx, s, user, Query{After: lost, Limit: 1})
		require.ErrorIs(t, err, ErrExpired)
	}
	p, err := Read(ctx, s, user, Query{Limit: 3})
	require.NoError(t, err)
	p, err = Read(ctx, s, user, Query{After: p.Next, Limit: 3})
	require.NoError(t, err)
	require.Len(t, p.Updates, 2+1)
}

// growing is a feed whose entries are only numbers. It counts how often it is read.
type growing struct {
	models.FeedStore
	head, reads atomic.Int64
}

func (s *growing) Feed(_ context.Context, _ string, after, _ int) ([]models.FeedEntry, error) {
	s.reads.Add(1)
	if int64(after) >= s.head.Load() {
		return nil, nil
	}
	return []models.FeedEntry{{Number: after + 1}}, nil
}

// TestTails: many who wait for a feed cost as many reads as one, and none when they have left.
func TestTails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &growing{}
		tails := NewTails(s, TailPoll)
		ctx, leave := context.WithCancel(t.Context())
		var woken, left atomic.Int64
		wait := func(after int) {
			for range 200 {
				go func() {
					if tails.Wait(ctx, "u", after) == nil {
						woken.Add(1)
					} else {
						left.Add(1)
					}
				}()
			}
		}
		wait(0)
		time.Sleep(10*TailPoll + TailPoll/2)
		require.EqualValues(t, 11, s.reads.Load())
		require.Zero(t, woken.Load())
		s.head.Store(1)
		time.Sleep(TailPoll)
		synctest.Wait()
		require.EqualValues(t, 200, woken.Load())
		wait(1)
		synctest.Wait()
		leave()
		synctest.Wait()
		require.EqualValues(t, 200, left.Load())
		reads := s.reads.Load()
		time.Sleep(10 * TailPoll)
		require.Equal(t, reads, s.reads.Load())
		require.NoError(t, tails.Wait(t.Context(), "u", 0), "an entry that is there needs no wait")
	})
}
