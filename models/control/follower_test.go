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
	clock := Now()
	f.now = func() Instant { return clock }
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

// commandLog is a command log in memory.
type commandLog struct {
	models.CommandStore
	commands []models.Command
}

func (l *commandLog) Commands(_ context.Context, after, limit int) (out []models.Command, err error) {
	for _, c := range l.commands {
		if c.Number > after && len(out) < limit {
			out = append(out, c)
		}
	}
	return out, nil
}

func (l *commandLog) Rules(context.Context) (int, []byte, error) { return 0, nil, models.ErrNotFound }

// TestFollowerRefusesNewerCommand: a process does not pass over a command that it does not know.
// Its rules are never fresh again, so that it starts no call.
func TestFollowerRefusesNewerCommand(t *testing.T) {
	t.Parallel()
	log := &commandLog{commands: []models.Command{{Number: 1, Kind: models.PauseUser, User: "u"}}}
	f := NewFollower(log)
	require.NoError(t, f.Sync(t.Context()))
	fresh := f.fresh
	log.commands = append(log.commands, models.Command{Number: 2, Kind: "not.yet.known"})
	require.ErrorIs(t, f.Sync(t.Context()), models.ErrNewer)
	require.Equal(t, 1, f.Rules().UpTo())
	require.Equal(t, fresh, f.fresh)
	log.commands = nil
	require.Error(t, f.Sync(t.Context()), "a log that was cut off")
	log.commands = []models.Command{{Number: 7, Kind: models.PauseUser, User: "v"}}
	require.ErrorIs(t, f.Sync(t.Context()), errGap, "without rules")
	require.Equal(t, fresh, f.fresh)
}
