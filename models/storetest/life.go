package storetest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

func lifeCases() []testCase {
	return []testCase{
		{"Lease/OneHolder", testLease},
		{"Lease/Race", testLeaseRace},
		{"Lease/Expires", testLeaseExpires},
		{"Report/KeptUntilItsEnd", testReports},
		{"Life/CancelledContext", testCancelled},
		{"Life/HundredBatches", testHundredBatches},
	}
}

func testLease(t *testing.T, s models.Store) {
	ctx := t.Context()
	name := "lease-" + models.NewUserID()
	lease := func(name, holder string, ttl time.Duration) bool {
		t.Helper()
		ok, err := s.Lease(ctx, name, holder, ttl)
		require.NoError(t, err)
		return ok
	}
	require.True(t, lease(name, "a", time.Minute))
	require.False(t, lease(name, "b", time.Minute))
	require.True(t, lease(name, "a", time.Minute), "renewed")
	require.True(t, lease(name+"x", "b", time.Minute), "another lease")
	lease(name, "b", 0) // not b's to give up
	require.False(t, lease(name, "b", time.Minute))
	lease(name, "a", 0)
	lease(name, "a", 0)
	require.True(t, lease(name, "b", time.Minute), "given up, so taken at once")
	require.False(t, lease(name, "a", time.Minute))
	lease(name, "b", 0)
}

func testLeaseRace(t *testing.T, s models.Store) {
	name := "lease-" + models.NewUserID()
	held := make([]bool, 12)
	allNil(t, together(len(held), func(i int) (err error) {
		return settled(t.Context(), func() error {
			held[i], err = s.Lease(t.Context(), name, fmt.Sprint("holder-", i), time.Minute)
			return err
		})
	}))
	holders := 0
	for _, ok := range held {
		if ok {
			holders++
		}
	}
	require.Equal(t, 1, holders)
}

func testLeaseExpires(t *testing.T, s models.Store) {
	ctx := t.Context()
	name := "lease-" + models.NewUserID()
	start := time.Now()
	ok, err := s.Lease(ctx, name, "a", time.Second)
	require.NoError(t, err)
	require.True(t, ok)
	require.Eventually(t, func() bool {
		ok, err := s.Lease(ctx, name, "b", time.Second)
		return err == nil && ok
	}, 10*time.Second, 20*time.Millisecond)
	require.GreaterOrEqual(t, time.Since(start), 900*time.Millisecond, "taken from its holder")
}

func testReports(t *testing.T, s models.Store) {
	ctx := t.Context()
	kind := "kind-" + models.NewUserID()
	require.NoError(t, s.PutTransient(ctx, kind, "a", []byte("1"), time.Hour))
	require.NoError(t, s.PutTransient(ctx, kind, "a", []byte("2"), time.Hour))
	require.NoError(t, s.PutTransient(ctx, kind, "b", []byte("3"), time.Second))
	require.NoError(t, s.PutTransient(ctx, kind+"x", "c", []byte("4"), time.Hour))
	got, err := s.Transients(ctx, kind)
	require.NoError(t, err)
	require.Equal(t, []byte("2"), got["a"], "the newer replaces the older")
	require.Eventually(t, func() bool {
		got, err := s.Transients(ctx, kind)
		return err == nil && len(got) == 1
	}, 10*time.Second, 20*time.Millisecond, "the other ends by itself")
	none, err := s.Transients(ctx, kind+"none")
	require.NoError(t, err)
	require.Empty(t, none)
}

// call is one method with arguments that a fresh store accepts.
type call struct {
	name string
	do   func(ctx context.Context, s models.Store) error
}

func cursor[T any](seq iter.Seq2[T, error]) error {
	_, err := drain(seq)
	return err
}

