package events

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestImplausibleTime: if an event cannot have happened at its time, the time of its post
// counts.
func TestImplausibleTime(t *testing.T) {
	t.Parallel()
	attempt := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	posted := attempt.Add(2 * time.Hour)
	for _, at := range []time.Time{
		attempt,
		attempt.Add(-maxSkew),
		attempt.Add(time.Hour),
		posted,
		posted.Add(maxSkew),
	} {
		require.Equal(t, at, plausibleTime(at, attempt, posted))
	}
	for _, at := range []time.Time{
		{},
		time.Unix(0, 0),
		attempt.Add(-maxSkew - 1),
		posted.Add(maxSkew + 1),
		posted.AddDate(3000, 0, 0),
	} {
		require.Equal(t, posted, plausibleTime(at, attempt, posted))
	}
}
