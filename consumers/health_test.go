package consumers

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"github.com/safedelivr/safedelivr/models"
)

// A call that was let through and not made, because another worker was quicker or
// the store was away, is no answer: it closes no breaker, and keeps none closed.
func TestWhatWasNotCalledTellsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := fast().withDefaults()
		h := newHealth("sg", time.Second, &cfg)
		call := func(parts ...models.Part) {
			done, ok := h.begin("a.test", 1)
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
		require.Equal(t, breakerProving, h.breaker.state(time.Now(), false))
		call(up)
		require.Equal(t, breakerClosed, h.breaker.state(time.Now(), false))
	})
}

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
	failures := func() int {
		h := r.engine.byName["sg"].health
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.breaker.row
	}
	require.Zero(t, failures())
	late.Store(true)
	through("sg")
	require.NotZero(t, failures(), "the answer itself took as long")
}

// A provider that hangs is left alone also where a call may take longer than the
// breaker looks back for quick ones: each call counts when it ends.
func TestHangingForLongOpensTheBreaker(t *testing.T) {
	t.Parallel()
	for _, timeout := range []time.Duration{2 * time.Second, 30 * time.Second, 5 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			cfg := fast().withDefaults()
			h := newHealth("sg", timeout, &cfg)
			for range 5 {
				done, ok := h.begin("a.test", 1)
				require.True(t, ok)
				time.AfterFunc(timeout, func() { done([]models.Part{{Class: models.Unknown, Recipients: models.SetOf(1)}}, timeout) })
			}
			time.Sleep(timeout + time.Millisecond)
			ok, _ := h.usable(time.Now())
			require.False(t, ok, timeout)
		})
	}
}

// What was shut for its silence comes back with a few mails at a time, also at
// workers that only heard of it, until something is heard of it.
func TestSilentComesBackOnTrial(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := fast().withDefaults()
		found, heard := newHealth("sg", time.Second, &cfg), newHealth("sg", time.Second, &cfg)
		found.fallenSilent(time.Now().Add(time.Minute), "it reported nothing")
		heard.hear("w", found.ailment())
		time.Sleep(time.Minute + time.Millisecond)
		heard.hear("w", found.ailment())
		for _, h := range []*health{found, heard} {
			taken := func(n int) (sum int) {
				for sum < 10_000 {
					done, ok := h.begin("a.test", n)
					if !ok {
						return sum
					}
					sum += n
					done([]models.Part{{Class: models.Accepted, Recipients: models.SetOf(1)}}, time.Millisecond)
				}
				return sum
			}
			require.Zero(t, taken(1_000), "a call of that size waits")
			require.Equal(t, trialSize, taken(probeSize))
			ok, until := h.usable(time.Now())
			require.False(t, ok)
			time.Sleep(time.Until(until))
			require.Equal(t, trialSize, taken(probeSize), "as much again")
			require.Equal(t, probeSize, h.callSize(1000, time.Now()))
			h.trusted()
			require.Equal(t, 10_000, taken(1_000))
		}
	})
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
	r.engine.byName["sg"].health.shutOff(time.Now().Add(time.Hour), "the key was revoked")
	open()
	r.looked(b)
	r.looked(b) // and again: somebody has planned it
	require.EqualValues(t, 3, r.view(b).Summary().Untried)
	require.Equal(t, 3, p.count())
}

// A worker whose beats are written and cannot be read, as when its clock was set back,
// sends nothing: the others take its part.
func TestBeatThatIsNotRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		board, seen := newReportBoard(), &sends{}
		a := startHand(ctx, "a", board, 10, seen)
		time.Sleep(3 * time.Second)
		_, ok := a.crew.share()
		require.True(t, ok)
		board.mu.Lock()
		board.shadowed = true
		board.mu.Unlock()
		time.Sleep((fenceBeats + 1) * a.crew.cfg.Beat)
		_, ok = a.crew.share()
		require.False(t, ok)
		board.mu.Lock()
		board.shadowed = false
		board.mu.Unlock()
		time.Sleep((joinBeats + 2) * a.crew.cfg.Beat)
		_, ok = a.crew.share()
		require.True(t, ok)
		stop()
		seen.all.Wait()
	})
}

// Two workers that were given one name are two all the same: each has half.
func TestTwoOfOneName(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		board, seen := newReportBoard(), &sends{}
		a, b := startHand(ctx, "w", board, 10, seen), startHand(ctx, "w", board, 10, seen)
		time.Sleep(10 * time.Second)
		one, ok := a.crew.share()
		require.True(t, ok)
		two, ok := b.crew.share()
		require.True(t, ok)
		require.Equal(t, 2, one.size)
		require.Equal(t, 2, two.size)
		require.NotEqual(t, one.rank, two.rank)
		stop()
		seen.all.Wait()
	})
}

// Where a provider has fewer slots than there are workers, those that have one
// share its rate.
func TestRatesGoWithSlots(t *testing.T) {
	t.Parallel()
	for workers, want := range map[int]rate.Limit{1: 90, 2: 45, 3: 45, 9: 45} {
		l := newLimit(90)
		l.set(share{size: workers}, 2, false)
		require.InDelta(t, float64(want), float64(l.whole.Limit()), 1e-9, workers)
	}
}
