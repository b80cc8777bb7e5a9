package policy

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
	cfg := Config{Delays: []time.Duration{time.Second, 5 * time.Second, 15 * time.Second, time.Minute, time.Hour}}
	p := &Policy{cfg: cfg, providers: []string{"sg"}}
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	again := func(retry int, class models.Class, named time.Time) time.Duration {
		tries := []models.Try{
			{Attempt: 1, Provider: "sg", Verdict: models.VerdictRefused, Class: class, At: at, RetryAt: named},
		}
		options := p.left(&models.Batch{}, tries, retry)
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
		"who throttles knows when to come back",
	)
	require.Equal(t, time.Hour, again(1, models.Unavailable, at.Add(time.Hour)))
	require.Equal(
		t,
		time.Minute,
		again(4, models.Unavailable, at.Add(200*time.Millisecond)),
		"who is down may still be then",
	)
	require.Empty(
		t,
		p.left(
			&models.Batch{},
			[]models.Try{{Attempt: 1, Provider: "sg", Verdict: models.VerdictRefused, Class: models.RejectedHereClass, At: at}},
			1,
		),
	)
}
