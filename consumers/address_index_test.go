package consumers

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// found returns how many chunks may hold mail to an address.
func (r *rig) found(address string) (n int) {
	r.t.Helper()
	for p, err := range r.store.AddressIndexes(r.t.Context(), r.user, time.Now(), models.ID{}) {
		require.NoError(r.t, err)
		if p.MayContain(models.Fingerprint(address)) {
			n++
		}
	}
	return n
}

// TestFoundByAddress: mail is found by its address, with any first entry of its ledger.
func TestFoundByAddress(t *testing.T) {
	t.Parallel()
	delivered := func(n int64) func(*testing.T, *rig, *models.Batch) {
		return func(t *testing.T, r *rig, b *models.Batch) {
			t.Helper()
			require.Eventually(
				t,
				func() bool { return r.view(b).Summary().Success == n && r.idle() },
				patience,
				time.Millisecond,
			)
			require.Equal(t, 1, r.found("u3@x.test"))
		}
	}
	start := func(t *testing.T) *rig {
		t.Helper()
		return newRig(t, fast(), nil, newScripted("sg", always(models.Accepted)))
	}
	t.Run("an attempt", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			r := start(t)
			delivered(3)(t, r, r.batch(3, true, nil))
		})
	})
	t.Run("the ending of a blocked recipient", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			r := start(t)
			r.order(
				models.Command{Kind: models.AddBlock, Block: &models.Block{ID: "b", Domain: "bad.test", Fail: true}},
			)
			b := r.batch(3, true, func(_ *models.Batch, rs []models.Recipient) { rs[0].Email = "a@bad.test" })
			delivered(2)(t, r, b)
			require.Equal(t, models.Ending, r.view(b).Entries[0].Kind)
		})
	})
	t.Run("a retry before anything failed", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			r := start(t)
			b := r.batch(3, false, nil)
			r.order(models.Command{Kind: models.RetryBatch, Batch: b.ID})
			r.announce(b)
			delivered(3)(t, r, b)
			require.Equal(t, models.Release, r.view(b).Entries[0].Kind)
		})
	})
	t.Run("an ending, and a retry", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			r := start(t)
			b := r.batch(
				3,
				false,
				func(b *models.Batch, _ []models.Recipient) { b.ExpiresAt = time.Now().Add(time.Millisecond) },
			)
			require.Equal(t, models.Expired, r.done(b).Status(1).Reason)
			r.order(models.Command{Kind: models.RetryBatch, Batch: b.ID})
			r.announce(b)
			delivered(3)(t, r, b)
		})
	})
}
