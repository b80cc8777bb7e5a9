package consumers

import (
	"context"
	"encoding/json"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/feed"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// slowLedger is a store that appends attempts at one provider slowly.
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

// TestSlowComposing: composing has a budget of its own, and the time-out of the call begins behind it. A request that
// is not ready in time is composed again, although retries are off, and says nothing about the provider.
func TestSlowComposing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := fast()
		cfg.Retries = 0
		var r *rig
		var calls atomic.Int64
		const late = 6 // five failures in a row suspend a provider
		sg := newScripted("sg", func(ctx context.Context, c *models.Call) []models.Part {
			parts := part(models.Accepted, c)
			if calls.Add(1) <= late {
				time.Sleep(time.Until(c.StartBy) + time.Millisecond)
				parts[0].Class, parts[0].Reason = models.Unavailable, models.NotComposed
				return parts
			}
			time.Sleep(time.Until(c.StartBy) - time.Millisecond)
			if deadline, _ := ctx.Deadline(); time.Until(deadline) <= time.Second {
				t.Error("the time-out of the provider is over")
			}
			if found := r.engine.providers.Get("sg").Health.Finding(); found != nil {
				t.Errorf("the provider is %s: %s", found.State, found.Why)
			}
			return parts
		})
		r = newRig(t, cfg, nil, sg)
		v := r.done(r.batch(1, true, nil))
		require.Equal(t, models.Success, v.Status(1).State)
		require.Equal(t, models.NotComposed, v.Tries(1)[late-1].Reason)
		require.Equal(t, late+1, sg.count())
	})
}

// The time that the store takes before a call does not count as the provider's, even if
// another provider is fast beside it.
func TestSlowStoreDoesNotSuspendProvider(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := fast()
		const slow = 600 * time.Millisecond
		cfg.SlowCall, cfg.StartBy = slow/2, time.Hour
		quick := func(_ context.Context, c *models.Call) []models.Part {
			time.Sleep(time.Millisecond)
			return part(models.Accepted, c)
		}
		var late atomic.Bool
		r := newRig(t, cfg, func(s models.Store) models.Store { return &slowLedger{s, "sg", slow} },
			newScripted("sg", func(ctx context.Context, c *models.Call) []models.Part {
				if late.Load() {
					time.Sleep(slow)
				}
				return quick(ctx, c)
			}), newScripted("mg", quick))
		through := func(provider string) {
			r.done(r.batch(1, true, func(b *models.Batch, _ []models.Recipient) { b.Providers = []string{provider} }))
		}
		suspended := func() bool {
			return r.engine.providers.Get("sg").Health.Report(time.Now(), control.ProviderMode{}).State == telemetry.Suspended
		}
		for range 5 { // as many as suspend a provider
			through("mg")
			through("sg")
		}
		require.False(t, suspended())
		late.Store(true)
		for n := 0; !suspended(); n++ {
			require.Less(t, n, 50, "the answers themselves took as long")
			through("mg") // a provider is slow only beside another one, lately
			through("sg")
		}
	})
}

// waiting is a rig whose provider has all the calls of bulk mail it may have, and a
// batch of 3 that was planned and waits until free ends them.
func waiting(t *testing.T) (r *rig, p *scripted, b *models.Batch, open func()) {
	t.Helper()
	free := make(chan struct{})
	p = newScripted("sg", func(_ context.Context, c *models.Call) []models.Part {
		<-free
		return part(models.Accepted, c)
	})
	cfg := fast()
	cfg.Hold = time.Hour
	r = newRig(t, cfg, nil, p)
	open = sync.OnceFunc(func() { close(free) })
	t.Cleanup(open)
	for range 3 { // as many of bulk as may run
		r.batch(1, true, nil)
	}
	require.Eventually(t, func() bool { return p.count() == 3 }, patience, 20*time.Millisecond)
	b = r.batch(3, true, nil)
	require.Eventually(t, func() bool { return r.inLine("sg", b.Lane) }, patience, 20*time.Millisecond)
	return r, p, b, open
}

// Mail that waited for a slot does not go to a provider that was suspended meanwhile.
func TestSuspendedWhileMailWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, p, b, open := waiting(t)
		rejectKey(r.engine.providers.Get("sg").Health)
		open()
		r.looked(b)
		r.looked(b) // again, after it was planned
		require.EqualValues(t, 3, r.view(b).Summary().Untried)
		require.Equal(t, 3, p.count())
	})
}

// Workers store when calls of a provider failed, while they do and afterwards.
func TestFailedCallsAreStored(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var up atomic.Bool
		r := newRig(t, fast(), nil, newScripted("sg", func(_ context.Context, c *models.Call) []models.Part {
			if up.Load() {
				return part(models.Accepted, c)
			}
			return part(models.Unavailable, c)
		}))
		stored := func(is func(telemetry.FailedCalls) bool) {
			t.Helper()
			require.Eventually(t, func() bool {
				reports, err := r.store.Transients(t.Context(), telemetry.FailedCallsReport)
				require.NoError(t, err)
				for _, raw := range reports {
					var calls telemetry.FailedCallsOf
					require.NoError(t, json.Unmarshal(raw, &calls))
					if len(calls["sg"]) == 1 && is(calls["sg"][0]) {
						return true
					}
				}
				return false
			}, patience, 10*time.Millisecond)
		}
		b := r.batch(1, true, nil)
		stored(func(c telemetry.FailedCalls) bool { return c.Calls > 1 && c.To.IsZero() })
		up.Store(true)
		r.done(b)
		stored(func(c telemetry.FailedCalls) bool { return c.To.After(c.Last) && c.Last.After(c.From) })
	})
}

// Operators get one notice of what several workers find out about a provider.
func TestOutageIsPublished(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var up atomic.Bool
		cfg := fast()
		cfg.Worker = "one"
		sg := newScripted("sg", func(_ context.Context, c *models.Call) []models.Part {
			if up.Load() {
				return part(models.Accepted, c)
			}
			return part(models.AccountClass, c)
		})
		r := newRig(t, cfg, nil, sg)
		cfg.Worker = "two"
		r.worker(cfg, sg)
		published := func() (kinds []models.NoticeKind) {
			page, err := feed.Read(t.Context(), r.store, feed.Installation, feed.Query{After: feed.Begin, Limit: 100})
			require.NoError(t, err)
			for i := range page.Updates {
				require.Equal(t, "sg", page.Updates[i].Notice.Provider)
				kinds = append(kinds, page.Updates[i].Notice.Kind)
			}
			return kinds
		}
		b := r.batch(5, true, nil)
		require.Eventually(t, func() bool { return len(published()) >= 2 }, patience, 10*time.Millisecond)
		up.Store(true)
		r.done(b)
		require.Eventually(t, func() bool {
			r.batch(1, true, nil) // each worker probes the provider with mail of its own
			return len(published()) >= 4
		}, patience, 200*time.Millisecond)
		require.Equal(t, []models.NoticeKind{
			models.FailoverStarted, models.ProviderSuspended, models.ProviderRecovered, models.FailoverEnded,
		}, published())
	})
}
