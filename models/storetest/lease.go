package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

func leaseCases() []testCase {
	return []testCase{
		{"Lease/OneHolder", testLease},
		{"Lease/Race", testLeaseRace},
		{"Lease/Expires", testLeaseExpires},
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
	require.True(t, lease(name, "a", time.Hour))
	require.False(t, lease(name, "b", time.Hour))
	require.True(t, lease(name, "a", time.Hour), "renewed")
	require.True(t, lease(name+"x", "b", time.Hour), "another lease")
	lease(name, "b", 0) // not b's to give up
	require.False(t, lease(name, "b", time.Hour))
	lease(name, "a", 0)
	lease(name, "a", 0)
	require.True(t, lease(name, "b", time.Hour), "given up, so taken at once")
	require.False(t, lease(name, "a", time.Hour))
	lease(name, "b", 0)
}

func testLeaseRace(t *testing.T, s models.Store) {
	name := "lease-" + models.NewUserID()
	held := make([]bool, 12)
	allNil(t, together(len(held), func(i int) (err error) {
		return settled(t.Context(), func() error {
			held[i], err = s.Lease(t.Context(), name, fmt.Sprint("holder-", i), time.Hour)
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
	}, patience, 20*time.Millisecond)
	require.GreaterOrEqual(t, time.Since(start), 900*time.Millisecond, "taken from its holder")
}
