package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

func claimCases() []testCase {
	return []testCase{
		{"Claim/FirstStays", testClaim},
		{"Claim/Race", testClaimRace},
		{"Claim/Expires", testClaimExpires},
	}
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
	require.Equal(t, other, got, "the answer of an earlier claim is not the answer of this one")
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
		require.Equal(t, got[0], got[i], "all get the same winner")
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
	}, patience, 50*time.Millisecond)
}
