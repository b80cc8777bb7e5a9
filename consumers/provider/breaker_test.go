package provider

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models/telemetry"
)

// testMachine returns a machine whose first pause is 5 s, at the time it starts.
func testMachine(call time.Duration) (*machine, time.Time) {
	now := time.Unix(1_700_000_000, 0)
	m := newMachine(5*time.Second, max(20*time.Second, 3*call), now)
	return &m, now
}

// results makes calls end with results.
func (m *machine) results(t *testing.T, now time.Time, list ...callSays) {
	t.Helper()
	for _, says := range list {
		round, ok := m.begin(1, time.Minute, now)
		require.True(t, ok)
		m.failures.count(says, now, "it failed", now)
		m.end(round, says, "it failed", now)
	}
}

// callsDuring returns how many calls a provider gets whose calls all fail, if mail comes at
// an interval during an outage.
func callsDuring(outage, interval, call time.Duration, says callSays, sole bool) (n int) {
	m, begun := testMachine(call)
	type running struct {
		round int
		ends  time.Time
	}
	var calls []running
	for now := begun; now.Sub(begun) < outage; now = now.Add(interval) {
		for len(calls) > 0 && !calls[0].ends.After(now) {
			m.end(calls[0].round, says, "no answer", calls[0].ends)
			calls = calls[1:]
		}
		if ok, _ := m.usable(now, sole); ok {
			round, _ := m.begin(1, time.Minute, now)
			calls = append(calls, running{round, now.Add(call)})
			n++
		}
	}
	return n
}

// A provider that hangs gets hardly any mail while other providers take it, however rarely
// mail comes, and not much more if none does.
func TestHangingProviderGetsFewCalls(t *testing.T) {
	t.Parallel()
	const outage = 6 * time.Hour
	intervals := []time.Duration{
		time.Second, 5 * time.Second, 15 * time.Second, 20 * time.Second, 30 * time.Second, time.Minute, 5 * time.Minute,
	}
	for _, interval := range intervals {
		n := callsDuring(outage, interval, 30*time.Second, failedUnknown, false)
		if interval < 30*time.Second {
			n -= int(30 * time.Second / interval) // running when the first failed
		}
		require.LessOrEqual(t, n, 30, "a mail every %s", interval)
		n = callsDuring(outage, interval, 30*time.Second, failedUnknown, true)
		require.LessOrEqual(t, n, int(outage/time.Minute)+int(time.Minute/interval), "sole, a mail every %s", interval)
		n = callsDuring(outage, interval, time.Second, failedWhole, false)
		require.Less(t, n, int(outage/interval)/3+int(outage/(15*time.Second)), "refused, a mail every %s", interval)
	}
}

func TestBreakerOpens(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before []callSays // not suspended yet
		then   []callSays // suspended now
	}{
		"five refusals in a row": {
			[]callSays{
				failedWhole, failedWhole, failedWhole, failedWhole, answered,
				failedWhole, failedWhole, saysNothing, failedWhole, failedWhole,
			},
			[]callSays{failedWhole},
		},
		"three unknown outcomes in a row": {
			[]callSays{failedUnknown, failedUnknown, failedWhole, failedUnknown, answered, failedUnknown, failedUnknown},
			[]callSays{failedUnknown},
		},
		"most of twenty": {
			[]callSays{
				failedWhole, failedWhole, answered, failedWhole, failedWhole, answered, failedWhole, failedWhole, answered,
				failedWhole, failedWhole, answered, failedWhole, failedWhole, answered, failedWhole, failedWhole, answered,
			},
			[]callSays{failedWhole, failedWhole},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, now := testMachine(time.Second)
			m.results(t, now, c.before...)
			require.NotEqual(t, telemetry.Suspended, m.health(now).State)
			m.results(t, now, c.then...)
			require.Equal(t, telemetry.Suspended, m.health(now).State)
			require.Equal(t, telemetry.CallsFailed, m.health(now).Source)
		})
	}
}

// The result of a call says nothing about the provider if the state has changed since the
// call began.
func TestResultOfEarlierRoundIsIgnored(t *testing.T) {
	t.Parallel()
	m, now := testMachine(time.Second)
	before, ok := m.begin(1, time.Minute, now)
	require.True(t, ok)
	m.results(t, now, failedUnknown, failedUnknown, failedUnknown)
	later := m.health(now).Until
	require.False(t, m.end(before, answered, "", later))
	require.Equal(t, telemetry.Probing, m.health(later).State)

	probe, ok := m.begin(1, time.Minute, later)
	require.True(t, ok)
	ok, again := m.usable(later, false)
	require.False(t, ok, "one at a time")
	require.Equal(t, later.Add(probePause), again)
	require.False(t, m.end(probe, saysNothing, "", later))
	ok, _ = m.usable(later, false)
	require.True(t, ok, "the probe was not sent")
	m.results(t, later, answered)
	require.Equal(t, telemetry.Healthy, m.health(later).State)
}

func TestPauseGrows(t *testing.T) {
	t.Parallel()
	t.Run("with each failed probe", func(t *testing.T) {
		t.Parallel()
		m, now := testMachine(time.Second)
		m.results(t, now, failedUnknown, failedUnknown, failedUnknown)
		var pauses []time.Duration
		for range 12 {
			pause := m.health(now).Until.Sub(now)
			pauses = append(pauses, pause)
			ok, _ := m.usable(now.Add(min(pause, time.Minute)), true)
			require.True(t, ok, "sooner if no other provider takes the mail")
			now = now.Add(pause)
			m.results(t, now, failedUnknown)
		}
		require.Equal(t, []time.Duration{5 * time.Second, 10 * time.Second, 20 * time.Second}, pauses[:3])
		require.Equal(t, 30*time.Minute, pauses[11])
		now = now.Add(time.Hour)
		m.results(t, now, failedWhole)
		require.Equal(t, now.Add(15*time.Second).UTC(), m.health(now).Until, "a refusal costs no mail")
	})
	t.Run("soon after it recovered", func(t *testing.T) {
		t.Parallel()
		m, now := testMachine(time.Second)
		fail := func() time.Duration {
			m.results(t, now, failedWhole, failedWhole, failedWhole, failedWhole, failedWhole)
			return m.health(now).Until.Sub(now)
		}
		for _, want := range []time.Duration{5 * time.Second, 10 * time.Second, 15 * time.Second} {
			pause := fail()
			require.Equal(t, want, pause)
			now = now.Add(pause)
			m.results(t, now, answered)
		}
		now = now.Add(m.breaker.lookBack)
		require.Equal(t, 5*time.Second, fail(), "not after a while without failures")
	})
}
