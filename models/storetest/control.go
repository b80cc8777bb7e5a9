package storetest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

func controlCases() []testCase {
	return []testCase{
		{"Journal/RaceAndOrder", testJournal},
		{"Claim/FirstStands", testClaim},
		{"Claim/Race", testClaimRace},
		{"Claim/Expires", testClaimExpires},
		{"Print/ByHour", testPrints},
		{"Batch/Redact", testRedact},
		{"Report/One", testReport},
	}
}

// order is a line with every field set.
func order(number int) models.Command {
	id := models.NewBatchID(now())
	return models.Command{Number: number, Token: models.NewToken(), At: time.Now().UTC().Round(0), By: "cli:zoë", Why: "because “so”",
		Kind: models.ReleaseBatch, Batch: id, Log: id.Log(7), User: "u", Provider: "sg", Senders: []string{"a@example.com", "@example.org"},
		Block: &models.Block{ID: "b", Provider: "sg", User: "u", Sender: "@example.com", Domain: "example.net", Fail: true}, Before: now(), Subject: "s"}
}

// testJournal uses the whole journal: there is one in a store.
func testJournal(t *testing.T, s models.Store) {
	ctx := t.Context()
	lines, err := s.Commands(ctx, 0, 10)
	require.NoError(t, err)
	require.Empty(t, lines)
	require.ErrorIs(t, s.AppendCommand(ctx, order(0)), models.ErrInvalid)
	require.ErrorIs(t, s.AppendCommand(ctx, order(2)), models.ErrInvalid, "a gap")

	first := order(1)
	require.NoError(t, s.AppendCommand(ctx, first))
	require.NoError(t, s.AppendCommand(ctx, first), "the same token again")
	var lost *models.CommandConflictError
	require.ErrorAs(t, s.AppendCommand(ctx, order(1)), &lost)
	require.Equal(t, first, lost.Winner)
	require.ErrorIs(t, s.AppendCommand(ctx, order(3)), models.ErrInvalid, "a gap")

	// Many append at once, each by following the journal; nothing is lost, and
	// every follower sees the same.
	const writers, each = 8, 10
	allNil(t, together(writers, func(w int) error {
		j := control.NewFollower(s)
		for n := range each {
			c := models.Command{By: "w", Kind: models.PauseUser, User: fmt.Sprint(w, "/", n)}
			if done, err := j.Append(ctx, &c, nil); err != nil || !done {
				return fmt.Errorf("append: %v %w", done, err)
			}
		}
		return nil
	}))
	all, err := s.Commands(ctx, 0, 1000)
	require.NoError(t, err)
	require.Len(t, all, 1+writers*each)
	require.Equal(t, first, all[0])
	users := map[string]bool{}
	for i, c := range all {
		require.Equal(t, i+1, c.Number)
		users[c.User] = true
	}
	require.Len(t, users, 1+writers*each)
	var paged []models.Command
	for {
		page, err := s.Commands(ctx, len(paged), 7)
		require.NoError(t, err)
		if len(page) == 0 {
			break
		}
		paged = append(paged, page...)
	}
	require.Equal(t, all, paged)

	j := control.NewFollower(s)
	require.NoError(t, j.Sync(ctx))
	require.True(t, j.Rules().Paused("3/4"))
	again := models.Command{Kind: models.PauseUser, User: "3/4"}
	done, err := j.Append(ctx, &again, func(r *control.Rules) bool { return !r.Paused("3/4") })
	require.NoError(t, err)
	require.False(t, done, "what stands already is not ordered again")
}

func testClaim(t *testing.T, s models.Store) {
	ctx := t.Context()
	key := newUser("claim").ID
	mine := models.Claim{ID: models.NewBatchID(now()), Hash: "h1", At: now()}
	for range 2 { // the same claim again is the same claim
		got, err := s.Claim(ctx, key, mine, time.Hour)
		require.NoError(t, err)
		require.Equal(t, mine, got)
	}
	other := models.Claim{ID: models.NewBatchID(now()), Hash: "h2", At: now()}
	got, err := s.Claim(ctx, key, other, time.Hour)
	require.NoError(t, err)
	require.Equal(t, mine, got)

	got, err = s.Claimed(ctx, key)
	require.NoError(t, err)
	require.Equal(t, mine, got)
	_, err = s.Claimed(ctx, key+"x")
	require.ErrorIs(t, err, models.ErrNotFound)

	require.NoError(t, s.PutAnswer(ctx, key, mine.ID, []byte("first"), time.Hour))
	want := mine
	want.Answer = []byte("first")
	got, err = s.Claimed(ctx, key)
	require.NoError(t, err)
	require.Equal(t, want, got)
	got, err = s.Claim(ctx, key, other, time.Hour)
	require.NoError(t, err)
	require.Equal(t, want, got)

	require.NoError(t, s.Unclaim(ctx, key, other.ID), "another's claim stays")
	got, err = s.Claim(ctx, key, other, time.Hour)
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.NoError(t, s.Unclaim(ctx, key, mine.ID))
	got, err = s.Claim(ctx, key, other, time.Hour)
	require.NoError(t, err)
	require.Equal(t, other, got, "free again, and without the old answer")
	require.NoError(t, s.PutAnswer(ctx, key, mine.ID, []byte("late"), time.Hour))
	got, err = s.Claim(ctx, key, other, time.Hour)
	require.NoError(t, err)
	require.Equal(t, other, got, "who claimed it before answers for nobody else")
}

