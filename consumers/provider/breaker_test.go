package provider

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// given is how many of the mails that come every so often, for so long, are given to
// a provider whose calls all fail.
func given(every, during, call time.Duration, says callSays, alone bool) (n int) {
	b := breaker{first: 5 * time.Second, lookBack: max(20*time.Second, 3*call)}
	begun := time.Unix(1_700_000_000, 0)
	type running struct {
		turn int
		ends time.Time
	}
	var calls []running
	for now := begun; now.Sub(begun) < during; now = now.Add(every) {
		for len(calls) > 0 && !calls[0].ends.After(now) {
			b.end(calls[0].turn, says, calls[0].ends)
			calls = calls[1:]
		}
		if ok, _ := b.allows(now, alone); ok {
			calls = append(calls, running{b.begin(now), now.Add(call)})
			n++
		}
	}
	return n
}

// A provider that hangs gets hardly any mail while that can go elsewhere, however
// rarely mail comes, and not much more where it cannot.
func TestHangingGetsLittle(t *testing.T) {
	t.Parallel()
	const outage = 6 * time.Hour
	for _, every := range []time.Duration{time.Second, 5 * time.Second, 15 * time.Second, 20 * time.Second, 30 * time.Second, time.Minute, 5 * time.Minute} {
		n := given(every, outage, 30*time.Second, failedUnknown, false)
		if every < 30*time.Second {
			n -= int(30 * time.Second / every) // that were on their way when the first failed
		}
		require.LessOrEqual(t, n, 30, "a mail every %s", every)
		require.LessOrEqual(
			t,
			given(every, outage, 30*time.Second, failedUnknown, true),
			int(outage/time.Minute)+int(time.Minute/every),
			"alone, a mail every %s",
			every,
		)
		require.Less(
			t,
			given(every, outage, time.Second, failedWhole, false),
			int(outage/every)/3+int(outage/(15*time.Second)),
			"refused, a mail every %s",
			every,
		)
	}
}

func TestBreaker(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_700_000_000, 0)
	start := func() *breaker { return &breaker{first: 5 * time.Second, lookBack: 20 * time.Second} }
	says := func(b *breaker, list ...callSays) {
		for _, s := range list {
			b.end(b.begin(at), s, at)
		}
	}
	open := func(b *breaker) bool { return b.state(at, false) == breakerOpen }
	t.Run("five refusals in a row", func(t *testing.T) {
		t.Parallel()
		b := start()
		says(
			b,
			failedWhole,
			failedWhole,
			failedWhole,
			failedWhole,
			answered,
			failedWhole,
			failedWhole,
			saysNothing,
			failedWhole,
			failedWhole,
		)
		require.False(t, open(b))
		says(b, failedWhole)
		require.True(t, open(b))
	})
	t.Run("three unknown outcomes in a row", func(t *testing.T) {
		t.Parallel()
		b := start()
		says(b, failedUnknown, failedUnknown, failedWhole, failedUnknown)
		require.False(t, open(b))
		says(b, answered, failedUnknown, failedUnknown, failedUnknown)
		require.True(t, open(b))
	})
	t.Run("most of many", func(t *testing.T) {
		t.Parallel()
		b := start()
		for range 6 {
			says(b, failedWhole, failedWhole, answered)
		}
		require.False(t, open(b), "too few to say")
		says(b, failedWhole, failedWhole)
		require.True(t, open(b))
	})
	t.Run("what began before it changed tells nothing", func(t *testing.T) {
		t.Parallel()
		b := start()
		before := b.begin(at)
		says(b, failedUnknown, failedUnknown, failedUnknown)
		later := at.Add(b.lasts)
		require.False(t, b.end(before, answered, later))
		ok, _ := b.allows(later, false)
		require.True(t, ok)
		probe := b.begin(later)
		ok, again := b.allows(later, false)
		require.False(t, ok, "one at a time")
		require.Equal(t, later.Add(probePause), again)
		require.False(t, b.end(probe, saysNothing, later))
		ok, _ = b.allows(later, false)
		require.True(t, ok, "it was not made")
		require.True(t, b.end(b.begin(later), answered, later))
		require.Equal(t, breakerClosed, b.state(later, false))
	})
	t.Run("longer each time", func(t *testing.T) {
		t.Parallel()
		b, now := start(), at
		for range tripUnknown {
			b.end(b.begin(now), failedUnknown, now)
		}
		var lasts []time.Duration
		for range 12 {
			lasts = append(lasts, b.lasts)
			require.Equal(t, breakerProving, b.state(now.Add(min(b.lasts, time.Minute)), true))
			now = now.Add(b.lasts)
			b.end(b.begin(now), failedUnknown, now)
		}
		require.Equal(t, []time.Duration{5 * time.Second, 10 * time.Second, 20 * time.Second}, lasts[:3])
		require.Equal(t, 30*time.Minute, lasts[11])
		b.end(b.begin(now), failedWhole, now.Add(time.Hour))
		require.Equal(t, 15*time.Second, b.lasts, "a refusal costs no mail")
	})
	t.Run("again soon after", func(t *testing.T) {
		t.Parallel()
		b, now := start(), at
		for _, want := range []time.Duration{5 * time.Second, 10 * time.Second, 15 * time.Second} {
			for range tripRow {
				b.end(b.begin(now), failedWhole, now)
			}
			require.Equal(t, want, b.lasts)
			now = now.Add(b.lasts)
			b.end(b.begin(now), answered, now)
		}
		now = now.Add(b.lookBack)
		for range tripRow {
			b.end(b.begin(now), failedWhole, now)
		}
		require.Equal(t, 5*time.Second, b.lasts, "not for longer when all was well for a while")
	})
}
