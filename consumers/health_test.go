package consumers

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// A call that was let through and not made, because another worker was quicker or
// the store was away, is no answer: it closes no breaker, and keeps none closed.
func TestWhatWasNotCalledTellsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := fast().withDefaults()
		h := newHealth("sg", &cfg)
		call := func(parts ...models.Part) {
			done, ok := h.begin("a.test")
			require.True(t, ok)
			done(parts, time.Millisecond)
		}
		down, up := models.Part{Class: models.Unavailable, Recipients: models.SetOf(1)}, models.Part{Class: models.Accepted, Recipients: models.SetOf(1)}
		for range 4 {
			call(down)
			call()
			call(notCalled(models.SetOf(1), "too late"))
		}
		call(down)
		ok, _ := h.usable(time.Now())
		require.False(t, ok, "five in a row")

		time.Sleep(cfg.BreakerOpen + time.Millisecond)
		for range 10 {
			call()
			call(notCalled(models.SetOf(1), "too late"))
		}
		require.Equal(t, "half-open", h.breaker.State().String())
		call(up)
		call(up)
		require.Equal(t, "closed", h.breaker.State().String())
	})
}

// slowLedger is a store that takes its time to append attempts at one account.
type slowLedger struct {
	models.Store
	account string
	takes   time.Duration
}

func (s *slowLedger) Append(ctx context.Context, chunk models.ID, e models.Entry) error {
	if e.Account == s.account {
		time.Sleep(s.takes)
	}
	return s.Store.Append(ctx, chunk, e)
}

// A slow answer is the provider's: the time that the store takes before the call
// does not count, though another account seems quick beside it.
func TestSlowStoreIsNoSlowAccount(t *testing.T) {
	t.Parallel()
	cfg := fast()
	cfg.SlowCall, cfg.StartBy = time.Second, 10*time.Second
	quick := func(_ context.Context, c *models.Call) []models.Part {
		time.Sleep(time.Millisecond)
		return part(models.Accepted, c)
	}
	var late atomic.Bool
	r := newRig(t, cfg, func(s models.Store) models.Store { return &slowLedger{s, "sg", 1200 * time.Millisecond} },
		newScripted("sg", func(ctx context.Context, c *models.Call) []models.Part {
			if late.Load() {
				time.Sleep(1200 * time.Millisecond)
			}
			return quick(ctx, c)
		}), newScripted("mg", quick))
	through := func(account string) {
		r.done(r.batch(1, true, func(b *models.Batch, _ []models.Recipient) { b.Accounts = []string{account} }))
	}
	for range 2 {
		through("mg")
		through("sg")
	}
	require.Zero(t, r.engine.byName["sg"].health.breaker.Counts().TotalFailures)
	late.Store(true)
	through("sg")
	require.NotZero(t, r.engine.byName["sg"].health.breaker.Counts().TotalFailures, "the answer itself took as long")
}
