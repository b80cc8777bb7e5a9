package guard_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/guard"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/store/memory"
)

// fixture is a guard that allows 5 percent, with a store and its commands.
type fixture struct {
	*testing.T
	store    *memory.Store
	follower *control.Follower
	guard    *guard.Guard
	user     string
	batch    models.ID
}

func newFixture(t *testing.T, allowed float64) *fixture {
	t.Helper()
	s := memory.Open(t)
	f := &fixture{T: t, store: s, follower: control.NewFollower(s), user: models.NewUserID()}
	f.batch = models.NewBatchID(time.Now())
	cfg := guard.Config{Bounces: allowed, Keep: time.Hour, Logger: slog.New(slog.DiscardHandler)}
	f.guard = guard.New(cfg, s, f.follower)
	return f
}

// counted stores the summary of a chunk of 1,000 recipients and shows it to the guard. Some of them wait for events.
func (f *fixture) counted(chunk int, success, bounced, waiting int64) {
	f.Helper()
	s := models.Summary{Version: success + bounced + 1, Accepted: 1000, Success: success, Failed: bounced + 1,
		Reasons: map[models.Reason]int64{models.MailboxInvalid: bounced, models.RateLimited: 1}}
	s.Queued = s.Accepted - s.Success - s.Failed
	s.Untried = s.Queued - waiting
	sum := models.ChunkSummary{User: f.user, Chunk: f.batch.Chunk(chunk), Summary: s}
	require.NoError(f, f.store.PutSummaries(f.Context(), sum))
	f.guard.Counted(f.Context(), []models.ChunkSummary{sum})
}

// stop returns the command that stopped the batch, or nil.
func (f *fixture) stop() *models.Command {
	f.Helper()
	require.NoError(f, f.follower.Sync(f.Context()))
	stop, _ := f.follower.Rules().Stops(f.batch)
	return stop
}

func TestStopsOnce(t *testing.T) {
	f := newFixture(t, 5)
	f.counted(0, 300, 10, 0)
	require.Nil(t, f.stop(), "3 percent bounced")
	f.counted(1, 30, 20, 0)
	require.NotNil(t, f.stop(), "30 of 362 bounced")
	require.Equal(t, models.BySafedelivr, f.stop().By)
	require.Equal(t, "30 of the 362 recipients that were tried do not exist, which is more than 5 %", f.stop().Why)

	resume := models.Command{Kind: models.ResumeBatch, Batch: f.batch, By: f.user}
	_, err := f.follower.Append(t.Context(), &resume, nil)
	require.NoError(t, err)
	f.counted(2, 30, 100, 0)
	require.Nil(t, f.stop(), "it was resumed, and stopped again")
}

func TestDoesNotStop(t *testing.T) {
	for name, c := range map[string]struct {
		allowed                   float64
		success, bounced, waiting int64
	}{
		"few were tried":      {5, 10, 80, 0},
		"few have bounced":    {5, 900, 40, 0},
		"most wait":           {5, 10, 40, 800},
		"nothing can be held": {5, 500, 99, 400},
		"any share is fine":   {0, 100, 100, 0},
		"at the limit":        {50, 99, 100, 0}, // one more failed otherwise
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, c.allowed)
			f.counted(0, c.success, c.bounced, c.waiting)
			require.Nil(t, f.stop())
		})
	}
}

func TestCancelledIsNotStopped(t *testing.T) {
	f := newFixture(t, 5)
	cancelled := models.Command{Kind: models.CancelBatch, Batch: f.batch, By: f.user}
	_, err := f.follower.Append(context.Background(), &cancelled, nil)
	require.NoError(t, err)
	f.counted(0, 100, 100, 0)
	require.Nil(t, f.stop())
}
