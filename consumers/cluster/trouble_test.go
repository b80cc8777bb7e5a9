package cluster

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// TestHeartbeatThatIsNotRead: a worker whose heartbeats are written but cannot be read, because its
// clock was set back, sends nothing. The others use its share.
func TestHeartbeatThatIsNotRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		board, seen := newReportBoard(), &sends{}
		a := startHand(ctx, "a", board, 10, seen)
		time.Sleep(3 * time.Second)
		_, ok := a.cluster.Share()
		require.True(t, ok)
		board.mu.Lock()
		board.shadowed = true
		board.mu.Unlock()
		time.Sleep((fenceBeats + 1) * a.cluster.cfg.Heartbeat)
		_, ok = a.cluster.Share()
		require.False(t, ok)
		board.mu.Lock()
		board.shadowed = false
		board.mu.Unlock()
		time.Sleep((joinBeats + 2) * a.cluster.cfg.Heartbeat)
		_, ok = a.cluster.Share()
		require.True(t, ok)
		stop()
		seen.all.Wait()
	})
}

// TestTwoWorkersWithOneName: two workers with the same name each have a share.
func TestTwoWorkersWithOneName(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		board, seen := newReportBoard(), &sends{}
		a, b := startHand(ctx, "w", board, 10, seen), startHand(ctx, "w", board, 10, seen)
		time.Sleep(10 * time.Second)
		one, ok := a.cluster.Share()
		require.True(t, ok)
		two, ok := b.cluster.Share()
		require.True(t, ok)
		require.Equal(t, 2, one.Size)
		require.Equal(t, 2, two.Size)
		require.NotEqual(t, one.Rank, two.Rank)
		stop()
		seen.all.Wait()
	})
}

// calls makes a worker call a provider at an interval for some time. The answers have a class. It
// returns how many calls the worker could make.
func (h *hand) calls(ctx context.Context, every, during time.Duration, class models.Class) (made int) {
	for begun := time.Now(); time.Since(begun) < during && ctx.Err() == nil; time.Sleep(every) {
		if done, ok := h.acc.Health.Begin("a.test", 1); ok {
			made++
			done([]models.Part{{Class: class, Recipients: models.SetOf(1), Text: string(class)}}, time.Millisecond)
		}
	}
	return made
}

// TestOneSickWorker: a worker that cannot reach a provider, or has an old key, stops the calls of
// the others only for a moment, because they find out for themselves.
func TestOneSickWorker(t *testing.T) {
	t.Parallel()
	const minutes = 20
	for _, class := range []models.Class{models.Unavailable, models.Unknown, models.AccountClass} {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			board, seen := newReportBoard(), &sends{}
			sick, well := startHand(
				ctx,
				"sick",
				board,
				10,
				seen,
			), []*hand{
				startHand(ctx, "a", board, 10, seen),
				startHand(ctx, "b", board, 10, seen),
			}
			time.Sleep(10 * time.Second)
			made := make(chan int, len(well))
			go sick.calls(ctx, 100*time.Millisecond, minutes*time.Minute, class)
			for _, h := range well {
				go func() {
					made <- h.calls(ctx, 100*time.Millisecond, minutes*time.Minute, models.Accepted)
				}()
			}
			for range well {
				require.Greater(t, <-made, minutes*600*97/100, class)
			}
			stop()
			seen.all.Wait()
		})
	}
}

// TestSlowAppendsKeepTheLimit: the calls that follow after the store was hanging, which delayed many
// appends at once, keep the limit. A store that is slow all the time does not lower the rate.
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
		late  bool // some calls pass their start-by
	}{
		"quick":     {steady(4 * time.Millisecond), false},
		"slow":      {steady(300 * time.Millisecond), false},
		"very slow": {steady(2 * time.Second), false},
		"hangs":     {hangs, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg := memberConfig("w")
				cfg.Sole = true
				info := models.Provider{Name: "sg", Rate: limit, Concurrency: 64, ChunkLimit: perCall}
				ps, err := provider.NewSet([]provider.Spec{{Adapter: idleAdapter{}, Provider: info}}, &health, New(nil, cfg))
				require.NoError(t, err)
				a := ps.Get("sg")
				var seen sends
				load := provider.Load{Recipients: perCall}
				begun, late := time.Now(), 0
				ctx, stop := context.WithCancel(t.Context())
				for range 64 {
					seen.all.Go(func() {
						for ctx.Err() == nil {
							if wait := a.Take(models.Bulk, load); wait > 0 {
								time.Sleep(wait)
								continue
							}
							began := time.Now()
							time.Sleep(c.takes(begun, began)) // the append
							ok := a.Pass(ctx, load, began.Add(10*time.Second))
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

// TestRefusedSendersAreShared: the others know from the next heartbeat that a provider refuses a
// sender, and forget it in time.
func TestRefusedSendersAreShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		board, seen := newReportBoard(), &sends{}
		a, b := startHand(ctx, "a", board, 10, seen), startHand(ctx, "b", board, 10, seen)
		time.Sleep(3 * time.Second)
		usable := func(h *hand, domain string) bool {
			ok, _ := h.acc.Health.Usable(domain, time.Now(), false)
			return ok
		}
		require.True(t, usable(b, "bad.test"))
		settle, ok := a.acc.Health.Begin("bad.test", 1)
		require.True(t, ok)
		settle([]models.Part{{Class: models.AccountClass, Reason: models.SenderNotVerified}}, time.Millisecond)
		hold := health.Hold
		time.Sleep(1200 * time.Millisecond)
		for _, h := range []*hand{a, b} {
			require.False(t, usable(h, "bad.test"))
			require.True(t, usable(h, "good.test"))
			require.Equal(t, telemetry.Healthy, h.acc.Health.Report(time.Now(), control.ProviderMode{}).State)
			require.Equal(t, []string{"bad.test"}, h.acc.Health.Report(time.Now(), control.ProviderMode{}).Senders)
		}
		time.Sleep(hold + time.Second)
		for _, h := range []*hand{a, b} {
			require.True(t, usable(h, "bad.test"), "tried again")
			require.Empty(t, h.acc.Health.Report(time.Now(), control.ProviderMode{}).Senders)
		}
		stop()
		seen.all.Wait()
	})
}
