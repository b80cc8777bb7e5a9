package consumers

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// Calls makes a worker call a provider every so often, for so long, with answers of
// this class, and returns how many calls it was allowed to make.
func (h *hand) calls(ctx context.Context, every, during time.Duration, class models.Class) (made int) {
	for begun := time.Now(); time.Since(begun) < during && ctx.Err() == nil; time.Sleep(every) {
		if done, ok := h.acc.health.begin("a.test", 1); ok {
			made++
			done([]models.Part{{Class: class, Recipients: models.SetOf(1), Text: string(class)}}, time.Millisecond)
		}
	}
	return made
}

// One worker that cannot reach a provider, or whose key is an old one, keeps the
// others from it for a moment only: they find out for themselves.
func TestOneSickWorker(t *testing.T) {
	t.Parallel()
	for _, class := range []models.Class{models.Unavailable, models.Unknown, models.AccountClass} {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			board, seen := newReportBoard(), &sends{}
			sick, well := startHand(ctx, "sick", board, 10, seen), []*hand{startHand(ctx, "a", board, 10, seen), startHand(ctx, "b", board, 10, seen)}
			time.Sleep(10 * time.Second)
			made := make(chan int, len(well))
			go sick.calls(ctx, 100*time.Millisecond, 20*time.Minute, class)
			for _, h := range well {
				go func() { made <- h.calls(ctx, 100*time.Millisecond, 20*time.Minute, models.Accepted) }()
			}
			for range well {
				require.Greater(t, <-made, 12_000*97/100, class)
			}
			stop()
			seen.all.Wait()
		})
	}
}

// What comes back from being left alone, for whatever reason, gets one mail at a time
// until one is answered, also at workers that only heard of it.
func TestComesBackWithAProbe(t *testing.T) {
	t.Parallel()
	trips := func(class models.Class, n int) func(h *health) {
		return func(h *health) {
			for range n {
				if done, ok := h.begin("a.test", 1); ok {
					done([]models.Part{{Class: class, Recipients: models.SetOf(1)}}, time.Second)
				}
			}
		}
	}
	for name, ill := range map[string]func(h *health){
		"hanging": trips(models.Unknown, tripUnknown), "down": trips(models.Unavailable, tripRow), "shut": trips(models.AccountClass, 1),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg := DefaultConfig().withDefaults()
				found, heard := newHealth("sg", 30*time.Second, &cfg), newHealth("sg", 30*time.Second, &cfg)
				ill(found)
				ail := found.ailment()
				require.NotNil(t, ail)
				heard.hear("w", ail)
				_, until := heard.usable(time.Now())
				require.LessOrEqual(t, time.Until(until), 2*cfg.BreakerOpen+2*cfg.Beat, "it is believed for a moment")
				for _, h := range []*health{heard, newHealth("sg", 30*time.Second, &cfg)} {
					if h != heard {
						ill(h)
					}
					ok, until := h.usable(time.Now())
					require.False(t, ok)
					time.Sleep(time.Until(until) - time.Millisecond)
					ok, _ = h.usable(time.Now())
					require.False(t, ok)
					time.Sleep(2 * time.Millisecond)
					heard.hear("w", ail) // it goes on to say so
					probe, ok := h.begin("a.test", 1)
					require.True(t, ok)
					for range 10 {
						_, ok := h.begin("a.test", 1)
						require.False(t, ok, "while a probe is under way")
					}
					require.Equal(t, 1, h.callSize(1000, time.Now()))
					probe([]models.Part{{Class: models.Accepted, Recipients: models.SetOf(1)}}, time.Second)
					heard.hear("w", ail)
					for range 2 {
						_, ok = h.begin("a.test", 1)
						require.True(t, ok)
					}
					require.Less(t, h.callSize(1000, time.Now()), 100, "and it comes back slowly")
				}
			})
		})
	}
}

