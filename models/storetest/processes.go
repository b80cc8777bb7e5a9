package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// Processes opens one data set for processes whose clocks differ.
type Processes struct {
	// WithClock returns the store of a process whose clock is off by a duration. If only one process can use the data, it
	// sets the clock of its only store and returns that store.
	WithClock func(off time.Duration) models.Store
	// Other returns the store of another process, or the only store, with the right clock.
	Other func() models.Store
	// Sweep removes rows whose TTL has passed at a time, if the store does not do so by itself.
	Sweep func(ctx context.Context, now time.Time) error
}

// RunProcesses checks what processes may expect of each other, and that their clocks do not matter. open makes a fresh,
// empty data set and removes it in t.Cleanup.
func RunProcesses(t *testing.T, open func(t *testing.T) Processes) {
	t.Helper()
	t.Run("Processes", func(t *testing.T) {
		p := open(t)
		for _, c := range []struct {
			name string
			run  func(t *testing.T, p Processes)
		}{
			{"SeenAtOnce", testSeenAtOnce},
			{"OneDecision", testOneDecision},
			{"TransientsByClocks", testTransientsByClocks},
			{"TransientThatEnded", testTransientThatEnded},
			{"FactsByClocks", testFactsByClocks},
			{"UserByClocks", testUserByClocks},
			{"ClaimByClocks", testClaimByClocks},
			{"LeaseByClocks", testLeaseByClocks},
			{"ReplayGuardLastsFromRecording", testReplayGuardLasts},
			{"MarkInTheFuture", testMarkInTheFuture},
		} {
			t.Run(c.name, func(t *testing.T) { c.run(t, p) })
		}
	})
}

// testSeenAtOnce checks that a process sees a write of another one as soon as that has returned.
func testSeenAtOnce(t *testing.T, p Processes) {
	ctx := t.Context()
	a, b := p.WithClock(0), p.Other()
	for range 2 {
		u := newUser("process")
		require.NoError(t, a.CreateUser(ctx, u))
		got, err := b.UserByName(ctx, u.Name)
		require.NoError(t, err)
		require.Equal(t, u, got)
		k, _ := models.NewKey(u.ID, "k", now())
		require.NoError(t, a.CreateKey(ctx, k))
		require.NoError(t, b.RevokeKey(ctx, u.ID, k.ID, now()))
		require.False(t, revokedAt(ctx, t, a, k).IsZero())

		for _, chunks := range []int{1, 3} {
			mail := newBatch(u.ID, now(), chunks)
			requireAbsent(t, b, mail)
			accept(t, a, mail)
			requirePresent(t, b, mail)
			require.NoError(t, b.Redact(ctx, mail.ID))
			_, err = a.Recipients(ctx, mail.ID.Chunk(chunks-1))
			require.ErrorIs(t, err, models.ErrNotFound)

			lost := newBatch(u.ID, now(), chunks)
			gone, err := b.AbandonBatch(ctx, lost.ID, chunks)
			require.NoError(t, err)
			require.True(t, gone)
			require.ErrorIs(t, a.PutBatch(ctx, lost, chunkOf(lost, 0)), models.ErrNotFound)
		}

		id := models.NewBatchID(noon())
		e, f := attempt(1, "sg"), outcome(1)
		require.NoError(t, a.Append(ctx, id, e))
		require.NoError(t, b.PutFacts(ctx, models.ChunkFact{Chunk: id, Fact: f}))
		requireRecord(t, a, id, []models.Entry{e}, []models.Fact{f})
		requireRecord(t, b, id, []models.Entry{e}, []models.Fact{f})
		require.NoError(t, a.PutSummaries(ctx, models.ChunkSummary{User: u.ID, Chunk: id, Summary: summary(2, 1, 0)}))
		require.Equal(t, summary(2, 1, 0), rollUp(t, b, u.ID, noon()))

		es, own := entries(3, now().Add(time.Minute), time.Second)
		require.NoError(t, a.Schedule(ctx, es...))
		require.Equal(t, es, agendaOf(t, b, now(), now().Add(time.Hour), own))
		in := post(now(), "x")
		require.NoError(t, a.PutInbox(ctx, in))
		require.Equal(t, ids([]models.Inbox{in}),
			pendingOf(t, b, now().Add(-time.Minute), now().Add(time.Minute), []models.Inbox{in}))
		require.NoError(t, b.InboxDone(ctx, in.ID))
		require.Empty(t, pendingOf(t, a, now().Add(-time.Minute), now().Add(time.Minute), []models.Inbox{in}))

		require.NoError(t, a.PutTransient(ctx, u.ID, "n", []byte("1"), time.Hour))
		require.NoError(t, b.PutTransient(ctx, u.ID, "n", []byte("2"), time.Hour))
		value, err := a.Transient(ctx, u.ID, "n")
		require.NoError(t, err)
		require.Equal(t, []byte("2"), value)
		commands, err := b.Commands(ctx, 0, 100)
		require.NoError(t, err)
		next := command(len(commands) + 1)
		require.NoError(t, a.AppendCommand(ctx, next))
		commands, err = b.Commands(ctx, next.Number-1, 10)
		require.NoError(t, err)
		require.Equal(t, []models.Command{next}, commands)
		a, b = b, a
	}
}

