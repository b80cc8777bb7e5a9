package control

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// emptyLog is a command log without commands. It counts its reads.
type emptyLog struct {
	models.CommandStore
	reads int
}

func (l *emptyLog) Commands(context.Context, int, int) ([]models.Command, error) {
	l.reads++
	return nil, nil
}

// TestRulesAgeWhileMachineSleeps: rules age by the clock that runs ahead. A machine that
// wakes reads the command log before it obeys it, although its monotonic clock stood still.
func TestRulesAgeWhileMachineSleeps(t *testing.T) {
	t.Parallel()
	log := &emptyLog{}
	f := NewFollower(log)
	clock := now()
	f.now = func() instant { return clock }
	fresh := func() {
		t.Helper()
		require.NoError(t, f.EnsureFresh(t.Context(), MaxRuleAge))
	}
	fresh()
	fresh()
	require.Equal(t, 1, log.reads, "the rules are fresh")

	clock.wall = clock.wall.Add(time.Hour) // the machine slept
	fresh()
	require.Equal(t, 2, log.reads)
	fresh()
	require.Equal(t, 2, log.reads, "one read is enough")

	clock.monotonic, clock.wall = clock.monotonic.Add(MaxRuleAge), clock.wall.Add(-time.Hour) // the clock was set
	fresh()
	require.Equal(t, 3, log.reads)
}