func testClaimRace(t *testing.T, s models.Store) {
	key := newUser("claim-race").ID
	claims, got := make([]models.Claim, 16), make([]models.Claim, 16)
	for i := range claims {
		claims[i] = models.Claim{ID: models.NewBatchID(now()), Hash: fmt.Sprint(i), At: now()}
	}
	allNil(t, together(len(claims), func(i int) error {
		return settled(t.Context(), func() (err error) {
			got[i], err = s.Claim(t.Context(), key, claims[i], time.Hour)
			return err
		})
	}))
	require.Contains(t, claims, got[0])
	for i := range got {
		require.Equal(t, got[0], got[i], "all are told the same winner")
	}
}

func testClaimExpires(t *testing.T, s models.Store) {
	ctx := t.Context()
	key := newUser("claim-ends").ID
	old := models.Claim{ID: models.NewBatchID(now()), Hash: "old", At: now()}
	_, err := s.Claim(ctx, key, old, time.Second)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		fresh := models.Claim{ID: models.NewBatchID(now()), Hash: "new", At: now()}
		got, err := s.Claim(ctx, key, fresh, time.Hour)
		return err == nil && got.Hash == "new" && got.Answer == nil
	}, 30*time.Second, 50*time.Millisecond)
}

func testPrints(t *testing.T, s models.Store) {
	ctx := t.Context()
	u := newUser("print").ID
	base := now().Truncate(time.Hour)
	hours := []time.Time{base.Add(-50 * time.Hour), base.Add(-2 * time.Hour), base}
	want := map[models.ID]models.AddressIndex{}
	for _, h := range hours {
		for range 3 {
			b := newBatch(u, h.Add(20*time.Minute), 2)
			for n := range 2 {
				p := models.NewAddressIndex(b.ID.Chunk(n), chunkOf(b, n).Recipients)
				require.True(t, p.MayContain(models.Fingerprint("B"+fmt.Sprint(n)+"@Example.com")))
				require.False(t, p.MayContain(models.Fingerprint("nobody@example.com")))
				want[p.Chunk] = p
				require.NoError(t, s.PutAddressIndex(ctx, u, p))
				require.NoError(t, s.PutAddressIndex(ctx, u, p), "again is once")
			}
		}
	}
	require.NoError(t, s.PutAddressIndex(ctx, newUser("other").ID, models.NewAddressIndex(models.NewBatchID(base), nil)))
	got, err := s.AddressIndexHours(ctx, u, base.Add(time.Hour), 10)
	require.NoError(t, err)
	slices.Reverse(got)
	require.Equal(t, hours, got)
	got, err = s.AddressIndexHours(ctx, u, base, 1)
	require.NoError(t, err)
	require.Equal(t, hours[1:2], got)
	seen := 0
	for _, h := range hours {
		for _, p := range collect(t, s.AddressIndexes(ctx, u, h.Add(59*time.Minute))) {
			require.Equal(t, want[p.Chunk], p)
			seen++
		}
	}
	require.Equal(t, len(want), seen)
	require.NoError(t, s.DropAddressIndexes(ctx, u, hours[0]))
	require.Empty(t, collect(t, s.AddressIndexes(ctx, u, hours[0])))
	got, err = s.AddressIndexHours(ctx, u, base.Add(time.Hour), 10)
	require.NoError(t, err)
	require.Len(t, got, 2)
}

func testRedact(t *testing.T, s models.Store) {
	ctx := t.Context()
	u := newUser("redact").ID
	for _, chunks := range []int{1, 3} {
		b := newBatch(u, now(), chunks)
		require.ErrorIs(t, s.Redact(ctx, b.ID), models.ErrNotFound)
		accept(t, s, b)
		e := attempt(1, "sg")
		require.NoError(t, s.Append(ctx, b.ID, e))
		for range 2 { // again does nothing more
			require.NoError(t, s.Redact(ctx, b.ID))
			got, err := s.Batch(ctx, b.ID)
			require.NoError(t, err)
			want := b
			want.Redact()
			require.Equal(t, want, got)
			for n := range chunks {
				_, err = s.Recipients(ctx, b.ID.Chunk(n))
				require.ErrorIs(t, err, models.ErrNotFound)
			}
			requireRecord(t, s, b.ID, []models.Entry{e}, nil)
		}
		require.NoError(t, s.PutBatch(ctx, b, chunkOf(b, 0)), "a repeat that comes late")
		_, err := s.Recipients(ctx, b.ID)
		require.ErrorIs(t, err, models.ErrNotFound, "brings nothing back")
		list, err := s.Batches(ctx, u, models.ID{}, 1)
		require.NoError(t, err)
		require.True(t, list[0].Redacted)
	}
}

func testReport(t *testing.T, s models.Store) {
	ctx := t.Context()
	kind := newUser("report").ID
	_, err := s.Transient(ctx, kind, "a")
	require.ErrorIs(t, err, models.ErrNotFound)
	require.NoError(t, s.PutTransient(ctx, kind, "a", []byte("1"), time.Hour))
	require.NoError(t, s.PutTransient(ctx, kind, "b", nil, time.Hour))
	got, err := s.Transient(ctx, kind, "a")
	require.NoError(t, err)
	require.Equal(t, []byte("1"), got)
	got, err = s.Transient(ctx, kind, "b")
	require.NoError(t, err)
	require.Empty(t, got)
	require.NoError(t, s.PutTransient(ctx, kind, "a", nil, 0))
	_, err = s.Transient(ctx, kind, "a")
	require.ErrorIs(t, err, models.ErrNotFound)
}