// testOneDecision lets processes race for the same decisions. Both see the same winners.
func testOneDecision(t *testing.T, p Processes) {
	ctx := t.Context()
	stores := []models.Store{p.WithClock(0), p.Other()}
	for range 5 {
		id, name, key := models.NewBatchID(now()), newUser("process").Name, newUser("process").ID
		mail := newBatch(models.NewUserID(), now(), 2)
		require.NoError(t, stores[0].PutChunk(ctx, chunkOf(mail, 1)))
		var appended, named, claimed, put int
		allNil(t, together(4, func(i int) error {
			s := stores[i%2]
			var conflict *models.ConflictError
			err := settled(ctx, func() error { return s.Append(ctx, id, attempt(1, fmt.Sprint(i))) })
			if err != nil && !errors.As(err, &conflict) {
				return err
			}
			err = settled(ctx, func() error {
				return s.CreateUser(ctx, models.User{ID: fmt.Sprint(name, i), Name: name, Created: now()})
			})
			if err != nil && !errors.Is(err, models.ErrExists) {
				return err
			}
			err = settled(ctx, func() error {
				_, err := s.Claim(ctx, key, models.Claim{ID: id.Log(i + 1), Hash: "h", At: now()}, time.Hour)
				return err
			})
			if err != nil {
				return err
			}
			if i < 2 {
				err = settled(ctx, func() error { return s.PutBatch(ctx, mail, chunkOf(mail, 0)) })
			} else {
				err = settled(ctx, func() error { _, err := s.AbandonBatch(ctx, mail.ID, 2); return err })
			}
			if errors.Is(err, models.ErrNotFound) {
				err = nil
			}
			return err
		}))
		for _, s := range stores {
			es, err := s.Ledger(ctx, id)
			require.NoError(t, err)
			require.Len(t, es, 1)
			u, err := s.UserByName(ctx, name)
			require.NoError(t, err)
			c, err := s.Claimed(ctx, key)
			require.NoError(t, err)
			_, err = s.Batch(ctx, mail.ID)
			seen := 1
			if errors.Is(err, models.ErrNotFound) {
				requireAbsent(t, s, mail)
				seen = 2
			} else {
				requirePresent(t, s, mail)
			}
			// Numbers that say who won, the same for both.
			provider, winner := int(es[0].Provider[0]), int(u.ID[len(u.ID)-1])
			if s == stores[0] || appended == 0 {
				appended, named, claimed, put = provider, winner, c.ID.Recipient(), seen
			}
			require.Equal(t, []int{appended, named, claimed, put}, []int{provider, winner, c.ID.Recipient(), seen})
		}
	}
}

// wrong lists the clocks of two processes. The second process writes later.
var wrong = [][2]time.Duration{{0, 0}, {time.Hour, 0}, {0, time.Hour}, {0, -time.Hour}, {-time.Hour, 0},
	{time.Hour, -time.Hour}}

// long is a TTL that is longer than any difference in wrong.
const long = 100 * time.Hour

// testTransientsByClocks checks that a later value replaces an earlier one, and that a removal removes only earlier
// values, even if clocks differ.
func testTransientsByClocks(t *testing.T, p Processes) {
	ctx := t.Context()
	for _, offs := range wrong {
		kind, name := newUser("process").ID, fmt.Sprint(offs)
		requireValue := func(value string) {
			t.Helper()
			for _, off := range offs {
				got, err := p.WithClock(off).Transient(ctx, kind, name)
				all, listed := p.WithClock(off).Transients(ctx, kind)
				require.NoError(t, listed)
				if value == "" {
					require.ErrorIs(t, err, models.ErrNotFound, name)
					require.Empty(t, all, name)
					continue
				}
				require.NoError(t, err, name)
				require.Equal(t, value, string(got), name)
				require.Equal(t, map[string][]byte{name: []byte(value)}, all, name)
			}
		}
		put := func(i int, value string, ttl time.Duration) {
			t.Helper()
			require.NoError(t, p.WithClock(offs[i]).PutTransient(ctx, kind, name, []byte(value), ttl))
		}
		put(0, "9", long)
		put(1, "1", long)
		requireValue("1")
		put(0, "2", long)
		put(1, "", 0)
		requireValue("")
		put(0, "3", long)
		requireValue("3")
		put(0, "", 0)
		put(0, "", 0)
		requireValue("")
		put(1, "4", long)
		requireValue("4")
	}
}

