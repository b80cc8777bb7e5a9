package storetest

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

func replayGuardCases() []testCase {
	return []testCase{
		{"ReplayGuard/OldestWins", testReplayGuard},
		{"ReplayGuard/Concurrent", testReplayGuardConcurrent},
		{"ReplayGuard/Many", testReplayGuardMany},
		{"ReplayGuard/FarApart", testReplayGuardFarApart},
		{"ReplayGuard/SameMillisecond", testReplayGuardSameMillisecond},
		{"ReplayGuard/OneEntryTwoDigests", testReplayGuardTwoDigests},
	}
}

func testReplayGuard(t *testing.T, s models.Store) {
	ctx := t.Context()
	key := "signature “" + models.NewUserID() + "”"
	var in []models.ID
	for i := range 4 {
		in = append(in, models.NewInboxID(now().Add(time.Duration(i-4)*time.Minute)))
	}
	for _, c := range []struct {
		digest string
		in     models.ID
		want   string
	}{
		{"c", in[2], "c"},
		{"d", in[3], "c"},
		{"b", in[1], "b"}, // older, though it was recorded later
		{"c", in[2], "b"},
		{"b", in[1], "b"},
		{"a", in[0], "a"},
		{"d", in[3], "a"},
	} {
		first, err := s.GuardReplays(ctx, models.ReplayMark{
			Group:  "g",
			Key:    key,
			Digest: c.digest,
			Entry:  c.in,
		})
		require.NoError(t, err)
		require.Equal(t, []string{c.want}, first, "after %q", c.digest)
	}
	first, err := s.GuardReplays(ctx, models.ReplayMark{
		Group:  "g",
		Key:    key + "x",
		Digest: "z",
		Entry:  in[3],
	})
	require.NoError(t, err)
	require.Equal(t, []string{"z"}, first, "another key")
	none, err := s.GuardReplays(ctx)
	require.NoError(t, err)
	require.Empty(t, none)
}

// testReplayGuardMany records many marks in one call. Each gets the answer that it would get alone.
func testReplayGuardMany(t *testing.T, s models.Store) {
	prefix := models.NewUserID()
	var marks []models.ReplayMark
	var want []string
	for i := range 50 {
		m := models.ReplayMark{
			Group:  prefix + strconv.Itoa(i%4),
			Key:    fmt.Sprint(prefix, i),
			Digest: fmt.Sprint("digest ", i),
			Entry:  models.NewInboxID(now().Add(time.Duration(i) * time.Second)),
		}
		marks, want = append(marks, m), append(want, m.Digest)
		if i%5 == 0 { // once more, later
			later := m
			later.Digest, later.Entry = "other", models.NewInboxID(now().Add(time.Hour))
			marks, want = append(marks, later), append(want, m.Digest)
		}
	}
	for range 2 {
		firsts, err := s.GuardReplays(t.Context(), marks...)
		require.NoError(t, err)
		require.Equal(t, want, firsts)
	}
}

func testReplayGuardConcurrent(t *testing.T, s models.Store) {
	key := models.NewUserID()
	in := make([]models.ID, 16)
	for i := range in {
		in[i] = models.NewInboxID(now().Add(time.Duration(i) * time.Millisecond))
	}
	of := func(i int) models.ReplayMark {
		return models.ReplayMark{
			Group:  key,
			Key:    key,
			Digest: fmt.Sprintf("digest-%02d", i),
			Entry:  in[i],
		}
	}
	guard := func(i int) error {
		first, err := s.GuardReplays(t.Context(), of(i))
		if err == nil && first[0] > of(i).Digest {
			err = fmt.Errorf("post %d got %s as the first", i, first)
		}
		return err
	}
	allNil(t, together(len(in), guard))
	for i := range in {
		first, err := s.GuardReplays(t.Context(), of(i))
		require.NoError(t, err)
		require.Equal(t, []string{"digest-00"}, first)
	}
}

// testReplayGuardFarApart records a post that is nearly as old as posts get. A new post under its key must find it.
func testReplayGuardFarApart(t *testing.T, s models.Store) {
	key := models.NewUserID()
	old := models.ReplayMark{
		Group:  key,
		Key:    key,
		Digest: "old",
		Entry:  models.NewInboxID(now().Add(-7*24*time.Hour + time.Minute)),
	}
	fresh := models.ReplayMark{
		Group:  key,
		Key:    key,
		Digest: "fresh",
		Entry:  models.NewInboxID(now()),
	}
	for _, m := range []models.ReplayMark{old, fresh, old} {
		firsts, err := s.GuardReplays(t.Context(), m)
		require.NoError(t, err)
		require.Equal(t, []string{"old"}, firsts)
	}
}

// secondsLong calls f repeatedly for a little more than two seconds, because a store may count TTLs in whole seconds.
func secondsLong(f func()) {
	for start := time.Now(); time.Since(start) < 2200*time.Millisecond; {
		f()
		time.Sleep(100 * time.Millisecond)
	}
}

// testReplayGuardSameMillisecond records entries of one millisecond, in different orders. The one with the lowest ID is
// the oldest.
func testReplayGuardSameMillisecond(t *testing.T, s models.Store) {
	at := now()
	in := make([]models.ID, 6)
	for i := range in {
		in[i] = models.NewInboxID(at)
	}
	slices.SortFunc(in, func(a, b models.ID) int { return slices.Compare(a[:], b[:]) })
	of := func(key string, i int) models.ReplayMark {
		return models.ReplayMark{
			Group:  "g",
			Key:    key,
			Digest: strconv.Itoa(9 - i),
			Entry:  in[i],
		}
	}
	up, down := models.NewUserID(), models.NewUserID()
	for i := range in {
		firsts, err := s.GuardReplays(t.Context(), of(up, i), of(down, len(in)-1-i))
		require.NoError(t, err)
		require.Equal(t, []string{"9", strconv.Itoa(9 - (len(in) - 1 - i))}, firsts)
	}
	secondsLong(func() {
		firsts, err := s.GuardReplays(t.Context(), of(up, 5), of(up, 3), of(down, 2))
		require.NoError(t, err)
		require.Equal(t, []string{"9", "9", "9"}, firsts)
	})
}

func testReplayGuardTwoDigests(t *testing.T, s models.Store) {
	key, in := models.NewUserID(), models.NewInboxID(now())
	marks := []models.ReplayMark{
		{
			Group:  "g",
			Key:    key,
			Digest: "one",
			Entry:  in,
		}, {
			Group:  "g",
			Key:    key,
			Digest: "two",
			Entry:  in,
		}, {
			Group:  "g",
			Key:    key,
			Digest: "three",
			Entry:  in,
		},
	}
	firsts, err := s.GuardReplays(t.Context(), marks...)
	require.NoError(t, err)
	first := firsts[0]
	require.Contains(t, []string{"one", "two", "three"}, first)
	require.Equal(t, []string{first, first, first}, firsts)
	for next := 0; next < len(marks); next++ {
		secondsLong(func() {
			firsts, err := s.GuardReplays(t.Context(), marks[next])
			require.NoError(t, err)
			require.Equal(t, []string{first}, firsts, "after %q alone", marks[next].Digest)
		})
	}
}