// calls lists every method that can fail.
func calls() []call {
	b := newBatch(models.NewUserID(), now(), 2)
	u := newUser("calls")
	k, _ := models.NewKey(u.ID, "k", now())
	span := models.SpanOf(u.ID, models.Second, now())
	p := post(now(), "x")
	return []call{
		{"CreateUser", func(ctx context.Context, s models.Store) error { return s.CreateUser(ctx, u) }},
		{"UserByName", func(ctx context.Context, s models.Store) error { _, err := s.UserByName(ctx, u.Name); return err }},
		{"User", func(ctx context.Context, s models.Store) error { _, err := s.User(ctx, u.ID); return err }},
		{"Users", func(ctx context.Context, s models.Store) error { _, err := s.Users(ctx); return err }},
		{"CreateKey", func(ctx context.Context, s models.Store) error { return s.CreateKey(ctx, k) }},
		{"KeyByHash", func(ctx context.Context, s models.Store) error { _, err := s.KeyByHash(ctx, k.Hash); return err }},
		{"Keys", func(ctx context.Context, s models.Store) error { _, err := s.Keys(ctx, u.ID); return err }},
		{"RevokeKey", func(ctx context.Context, s models.Store) error { return s.RevokeKey(ctx, u.ID, k.ID, now()) }},
		{"PutChunk", func(ctx context.Context, s models.Store) error { return s.PutChunk(ctx, chunkOf(b, 1)) }},
		{"PutBatch", func(ctx context.Context, s models.Store) error { return s.PutBatch(ctx, b, chunkOf(b, 0)) }},
		{"Batch", func(ctx context.Context, s models.Store) error { _, err := s.Batch(ctx, b.ID); return err }},
		{"Batches", func(ctx context.Context, s models.Store) error {
			_, err := s.Batches(ctx, b.User, models.ID{}, 5)
			return err
		}},
		{"Recipients", func(ctx context.Context, s models.Store) error { _, err := s.Recipients(ctx, b.ID); return err }},
		{"AbandonBatch", func(ctx context.Context, s models.Store) error { _, err := s.AbandonBatch(ctx, b.ID, 2); return err }},
		{"Append", func(ctx context.Context, s models.Store) error { return s.Append(ctx, b.ID, attempt(1, "sg")) }},
		{"PutFacts", func(ctx context.Context, s models.Store) error {
			return s.PutFacts(ctx, models.ChunkFact{Chunk: b.ID, Fact: outcome(1)})
		}},
		{"Record", func(ctx context.Context, s models.Store) error { _, _, err := s.Record(ctx, b.ID); return err }},
		{"Ledger", func(ctx context.Context, s models.Store) error { _, err := s.Ledger(ctx, b.ID); return err }},
		{"PutSummaries", func(ctx context.Context, s models.Store) error {
			return s.PutSummaries(ctx, models.ChunkSummary{User: b.User, Chunk: b.ID, Summary: summary(1, 1, 0)})
		}},
		{"Summaries", func(ctx context.Context, s models.Store) error { return cursor(s.Summaries(ctx, b.User, b.ID, 0)) }},
		{"RollUp", func(ctx context.Context, s models.Store) error { _, err := s.RollUp(ctx, span); return err }},
		{"Nodes", func(ctx context.Context, s models.Store) error {
			_, err := s.Nodes(ctx, u.ID, models.Second, now().Add(-time.Hour), now())
			return err
		}},
		{"Schedule", func(ctx context.Context, s models.Store) error {
			return s.Schedule(ctx, models.AgendaEntry{Due: now(), Kind: models.LookAtBatch, ID: b.ID, User: b.User, Chunks: 2})
		}},
		{"Agenda", func(ctx context.Context, s models.Store) error {
			return cursor(s.Agenda(ctx, 0, now().Add(-time.Minute), now()))
		}},
		{"AgendaMark", func(ctx context.Context, s models.Store) error { _, err := s.AgendaMark(ctx, 0); return err }},
		{"SetAgendaMark", func(ctx context.Context, s models.Store) error {
			return s.SetAgendaMark(ctx, 0, now().Add(-9*time.Hour))
		}},
		{"PutInbox", func(ctx context.Context, s models.Store) error { return s.PutInbox(ctx, p) }},
		{"Inbox", func(ctx context.Context, s models.Store) error { _, err := s.Inbox(ctx, p.ID); return err }},
		{"InboxDone", func(ctx context.Context, s models.Store) error { return s.InboxDone(ctx, p.ID) }},
		{"Pending", func(ctx context.Context, s models.Store) error {
			return cursor(s.Pending(ctx, 0, now().Add(-time.Minute), now()))
		}},
		{"Witness", func(ctx context.Context, s models.Store) error {
			_, err := s.GuardReplays(ctx, models.ReplayMark{Group: "g", Key: p.Posts[0].Replay, Digest: "d", Entry: p.ID})
			return err
		}},
		{"PutTransient", func(ctx context.Context, s models.Store) error {
			return s.PutTransient(ctx, "k", "n", []byte("v"), time.Minute)
		}},
		{"Lease", func(ctx context.Context, s models.Store) error {
			_, err := s.Lease(ctx, p.Posts[0].Replay, "h", time.Second)
			return err
		}},
		{"Reports", func(ctx context.Context, s models.Store) error {
			_, err := s.Transients(ctx, "k")
			return err
		}},
		{"Ping", func(ctx context.Context, s models.Store) error { return s.Ping(ctx) }},
	}
}

// A call whose context has ended returns promptly, says so, and does no harm.
func testCancelled(t *testing.T, s models.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range calls() {
		if c.name == "SetAgendaMark" {
			continue // marks belong to their own case; it is a write like the others
		}
		start := time.Now()
		err := c.do(ctx, s)
		require.Error(t, err, c.name)
		require.Less(t, time.Since(start), 2*time.Second, c.name)
		if !errors.Is(err, models.ErrUnavailable) && !errors.Is(err, models.ErrOutcomeUnknown) {
			require.ErrorIs(t, err, context.Canceled, c.name)
		}
	}
	require.NoError(t, s.Ping(t.Context()))
}

// testHundredBatches takes a hundred batches through their whole life at the
// same time, as the rooms of the program will.
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
		if err := s.Schedule(ctx, models.AgendaEntry{Due: now().Add(time.Minute), Kind: models.LookAtBatch, ID: b.ID, User: b.User, Chunks: b.Chunks}); err != nil {
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
			es, fs := []models.Entry{attempt(1, "sg"), attempt(2, "mg")}, []models.Fact{outcome(1), eventFact(models.NewInboxID(now()), 3)}
			if err := liveChunk(ctx, s, b, n, es, fs); err != nil {
				return fmt.Errorf("batch %d, chunk %d: %w", i, n, err)
			}
			entry[i][n], facts[i][n] = es, fs
		}
		for _, level := range models.Levels {
			if _, err := s.RollUp(ctx, models.SpanOf(b.User, level, b.Created())); err != nil {
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
	for _, b := range batches { // who rolled up last may not have seen the last child
		rollUp(t, s, b.User, b.Created())
	}
	for _, user := range users {
		require.Equal(t, *want[user], rollUp(t, s, user, noon()), "the day is the sum of its chunks")
	}
}

// liveChunk appends, answers and counts one chunk of b.
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
