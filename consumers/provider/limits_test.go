package provider

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// Where a provider has fewer slots than there are workers, those that have one
// share its rate.
func TestRatesGoWithSlots(t *testing.T) {
	t.Parallel()
	for workers, want := range map[int]rate.Limit{1: 90, 2: 45, 3: 45, 9: 45} {
		l := newLimit(limit{rate: 90})
		l.set(Share{Size: workers}, 2, false)
		require.InDelta(t, float64(want), float64(l.whole.Limit()), 1e-9, workers)
	}
}

// TestLanesShareSlots: bulk never takes the slots that are kept for urgent mail,
// and a flood of urgent mail leaves bulk its share.
func TestLanesShareSlots(t *testing.T) {
	t.Parallel()
	s := newSlots(16)
	var bulk []func()
	for {
		release, ok := s.Try(models.Bulk)
		if !ok {
			break
		}
		bulk = append(bulk, release)
	}
	require.Len(t, bulk, 14)
	urgent, ok := s.Try(models.Urgent)
	require.True(t, ok)
	urgent()
	for _, release := range bulk {
		release()
	}
	for range 16 { // no bulk mail waits, so urgent mail may use all slots
		_, ok := s.Try(models.Urgent)
		require.True(t, ok)
	}
	_, ok = s.Try(models.Urgent)
	require.False(t, ok)

	for _, n := range []int{1, 2, 4, 16} {
		synctest.Test(t, func(t *testing.T) {
			s := newSlots(n)
			ctx, stop := context.WithCancel(t.Context())
			done := [2]int{}
			var all sync.WaitGroup
			work := func(l models.Lane, k int) {
				for ctx.Err() == nil {
					release, err := s.Acquire(ctx, l)
					if err != nil {
						return
					}
					time.Sleep(10 * time.Millisecond) // the call
					release()
					s.mu.Lock()
					done[k]++
					s.mu.Unlock()
				}
			}
			for range 2 * n {
				all.Go(func() { work(models.Urgent, 0) })
				all.Go(func() { work(models.Bulk, 1) })
			}
			time.Sleep(10 * time.Second)
			stop()
			all.Wait()
			require.Positive(t, done[0])
			require.GreaterOrEqual(t, done[1]*bulkPart*10, (done[0]+done[1])*9, "bulk has its share of %d slots: %v", n, done)
			require.GreaterOrEqual(
				t,
				done[0]*urgentPart*10,
				(done[0]+done[1])*9,
				"urgent has its share of %d slots: %v",
				n,
				done,
			)
		})
	}
}

// While bulk mail waits, urgent mail leaves a quarter of the slots to it, and takes them again when none waits.
func TestUrgentLeavesSlotsToBulk(t *testing.T) {
	t.Parallel()
	s := newSlots(16)
	waiting := func(n int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.wait[laneNumber(models.Bulk)] = n
	}
	begun := func(l models.Lane) (n int) {
		for {
			if _, ok := s.Try(l); !ok {
				return n
			}
			n++
		}
	}
	waiting(1)
	require.Equal(t, 12, begun(models.Urgent))
	require.Equal(t, 4, begun(models.Bulk))

	s = newSlots(16)
	waiting(0)
	require.Equal(t, 16, begun(models.Urgent))
}

