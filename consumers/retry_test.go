package consumers

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
)

// TestRetryingEnds: retries end with a success, without a provider left, or after the maximum
// number. While all providers are unavailable, they do not.
func TestRetryingEnds(t *testing.T) {
	t.Parallel()
	t.Run("no provider left", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(
				t,
				fast(),
				nil,
				newScripted("sg", always(models.RejectedHereClass)),
				newScripted("mg", always(models.RejectedHereClass)),
			)
			v := r.done(r.batch(3, true, nil))
			require.Equal(t, models.NoProviderLeft, v.Status(3).EndedBy)
			require.Equal(t, 2, v.Status(3).Attempts)
			require.Equal(t, map[models.Reason]int64{models.RejectedHere: 3}, v.Summary().Reasons)
		})
	})
	t.Run("retries used up", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			cfg := fast()
			cfg.Retries = 3
			sg, mg := newScripted("sg", always(models.RejectedHereClass)), newScripted("mg", always(models.Unavailable))
			r := newRig(t, cfg, nil, sg, mg)
			v := r.done(r.batch(3, true, func(b *models.Batch, _ []models.Recipient) { b.Providers = []string{"sg", "mg"} }))
			require.Equal(t, models.RetriesUsedUp, v.Status(1).EndedBy)
			require.Equal(t, 4, v.Status(1).Attempts)
			require.Equal(t, 3, mg.count())
		})
	})
	t.Run("not while all providers are unavailable", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			cfg := fast()
			cfg.Retries = 3
			var back atomic.Bool
			away := func(class models.Class) *scripted {
				return newScripted(string(class), func(_ context.Context, c *models.Call) []models.Part {
					if back.Load() {
						return part(models.Accepted, c)
					}
					return part(class, c)
				})
			}
			one, two := away(models.Unavailable), away(models.Throttled)
			r := newRig(t, cfg, nil, one, two)
			b := r.batch(3, true, nil)
			require.Eventually(
				t,
				func() bool { return r.view(b).Status(1).Attempts > 2*cfg.Retries },
				patience,
				time.Millisecond,
			)
			require.EqualValues(t, 3, open(r.view(b)))
			back.Store(true)
			require.EqualValues(t, 3, r.done(b).Summary().Success)
		})
	})
	t.Run("retries are off", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			cfg := fast()
			cfg.Retries = 0
			r := newRig(t, cfg, nil, newScripted("sg", always(models.Unavailable)))
			require.Equal(t, models.RetriesUsedUp, r.done(r.batch(3, true, nil)).Status(1).EndedBy)
		})
	})
	t.Run("delivered", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			var n atomic.Int64
			sg := newScripted("sg", func(_ context.Context, c *models.Call) []models.Part {
				if n.Add(1) < 4 {
					return part(models.Throttled, c)
				}
				return part(models.Accepted, c)
			})
			r := newRig(t, fast(), nil, sg)
			require.Equal(t, models.Success, r.done(r.batch(3, true, nil)).Status(1).State)
			require.Equal(t, 4, sg.count())
		})
	})
}

// TestExpiredMailEnds: mail that no provider takes ends when it expires.
func TestExpiredMailEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, fast(), nil, newScripted("sg", always(models.AccountClass)))
		v := r.done(
			r.batch(
				2,
				true,
				func(b *models.Batch, _ []models.Recipient) { b.ExpiresAt = time.Now().Add(400 * time.Millisecond) },
			),
		)
		require.Equal(t, models.Expired, v.Status(1).Reason)
	})
}

// TestExpiryWhileWaitingForSlot: mail that waits for a provider's slot until it expires has
// passed is not handed over.
func TestExpiryWhileWaitingForSlot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		sg := newScripted("sg", func(ctx context.Context, c *models.Call) []models.Part {
			select {
			case <-hold:
			case <-ctx.Done():
			}
			return part(models.Accepted, c)
		})
		r := emptyRig(t, nil, "sg")
		r.engine = r.start(
			fast(),
			[]provider.Spec{
				{
					Adapter: sg,
					Provider: models.Provider{
						Name:        "sg",
						Weight:      1,
						Concurrency: 1,
						ChunkLimit:  1000,
						Timeout:     patience,
						Events:      models.EventsNone,
					},
				},
			},
		)
		first := r.batch(1, true, nil)
		require.Eventually(t, func() bool { return sg.count() == 1 }, patience, 20*time.Millisecond)
		late := r.batch(2, false, func(b *models.Batch, _ []models.Recipient) {
			b.ExpiresAt = time.Now().Add(500 * time.Millisecond)
		})
		require.Equal(t, models.Bulk, late.Lane)
		require.NoError(
			t,
			r.broker.Publish(
				t.Context(),
				models.Message{Kind: models.ProviderMessage, Provider: "sg", ID: late.ID, Lane: late.Lane},
			),
		)
		require.Eventually(t, func() bool { return r.inLine("sg", models.Bulk) }, patience, 20*time.Millisecond)
		require.True(t, time.Now().Before(late.ExpiresAt))
		require.Eventually(t, func() bool { return time.Now().After(late.ExpiresAt) }, patience, 20*time.Millisecond)
		close(hold)
		require.Equal(t, models.Success, r.done(first).Status(1).State)
		require.Equal(t, models.Expired, r.done(late).Status(2).Reason)
		require.Equal(t, 1, sg.count())
	})
}
