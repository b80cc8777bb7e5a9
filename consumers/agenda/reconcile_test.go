package agenda

import (
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/models/settings"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/dispatch"
	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store/memory"
)

// TestAlignFromFastClock: an aligned time is at most one recheck away, even if a clock that
// is ahead set the time of the batch.
func TestAlignFromFastClock(t *testing.T) {
	t.Parallel()
	a := &Agenda{cfg: Config{Times: settings.Times{Recheck: time.Minute}}}
	created := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for at, want := range map[time.Duration]time.Duration{
		time.Second:                   time.Minute,
		time.Minute:                   time.Minute,
		61 * time.Second:              2 * time.Minute,
		-time.Second:                  0,
		-10 * time.Minute:             -10 * time.Minute,
		-10*time.Minute - time.Second: -10 * time.Minute,
	} {
		require.Equal(t, want, a.align(created, created.Add(at)).Sub(created), "%s", at)
	}
}

// TestRecheckRounds: while messages do not wait long, an announced entry is reconciled in
// every round, because its message may be lost. While they wait in long queues, it is
// reconciled ever more rarely.
func TestRecheckRounds(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	cfg.Recheck = time.Minute
	f := newFixture(t, memory.Open(t), inproctest.New(t, "sg"), cfg)
	created := time.Now().UTC().Add(-time.Hour).Truncate(time.Millisecond)
	minutes := func(n int, more time.Duration) time.Time { return created.Add(time.Duration(n)*time.Minute + more) }
	next := func(round int, due, now time.Time) time.Time {
		entry := models.AgendaEntry{
			Due:   due,
			ID:    models.NewBatchID(created),
			Kind:  models.LookAtBatch,
			Round: round,
			Lane:  models.Bulk,
		}
		require.NoError(t, f.Requeue(t.Context(), entry, dispatch.Result{Announced: true}))
		return f.recheckAt(&entry, 1, now).Round(time.Millisecond)
	}
	late := minutes(1, 5*time.Millisecond)
	require.Equal(t, minutes(2, 0), next(0, late, minutes(1, time.Second)), "the first entry is due a moment late")
	require.Equal(t, minutes(6, 0), next(4, minutes(5, 0), minutes(5, 2*time.Second)))
	require.Equal(t, minutes(6, 0), next(4, minutes(5, 0), minutes(5, 59*time.Second)))
	require.Equal(t, minutes(21, 0), next(4, minutes(5, 0), minutes(20, 10*time.Second)), "it was reconciled late")

	now := time.Now()
	require.True(t, f.longQueues(models.Bulk, now), "no queue was seen yet")
	for _, kind := range []models.MessageKind{models.BatchMessage, models.ProviderMessage, models.LogMessage} {
		q := models.Queue{Kind: kind, Lane: models.Bulk}
		if kind != models.BatchMessage {
			q.Provider = "sg"
		}
		f.Ages.own[q.Name()] = now.Add(-5 * time.Second)
	}
	require.False(t, f.longQueues(models.Bulk, now))
	require.False(t, f.longQueues("", now), "an entry without a lane is bulk")
	require.True(t, f.longQueues(models.Urgent, now))
	name := (&models.Queue{Kind: models.BatchMessage, Lane: models.Bulk}).Name()
	f.Ages.own[name] = now.Add(-2 * time.Minute)
	require.True(t, f.longQueues(models.Bulk, now))
}