// testTransientThatEnded checks that a value that has ended does not hide a later one.
func testTransientThatEnded(t *testing.T, p Processes) {
	ctx := t.Context()
	for _, off := range []time.Duration{time.Hour, 0, -time.Hour} {
		kind := newUser("process").ID
		require.NoError(t, p.WithClock(off).PutTransient(ctx, kind, "n", []byte("old"), time.Second))
		require.Eventually(t, func() bool {
			_, err := p.WithClock(off).Transient(ctx, kind, "n")
			return errors.Is(err, models.ErrNotFound)
		}, patience, 50*time.Millisecond)
		require.NoError(t, p.WithClock(0).PutTransient(ctx, kind, "n", []byte("new"), long))
		for _, by := range []time.Duration{off, 0} {
			got, err := p.WithClock(by).Transient(ctx, kind, "n")
			require.NoError(t, err, "by a clock that was %v ahead", off)
			require.Equal(t, "new", string(got))
		}
	}
}

// closeWrites is the least time between two writes of different processes with a certain order. A process knows the
// time of the servers only as precisely as their answer has it.
const closeWrites = 100 * time.Millisecond

// testFactsByClocks checks that the first of two facts under a key stays, even if clocks differ.
func testFactsByClocks(t *testing.T, p Processes) {
	for _, offs := range wrong {
		for _, text := range []string{"", "a larger value"} {
			id := models.NewBatchID(now())
			first, later := outcome(1), outcome(1)
			later.Outcome.Parts[1].Text = text
			require.NoError(t, p.WithClock(offs[0]).PutFacts(t.Context(), models.ChunkFact{Chunk: id, Fact: first}))
			models.Pause(t.Context(), closeWrites)
			require.NoError(t, p.WithClock(offs[1]).PutFacts(t.Context(), models.ChunkFact{Chunk: id, Fact: later},
				models.ChunkFact{Chunk: id, Fact: outcome(2)}))
			_, fs, err := p.WithClock(0).Record(t.Context(), id)
			require.NoError(t, err)
			require.Len(t, fs, 2)
			require.Equal(t, first, byKey(fs)[first.Key], "clocks off by %v", offs)
		}
	}
}

// testUserByClocks checks that an ID that did not get one name can get another.
func testUserByClocks(t *testing.T, p Processes) {
	ctx := t.Context()
	for _, offs := range wrong {
		taken, u := newUser("process"), newUser("process")
		require.NoError(t, p.WithClock(0).CreateUser(ctx, taken))
		require.ErrorIs(t, p.WithClock(offs[0]).CreateUser(ctx, models.User{ID: u.ID, Name: taken.Name, Created: now()}),
			models.ErrExists)
		_, err := p.WithClock(offs[1]).User(ctx, u.ID)
		require.ErrorIs(t, err, models.ErrNotFound)
		require.NoError(t, p.WithClock(offs[1]).CreateUser(ctx, u))
		require.NoError(t, p.WithClock(offs[0]).CreateUser(ctx, u))
		got, err := p.WithClock(offs[0]).User(ctx, u.ID)
		require.NoError(t, err, "clocks off by %v", offs)
		require.Equal(t, u, got)
		other := newUser("process")
		other.ID = u.ID
		require.ErrorIs(t, p.WithClock(offs[1]).CreateUser(ctx, other), models.ErrExists, "it has a name")
	}
}

// testClaimByClocks checks that the answer to an earlier claim of a key changes nothing.
func testClaimByClocks(t *testing.T, p Processes) {
	ctx := t.Context()
	for _, offs := range wrong {
		key := newUser("process").ID
		first := models.Claim{ID: models.NewBatchID(now()), Hash: "h", At: now()}
		second := models.Claim{ID: models.NewBatchID(now()), Hash: "h", At: now()}
		by := func(i int) models.Store { return p.WithClock(offs[i]) }
		_, err := by(0).Claim(ctx, key, first, long)
		require.NoError(t, err)
		require.NoError(t, by(0).PutAnswer(ctx, key, first.ID, []byte("first"), long))
		require.NoError(t, by(1).Unclaim(ctx, key, first.ID))
		got, err := by(1).Claim(ctx, key, second, long)
		require.NoError(t, err)
		require.Equal(t, second, got)
		want := second
		want.Answer = []byte("second")
		require.NoError(t, by(1).PutAnswer(ctx, key, second.ID, want.Answer, long))
		require.NoError(t, by(0).PutAnswer(ctx, key, first.ID, []byte("late"), long))
		for i := range offs {
			got, err = by(i).Claimed(ctx, key)
			require.NoError(t, err)
			require.Equal(t, want, got, "clocks off by %v", offs)
		}
	}
}

