package storetest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

func addressIndexCases() []testCase {
	return []testCase{
		{"AddressIndex/ByHour", testAddressIndex},
	}
}

func testAddressIndex(t *testing.T, s models.Store) {
	ctx := t.Context()
	u := newUser("index").ID
	base := now().Truncate(time.Hour)
	hours := []time.Time{base.Add(-50 * time.Hour), base.Add(-2 * time.Hour), base}
	want := map[models.ID]models.AddressIndex{}
	for _, h := range hours {
		for range 3 {
			b := newBatch(u, h.Add(20*time.Minute), 2)
			for n := range 2 {
				p := models.NewAddressIndex(b.ID.Chunk(n), chunkOf(b, n).Recipients)
				require.True(t, p.MayContain(models.Fingerprint("B"+fmt.Sprint(n)+"@Example.com")))
				require.False(t, p.MayContain(models.Fingerprint("unknown@example.com")))
				want[p.Chunk] = p
				require.NoError(t, s.PutAddressIndex(ctx, u, models.AddressIndex{Chunk: p.Chunk, Fingerprints: []byte("more")}))
				require.NoError(t, s.PutAddressIndex(ctx, u, p), "replaces it")
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
		found := collect(t, s.AddressIndexes(ctx, u, h.Add(59*time.Minute), models.ID{}))
		for _, p := range found {
			require.Equal(t, want[p.Chunk], p)
			seen++
		}
		newestFirst := func(a, b models.AddressIndex) int { return slices.Compare(b.Chunk[:], a.Chunk[:]) }
		require.True(t, slices.IsSortedFunc(found, newestFirst))
		require.Equal(t, found[4:], collect(t, s.AddressIndexes(ctx, u, h, found[3].Chunk)), "from a chunk on")
	}
	require.Equal(t, len(want), seen)
	require.NoError(t, s.DropAddressIndexes(ctx, u, hours[0]))
	require.Empty(t, collect(t, s.AddressIndexes(ctx, u, hours[0], models.ID{})))
	got, err = s.AddressIndexHours(ctx, u, base.Add(time.Hour), 10)
	require.NoError(t, err)
	require.Len(t, got, 2)
}
