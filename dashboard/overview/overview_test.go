package overview

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestTimesOfNotices: the times of a notice are shown as all times are, also those of the year before.
func TestTimesOfNotices(t *testing.T) {
	t.Parallel()
	at := time.Date(2027, 1, 1, 0, 10, 0, 0, time.UTC)
	require.Equal(t, "Calls fail since 2026-12-31T23:59:30Z, until 2027-01-01T00:20:00Z.",
		withTimes("Calls fail since 23:59:30 UTC on 31 December, until 00:20:00 UTC on 1 January.", at))
	require.Equal(t, "At 99:59:30 UTC on 31 December", withTimes("At 99:59:30 UTC on 31 December", at), "no time")
}
