package consumers

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/policy"
	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/sqlite/sqlitetest"
)

// TestOverTheLimitGoesElsewhere: what one provider refused, and could go on through
// a provider that is over its limit or through one that is idle, does not wait for
// the limit.
func TestOverTheLimitGoesElsewhere(t *testing.T) {
	t.Parallel()
	for name, wish := range map[string][]string{"by weight": nil, "in the batch's order": {"a", "b", "c"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refuses, limited, idle := newScripted("a", always(models.RejectedHereClass)), newScripted("b", always(models.Accepted)), newScripted("c", always(models.Accepted))
			r := emptyRig(t, nil, "a", "b", "c")
			provider := func(p *scripted, rate float64) Provider {
				return Provider{Adapter: p, Provider: models.Provider{Name: p.name, Weight: 1, Concurrency: 4, ChunkLimit: 1000, Timeout: time.Second, Events: models.EventsNone, Rate: rate}}
			}
			r.engine = r.start(fast(), []Provider{provider(refuses, 0), provider(limited, 0.5), provider(idle, 0)})
			const n = 200
			batches := make([]*models.Batch, n)
			for i := range batches {
				batches[i] = r.batch(1, true, func(b *models.Batch, _ []models.Recipient) { b.Providers = wish })
			}
			for _, b := range batches {
				require.Equal(t, models.Success, r.done(b).Status(1).State)
			}
			require.Less(t, limited.count(), n/4)
			require.GreaterOrEqual(t, limited.count()+idle.count(), n)
		})
	}
}

// TestNeverTriedComesFirst: a provider that refused, and may be tried again by now,
// comes after those that never were.
func TestNeverTriedComesFirst(t *testing.T) {
	t.Parallel()
	store, broker := sqlitetest.Open(t), inproctest.New(t, "a", "b", "c")
	var providers []Provider
	for _, name := range []string{"a", "b", "c"} {
		providers = append(providers, Provider{Adapter: newScripted(name, nil), Provider: models.Provider{Name: name, Weight: 1}})
	}
	e, err := New(store, broker, providers, fast())
	require.NoError(t, err)
	now := time.Now()
	before := now.Add(-time.Minute)
	for range 6 {
		first := e.order(&policy.Step{Options: []policy.Option{{Provider: "c"}, {Provider: "a", NotBefore: before}, {Provider: "b", NotBefore: before}}}, now)
		require.Len(t, first, 1)
		require.Equal(t, "c", first[0].Name)
	}
	again := e.order(&policy.Step{Options: []policy.Option{{Provider: "a", NotBefore: now.Add(time.Minute)}, {Provider: "b", NotBefore: before}, {Provider: "c", NotBefore: before}}}, now)
	require.Len(t, again, 1)
	require.Equal(t, "b", again[0].Name)
}

// A store that hangs for a while holds up many appends at once: the calls that follow
// still keep the limit. One that is slow all the time costs nothing of it.
func TestSlowAppendsKeepTheLimit(t *testing.T) {
	t.Parallel()
	const limit, perCall = 100.0, 10
	hangs := func(begun, now time.Time) time.Duration {
		if since := now.Sub(begun); since > 10*time.Second && since < 16*time.Second {
			return 16*time.Second - since
		}
		return time.Millisecond
	}
	steady := func(takes time.Duration) func(begun, now time.Time) time.Duration {
		return func(time.Time, time.Time) time.Duration { return takes + rand.N(takes/4) }
	}
	for name, c := range map[string]struct {
		takes func(begun, now time.Time) time.Duration
		late  bool // some calls may not be made any more
	}{
		"quick": {steady(4 * time.Millisecond), false}, "slow": {steady(300 * time.Millisecond), false}, "very slow": {steady(2 * time.Second), false}, "hangs": {hangs, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg := DefaultConfig()
				cfg.Sole = true
				cfg = cfg.withDefaults()
				a := newProvider(Provider{Adapter: newScripted("sg", nil), Provider: models.Provider{Name: "sg", Rate: limit, Concurrency: 64, ChunkLimit: perCall}}, &cfg, newCrew(nil, &cfg))
				var seen sends
				begun, late := time.Now(), 0
				ctx, stop := context.WithCancel(t.Context())
				for range 64 {
					seen.all.Go(func() {
						for ctx.Err() == nil {
							if wait := a.take(models.Bulk, perCall); wait > 0 {
								time.Sleep(wait)
								continue
							}
							began := time.Now()
							time.Sleep(c.takes(begun, began)) // the append
							ok := a.pass(ctx, perCall, began.Add(cfg.StartBy))
							seen.mu.Lock()
							if ok {
								seen.at, seen.n = append(seen.at, time.Now()), append(seen.n, perCall)
							} else if ctx.Err() == nil {
								late++
							}
							seen.mu.Unlock()
						}
					})
				}
				time.Sleep(time.Minute)
				stop()
				seen.all.Wait()
				require.LessOrEqual(t, seen.most(limit, limit), 1e-6)
				require.Equal(t, c.late, late > 0, "%d calls were not made", late)
				used := float64(seen.between(begun.Add(30*time.Second), begun.Add(time.Minute))) / (limit * 30)
				require.Greater(t, used, 0.95)
			})
		})
	}
}
