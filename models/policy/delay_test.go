package policy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// The delay before a retry through the same provider follows the table of delays. It is
// not shorter than the time that the provider named.
func TestRetryDelays(t *testing.T) {
	t.Parallel()
	cfg := Config{Delays: []time.Duration{time.Second, 5 * time.Second, 15 * time.Second, time.Minute, time.Hour}}
	p := &Policy{cfg: cfg, names: []string{"sg"}}
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	again := func(retry int, class models.Class, named time.Time) time.Duration {
		tries := []models.Try{
			{Attempt: 1, Provider: "sg", Verdict: models.VerdictRefused, Class: class, At: at, RetryAt: named},
		}
		options := p.remaining(&models.Batch{}, tries, retry)
		require.Len(t, options, 1)
		return options[0].NotBefore.Sub(at)
	}
	for _, class := range []models.Class{models.Unavailable, models.Throttled, models.AccountClass} {
		for n, want := range cfg.Delays {
			require.Equal(t, want, again(n+1, class, time.Time{}), class)
		}
		require.Equal(t, cfg.Delays[len(cfg.Delays)-1], again(100, class, time.Time{}))
	}
	require.Equal(t, time.Hour, again(1, models.Throttled, at.Add(time.Hour)))
	require.Equal(
		t,
		200*time.Millisecond,
		again(4, models.Throttled, at.Add(200*time.Millisecond)),
		"a provider that throttles knows when it takes mail again",
	)
	require.Equal(t, time.Hour, again(1, models.Unavailable, at.Add(time.Hour)))
	require.Equal(
		t,
		time.Minute,
		again(4, models.Unavailable, at.Add(200*time.Millisecond)),
		"a provider that is down may still be down then",
	)
	throttled := []models.Try{
		{Attempt: 1, Provider: "sg", Verdict: models.VerdictRefused, Class: models.Throttled, At: at},
	}
	for left, want := range map[time.Duration]time.Duration{
		time.Minute: 7500 * time.Millisecond, time.Second: time.Second, 8 * time.Hour: time.Hour, -time.Hour: time.Hour,
	} {
		options := p.remaining(&models.Batch{ExpiresAt: at.Add(left)}, throttled, 5)
		require.Equal(t, want, options[0].NotBefore.Sub(at), "retries come closer together near the expiry")
	}
	rejected := models.Try{
		Attempt:  1,
		Provider: "sg",
		Verdict:  models.VerdictRefused,
		Class:    models.RejectedHereClass,
		At:       at,
	}
	require.Empty(t, p.remaining(&models.Batch{}, []models.Try{rejected}, 1))
}
