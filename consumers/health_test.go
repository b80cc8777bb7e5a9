package consumers

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// slowLedger is a store that takes its time to append attempts at one provider.
type slowLedger struct {
	models.Store
	provider string
	takes    time.Duration
}

func (s *slowLedger) Append(ctx context.Context, chunk models.ID, e models.Entry) error {
	if e.Provider == s.provider {
		time.Sleep(s.takes)
	}
	return s.Store.Append(ctx, chunk, e)
}

// A slow answer is the provider's: the time that the store takes before the call
// does not count, though another provider seems quick beside it.
func TestSlowStoreIsNoSlowProvider(t *testing.T) {
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
	through := func(provider string) {
		r.done(r.batch(1, true, func(b *models.Batch, _ []models.Recipient) { b.Providers = []string{provider} }))
	}
	for range 2 {
		through("mg")
		through("sg")
	}
	failures := func() int { return r.engine.providers.Get("sg").Health.FailuresInRow() }
	require.Zero(t, failures())
	late.Store(true)
	through("sg")
	require.NotZero(t, failures(), "the answer itself took as long")
}

// waiting is a rig whose provider has all the calls of bulk mail it may have, and a
// batch of 3 that was planned and waits until they are let end.
func waiting(t *testing.T) (r *rig, p *scripted, b *models.Batch, open func()) {
	t.Helper()
	free := make(chan struct{})
	p = newScripted("sg", func(_ context.Context, c *models.Call) []models.Part {
		<-free
		return part(models.Accepted, c)
	})
	r = newRig(t, fast(), nil, p)
	open = sync.OnceFunc(func() { close(free) })
	t.Cleanup(open)
	for range 3 { // as many of bulk as may run
		r.batch(1, true, nil)
	}
	require.Eventually(t, func() bool { return p.count() == 3 }, patience, time.Millisecond)
	b = r.batch(3, true, nil)
	require.Eventually(t, func() bool { return r.inLine("sg", b.Lane) }, patience, time.Millisecond)
	return r, p, b, open
}

// Mail that waited for a slot does not go to a provider that was shut meanwhile.
func TestShutWhileItWaits(t *testing.T) {
	t.Parallel()
	r, p, b, open := waiting(t)
	r.engine.providers.Get("sg").Health.Suspend(time.Now().Add(time.Hour), "the key was revoked")
	open()
	r.looked(b)
	r.looked(b) // and again: somebody has planned it
	require.EqualValues(t, 3, r.view(b).Summary().Untried)
	require.Equal(t, 3, p.count())
}
