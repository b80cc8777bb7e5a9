package storetest

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/suppression"
)

func suppressionCases() []testCase {
	return []testCase{
		{"Suppressions", testSuppressions},
		{"SuppressionPages", testSuppressionPages},
		{"SuppressionAdditions", testAdditions},
	}
}

// suppressed returns an entry with every field set.
func suppressed(email, category string, reason models.SuppressionReason) models.Suppression {
	e := models.NewSuppression(email, reason, models.FromEvent, now())
	e.Category, e.By, e.Why = category, "u", "because “so”"
	e.Log, e.Expires = models.NewBatchID(now()).Log(7), now().Add(time.Hour)
	return e
}

func testSuppressions(t *testing.T, s models.Store) {
	ctx, list := t.Context(), models.NewUserID()
	none, err := s.SuppressionsOf(ctx, list, models.HashAddress("a@x.example"))
	require.NoError(t, err)
	require.Empty(t, none)
	require.NoError(t, s.PutSuppressions(ctx, list))
	none, err = s.SuppressionsOf(ctx, list)
	require.NoError(t, err)
	require.Empty(t, none)

	all := suppressed("A@x.example", "", models.Complaint)
	newsletter := suppressed("a@x.example", "news", models.Unsubscribe)
	other := suppressed("b@x.example", "", models.Manual)
	require.NoError(t, s.PutSuppressions(ctx, list, newsletter, other, all))
	require.NoError(t, s.PutSuppressions(ctx, list, newsletter, other, all), "again changes nothing")
	require.NoError(t, s.PutSuppressions(ctx, models.NewUserID(), suppressed("a@x.example", "", models.Manual)))
	of := func(addresses ...string) []models.Suppression {
		t.Helper()
		var hashes []models.AddressHash
		for _, a := range addresses {
			hashes = append(hashes, models.HashAddress(a))
		}
		found, err := s.SuppressionsOf(ctx, list, hashes...)
		require.NoError(t, err)
		return found
	}
	require.Equal(t, []models.Suppression{all, newsletter}, of("a@X.example", "a@x.example", "c@x.example"))
	both := []models.Suppression{all, newsletter, other}
	slices.SortFunc(both, func(a, b models.Suppression) int { return a.Compare(&b.SuppressionKey) })
	require.Equal(t, both, of("b@x.example", "a@x.example"))

	// The newest entry counts, whichever was stored last.
	removed := all
	removed.Removed, removed.At, removed.Email = true, all.At.Add(time.Millisecond), ""
	require.NoError(t, s.PutSuppressions(ctx, list, removed))
	require.NoError(t, s.PutSuppressions(ctx, list, all))
	require.Equal(t, []models.Suppression{removed, newsletter}, of("a@x.example"))
	again := all
	again.At = removed.At.Add(time.Millisecond)
	require.NoError(t, s.PutSuppressions(ctx, list, again, removed))
	require.Equal(t, []models.Suppression{again, newsletter}, of("a@x.example"))
}

func testSuppressionPages(t *testing.T, s models.Store) {
	ctx, list := t.Context(), models.NewUserID()
	var want []models.Suppression
	for i := range 300 {
		want = append(want, suppressed(fmt.Sprint(i, "@x.example"), "", models.Manual))
	}
	want = append(want, suppressed("0@x.example", "", models.Complaint), suppressed("0@x.example", "a", models.Manual))
	require.NoError(t, s.PutSuppressions(ctx, list, want...))
	slices.SortFunc(want, func(a, b models.Suppression) int { return a.Compare(&b.SuppressionKey) })
	for _, limit := range []int{1, 7, 301, 302, 500} {
		var got []models.Suppression
		var after models.SuppressionKey
		for {
			page, err := s.Suppressions(ctx, list, after, limit)
			require.NoError(t, err)
			require.LessOrEqual(t, len(page), limit)
			if len(page) == 0 {
				break
			}
			got = append(got, page...)
			after = page[len(page)-1].SuppressionKey
		}
		require.Equal(t, want, got, "pages of %d", limit)
	}
	page, err := s.Suppressions(ctx, list, models.SuppressionKey{}, 0)
	require.NoError(t, err)
	require.Empty(t, page)
}

func testAdditions(t *testing.T, s models.Store) {
	ctx, list := t.Context(), models.NewUserID()
	addition := func(n int) models.SuppressionAddition {
		return models.SuppressionAddition{Number: n, Token: models.NewToken(), Marks: []uint64{uint64(n), 1<<64 - 1}}
	}
	none, err := s.Additions(ctx, list, 0, 10)
	require.NoError(t, err)
	require.Empty(t, none)
	require.ErrorIs(t, s.AppendAddition(ctx, list, addition(0)), models.ErrInvalid)
	require.ErrorIs(t, s.AppendAddition(ctx, list, addition(2)), models.ErrInvalid, "a gap")
	first := addition(1)
	require.NoError(t, s.AppendAddition(ctx, list, first))
	require.NoError(t, s.AppendAddition(ctx, list, first), "the same token again")
	require.ErrorIs(t, s.AppendAddition(ctx, list, addition(1)), models.ErrExists)
	require.ErrorIs(t, s.AppendAddition(ctx, list, addition(3)), models.ErrInvalid, "a gap")

	// Exactly one of several wins a number.
	want := []models.SuppressionAddition{first}
	for n := 2; n <= 20; n++ {
		var won atomic.Pointer[models.SuppressionAddition]
		allNil(t, together(4, func(int) error {
			a := addition(n)
			err := s.AppendAddition(ctx, list, a)
			if err == nil && !won.CompareAndSwap(nil, &a) {
				return fmt.Errorf("two callers appended %d", n)
			}
			return nil
		}))
		require.NotNil(t, won.Load())
		want = append(want, *won.Load())
	}
	full := addition(21)
	full.Marks = make([]uint64, suppression.MaxMarks)
	for n := 21; n <= 520; n++ { // more than a partition
		if n > 21 {
			full = addition(n)
		}
		require.NoError(t, s.AppendAddition(ctx, list, full))
		want = append(want, full)
	}
	for _, limit := range []int{13, 499, 500, 1000} {
		var got []models.SuppressionAddition
		for {
			page, err := s.Additions(ctx, list, len(got), limit)
			require.NoError(t, err)
			if len(page) == 0 {
				break
			}
			got = append(got, page...)
		}
		require.Equal(t, want, got, "pages of %d", limit)
	}
}