// TestLanesShareRates: a flood in one lane leaves the other its share of an
// provider's rates, and all of them are used; alone, a lane has them all.
func TestLanesShareRates(t *testing.T) {
	t.Parallel()
	const perSecond, seconds = 100, 60
	flood := func(t *testing.T, a models.Provider, urgent, bulk int) (sent [2]int) {
		t.Helper()
		cfg := defaultConfig()
		a.Name, a.Concurrency = "sg", 8
		acc := newProvider(Spec{Adapter: idleAdapter{}, Provider: a}, cfg, alone{})
		ctx, stop := context.WithTimeout(t.Context(), seconds*time.Second)
		defer stop()
		var mu sync.Mutex
		var all sync.WaitGroup
		work := func(l models.Lane, k, n int) {
			for ctx.Err() == nil {
				wait, err := acc.Await(ctx, l, Load{Recipients: n})
				if err != nil {
					return
				}
				if wait > 0 { // it comes back through a delay
					time.Sleep(wait)
					continue
				}
				mu.Lock()
				sent[k] += n
				mu.Unlock()
			}
		}
		for range 8 {
			if urgent > 0 {
				all.Go(func() { work(models.Urgent, 0, urgent) })
			}
			if bulk > 0 {
				all.Go(func() { work(models.Bulk, 1, bulk) })
			}
		}
		all.Wait()
		return sent
	}
	for name, c := range map[string]struct {
		provider     models.Provider
		urgent, bulk int // Recipients per call
		whole        int // of the limit, in recipients
	}{
		"recipients":          {models.Provider{Rate: perSecond}, 1, 50, perSecond * seconds},
		"recipients, in tens": {models.Provider{Rate: perSecond}, 10, 10, perSecond * seconds},
		"calls":               {models.Provider{CallRate: perSecond}, 1, 1, perSecond * seconds},
		"urgent alone":        {models.Provider{Rate: perSecond}, 1, 0, perSecond * seconds},
		"bulk alone":          {models.Provider{Rate: perSecond}, 0, 50, perSecond * seconds},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				sent := flood(t, c.provider, c.urgent, c.bulk)
				t.Logf("urgent %d, bulk %d of %d", sent[0], sent[1], c.whole)
				require.GreaterOrEqual(t, sent[0]+sent[1], c.whole*9/10, "the limit is used")
				require.LessOrEqual(t, sent[0]+sent[1], c.whole+2*perSecond)
				if c.urgent > 0 && c.bulk > 0 {
					require.GreaterOrEqual(t, sent[1], c.whole/bulkPart*8/10, "bulk has its share")
					require.GreaterOrEqual(t, sent[0], c.whole*(bulkPart-1)/bulkPart*8/10, "urgent has its share")
				}
			})
		})
	}
}

// TestStateNamesLimit: a worker reports the limit of a provider that mail waits for, also while
// the mail waits in a delay queue, and none while no mail waits.
func TestStateNamesLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		limit := func(p *Provider, at time.Time) string { return p.State(at).Limit }
		rated := newProvider(
			Spec{Adapter: idleAdapter{}, Provider: models.Provider{Name: "sg", Rate: 1, Concurrency: 1}},
			defaultConfig(),
			alone{},
		)
		require.Empty(t, limit(rated, now))
		var wait time.Duration
		for wait == 0 {
			var err error
			wait, err = rated.Await(t.Context(), models.Bulk, Load{Recipients: 10})
			require.NoError(t, err)
		}
		require.Equal(t, telemetry.RateLimit, limit(rated, time.Now()), "a requeued message is expected")
		require.Empty(t, limit(rated, now.Add(time.Hour)))

		slots := newProvider(
			Spec{Adapter: idleAdapter{}, Provider: models.Provider{Name: "mg", Concurrency: 1}},
			defaultConfig(),
			alone{},
		)
		release, ok := slots.Slots.Try(models.Bulk)
		require.True(t, ok)
		require.Empty(t, limit(slots, now), "a call runs, and no mail waits")
		acquired := make(chan func(), 1)
		go func() {
			free, err := slots.Slots.Acquire(t.Context(), models.Urgent)
			if err == nil {
				acquired <- free
			}
		}()
		require.Eventually(t, func() bool { return slots.Slots.Waiting(models.Urgent) == 1 }, time.Minute, time.Millisecond)
		require.Equal(t, telemetry.ConcurrencyLimit, limit(slots, now))
		release()
		(<-acquired)()
		require.Eventually(t, func() bool { return limit(slots, now) == "" }, time.Minute, time.Millisecond)
	})
}