// A worker that closed its own breaker does not obey one that has no mail to find out
// with.
func TestIdleWorkerKeepsNobodyAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig().withDefaults()
		idle, busy := newHealth("sg", 30*time.Second, &cfg), newHealth("sg", 30*time.Second, &cfg)
		for range tripRow {
			for _, h := range []*health{idle, busy} {
				done, ok := h.begin("a.test", 1)
				require.True(t, ok)
				done([]models.Part{{Class: models.Unavailable, Recipients: models.SetOf(1)}}, time.Second)
			}
		}
		late := 0
		for range 300 {
			busy.hear("idle", idle.ailment())
			time.Sleep(200 * time.Millisecond)
			if done, ok := busy.begin("a.test", 1); ok {
				done([]models.Part{{Class: models.Accepted, Recipients: models.SetOf(1)}}, time.Second)
			} else {
				late++
			}
		}
		require.LessOrEqual(t, time.Duration(late)*200*time.Millisecond, 2*(cfg.BreakerOpen+2*cfg.Beat))
		require.Equal(t, telemetry.HalfOpen, idle.ailment().State)
	})
}

// A worker that is gone did not say that the provider is well again.
func TestTellerThatIsGone(t *testing.T) {
	t.Parallel()
	cfg := DefaultConfig().withDefaults()
	h := newHealth("sg", time.Second, &cfg)
	h.hear("w", &Ailment{State: telemetry.Tripped, Left: time.Minute})
	h.lost("w")
	_, ok := h.begin("a.test", 1)
	require.True(t, ok)
	_, ok = h.begin("a.test", 1)
	require.False(t, ok, "until the first is answered")
}

// What is planned for later does not use up what other workers say now.
func TestLookingAheadForgetsNothing(t *testing.T) {
	t.Parallel()
	cfg := DefaultConfig().withDefaults()
	for _, a := range []Ailment{{State: telemetry.Tripped, Left: 5 * time.Second}, {State: telemetry.Slowed, Left: time.Hour}, {State: telemetry.Tripped, Left: time.Hour, Silent: true}} {
		h := newHealth("sg", time.Second, &cfg)
		h.hear("w", &a)
		h.trial = trial{}
		ok, _ := h.usable(time.Now().Add(24 * time.Hour))
		require.True(t, ok, "by then it is over")
		ok, _ = h.usable(time.Now())
		require.False(t, ok)
		require.False(t, h.breaker.proving)
	}
}

// What a provider said, and silence, do not go with the worker that told of it; and
// nobody judges a provider once more by the mail for which it was left alone, however
// it goes on with who found that out.
func TestWhatIsOfTheProviderStays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig().withDefaults()
		for _, a := range []Ailment{{State: telemetry.Slowed, Left: time.Hour}, {State: telemetry.Tripped, Left: time.Hour, Silent: true}} {
			h := newHealth("sg", time.Second, &cfg)
			h.hear("w", &a)
			h.lost("w")
			h.lost("w")
			ok, until := h.usable(time.Now())
			require.False(t, ok)
			require.Equal(t, time.Hour, time.Until(until))
			time.Sleep(time.Hour)
			ok, _ = h.usable(time.Now())
			require.True(t, ok)
			require.Empty(t, h.tellers)
		}
		h := newHealth("sg", time.Second, &cfg)
		h.hear("w", &Ailment{State: telemetry.Tripped, Left: time.Minute, Silent: true})
		until := time.Now().Add(time.Minute)
		time.Sleep(time.Minute)
		h.hear("w", &Ailment{State: telemetry.HalfOpen})
		h.shutOff(time.Now().Add(time.Second), "something else")
		h.hear("w", nil)
		require.Equal(t, until, h.silentUntil())
	})
}

// A provider that says when to come back is heeded with every answer that says so, for
// as long as it says.
func TestComeBackLater(t *testing.T) {
	t.Parallel()
	for class, waits := range map[models.Class][]time.Duration{models.Throttled: {time.Minute, 5 * time.Hour}, models.Unavailable: {time.Minute, mostDown}} {
		for _, wait := range waits {
			cfg := DefaultConfig().withDefaults()
			h, other := newHealth("sg", time.Second, &cfg), newHealth("sg", time.Second, &cfg)
			done, ok := h.begin("a.test", 1)
			require.True(t, ok)
			at := time.Now().Add(wait)
			done([]models.Part{{Class: class, Recipients: models.SetOf(1), RetryAt: at}}, time.Millisecond)
			other.hear("w", h.ailment())
			for _, h := range []*health{h, other} {
				ok, until := h.usable(time.Now())
				require.False(t, ok)
				require.WithinDuration(t, at, until, time.Second)
				require.Equal(t, telemetry.Slowed, h.report().State)
			}
		}
	}
}