// testLeaseByClocks checks that the clock of the holder does not make a lease last longer.
func testLeaseByClocks(t *testing.T, p Processes) {
	ctx := t.Context()
	name := "lease-" + newUser("process").ID
	start := time.Now()
	held, err := p.WithClock(time.Hour).Lease(ctx, name, "a", time.Second)
	require.NoError(t, err)
	require.True(t, held)
	require.Eventually(t, func() bool {
		held, err := p.WithClock(0).Lease(ctx, name, "b", time.Hour)
		return err == nil && held
	}, patience, 50*time.Millisecond)
	require.GreaterOrEqual(t, time.Since(start), 900*time.Millisecond, "taken from its holder")
	held, err = p.WithClock(2*time.Hour).Lease(ctx, name, "a", time.Second)
	require.NoError(t, err)
	require.False(t, held, "taken from its holder")
}

// testReplayGuardLasts checks that a mark lasts for two days after it was recorded, however old its post was.
func testReplayGuardLasts(t *testing.T, p Processes) {
	ctx := t.Context()
	of := func(digest string, at time.Time) models.ReplayMark {
		return models.ReplayMark{
			Group:  "g",
			Key:    t.Name(),
			Digest: digest,
			Entry:  models.NewInboxID(at),
		}
	}
	_, err := p.WithClock(0).GuardReplays(ctx, of("old", now().Add(-7*24*time.Hour+time.Minute)))
	require.NoError(t, err)
	for _, hours := range []time.Duration{0, 1, 25, 47} {
		later := now().Add(hours * time.Hour)
		require.NoError(t, p.Sweep(ctx, later))
		firsts, err := p.WithClock(hours*time.Hour).GuardReplays(ctx, of(fmt.Sprint("new ", int(hours)), later))
		require.NoError(t, err)
		require.Equal(t, []string{"old"}, firsts, "%d hours later", hours)
	}
}

// testMarkInTheFuture sets a mark by a clock that is ahead. No entry may be lost, and later marks must move.
func testMarkInTheFuture(t *testing.T, p Processes) {
	ctx := t.Context()
	const off = 10 * time.Second // between this clock and the servers'
	base, s := now(), p.WithClock(24*time.Hour)
	for shard := range s.Shards() {
		require.NoError(t, s.SetAgendaMark(ctx, shard, base.Add(24*time.Hour)))
	}
	s = p.WithClock(0)
	for shard := range s.Shards() {
		mark, err := s.AgendaMark(ctx, shard)
		require.NoError(t, err)
		require.WithinRange(t, mark, base.Add(-off), time.Now().Add(off), "the mark is never later than now")
	}
	require.NoError(t, s.SetAgendaMark(ctx, 0, base.Add(24*time.Hour)))
	mark, err := p.WithClock(24*time.Hour).AgendaMark(ctx, 0)
	require.NoError(t, err)
	require.WithinRange(t, mark, base.Add(-off), time.Now().Add(off), "for any writer and any reader")
	s = p.WithClock(0)
	es, own := entries(20, base.Add(10*time.Minute), 10*time.Minute)
	require.NoError(t, s.Schedule(ctx, es...))
	for range 2 {
		require.NoError(t, p.Sweep(ctx, now()))
		require.Equal(t, es, agendaOf(t, s, base, base.Add(12*time.Hour), own), "entries that are not due yet stay")
	}
	var marks []time.Time
	require.Eventually(t, func() bool {
		at := now().Add(-100 * time.Millisecond)
		require.NoError(t, s.SetAgendaMark(ctx, 0, at))
		mark, err := s.AgendaMark(ctx, 0)
		require.NoError(t, err)
		if mark.Equal(at) {
			marks = append(marks, at)
		}
		return len(marks) == 3
	}, patience, 20*time.Millisecond, "the mark moves again")
	require.NoError(t, s.SetAgendaMark(ctx, 0, marks[0]))
	mark, err = s.AgendaMark(ctx, 0)
	require.NoError(t, err)
	require.Equal(t, marks[2], mark, "and only forward")
	require.True(t, slices.IsSortedFunc(marks, time.Time.Compare))
}
