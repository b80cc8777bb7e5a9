package consumers

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// The same provider gets a mail again later each time, by the table of delays, and not
// before the time that it named.
func TestDelays(t *testing.T) {
	t.Parallel()
	cfg := DefaultConfig()
	p := &policy{cfg: &cfg, providers: []string{"sg"}}
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	again := func(retry int, class models.Class, named time.Time) time.Duration {
		tries := []models.Try{{Attempt: 1, Provider: "sg", Verdict: models.VerdictRefused, Class: class, At: at, RetryAt: named}}
		options := p.left(&models.Batch{}, tries, retry)
		require.Len(t, options, 1)
		return options[0].notBefore.Sub(at)
	}
	for _, class := range []models.Class{models.Unavailable, models.Throttled, models.AccountClass} {
		for n, want := range cfg.Delays {
			require.Equal(t, want, again(n+1, class, time.Time{}), class)
		}
		require.Equal(t, cfg.Delays[len(cfg.Delays)-1], again(100, class, time.Time{}))
	}
	require.Equal(t, time.Hour, again(1, models.Throttled, at.Add(time.Hour)))
	require.Equal(t, 200*time.Millisecond, again(4, models.Throttled, at.Add(200*time.Millisecond)), "who throttles knows when to come back")
	require.Equal(t, time.Hour, again(1, models.Unavailable, at.Add(time.Hour)))
	require.Equal(t, time.Minute, again(4, models.Unavailable, at.Add(200*time.Millisecond)), "who is down may still be then")
	require.Empty(t, p.left(&models.Batch{}, []models.Try{{Attempt: 1, Provider: "sg", Verdict: models.VerdictRefused, Class: models.RejectedHereClass, At: at}}, 1))
}

// What waits for the same time does not come back in one instant.
func TestJitter(t *testing.T) {
	t.Parallel()
	e, err := New(&entries{}, nil, []Provider{{Adapter: newScripted("sg", nil), Provider: models.Provider{Name: "sg", Weight: 1, Concurrency: 1}}}, DefaultConfig())
	require.NoError(t, err)
	now := time.Now()
	const wait = 10 * time.Minute
	seen := map[time.Time]bool{}
	for range 100 {
		var told notices
		st := &step{do: call, who: models.SetOf(1), retry: 3, options: []option{{"sg", now.Add(wait)}}}
		e.passOn(&chunk{id: models.NewBatchID(now)}, st, now, "", &told)
		require.Len(t, told, 1)
		require.Equal(t, models.BatchMessage, told[0].Kind, "the provider is chosen anew then")
		require.False(t, told[0].NotBefore.Before(now.Add(wait)))
		require.False(t, told[0].NotBefore.After(now.Add(wait+30*time.Second)), "a tenth of the wait, half a minute at most")
		seen[told[0].NotBefore] = true
	}
	require.Greater(t, len(seen), 50)
}
