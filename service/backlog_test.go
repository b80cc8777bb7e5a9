package service

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service/backlog"
)

// waits stores a batch with one recipient, its ledger and its sums.
func (f *waitRig) waits(lane models.Lane, age time.Duration, then func()) models.ID {
	f.Helper()
	f.batch.ID, f.batch.Lane = models.NewBatchID(f.now.Add(-age)), lane
	f.put()
	if then != nil {
		then()
	}
	entries, facts, err := f.store.Record(f.Context(), f.batch.ID)
	require.NoError(f, err)
	sum := models.Resolve(1, entries, facts).SummaryOf(f.batch.ID, nil)
	require.NoError(f, f.store.PutSummaries(f.Context(),
		models.ChunkSummary{User: "aaaa", Chunk: f.batch.ID, Summary: sum}))
	for _, l := range models.Levels {
		err := f.store.RollUp(f.Context(), models.SpanOf("aaaa", l, f.batch.Created()))
		require.NoError(f, err)
	}
	return f.batch.ID
}

// TestBacklog: operators see all mail that waits here, for what and since when. Mail that a provider accepted waits
// for a report, which is something else.
func TestBacklog(t *testing.T) {
	t.Parallel()
	f := newWaitRig(t)
	down := suspended(f.now.Add(time.Minute))
	f.report(down, down)
	sent := func() { f.attempt(f.now.Add(-time.Minute), models.Accepted) }
	f.waits(models.Urgent, 5*time.Hour, sent)
	oldest := f.waits(models.Urgent, 3*time.Minute, nil)
	f.waits(models.Urgent, 2*time.Minute, nil)
	bulk := f.waits(models.Bulk, 4*time.Minute, nil)
	f.waits(models.Bulk, 90*time.Minute, func() {
		_, _, err := f.Commands.Batch(f.Context(), f.who, models.StopBatch, f.batch.ID.String(), "typo", Repeat{})
		require.NoError(t, err)
	})
	f.batch.DeliverAt = f.now.Add(time.Hour)
	f.waits(models.Bulk, time.Hour, nil)

	_, err := f.Mail.Backlog(t.Context(), f.who)
	require.Error(t, err, "others' mail is for operators only")
	b, err := f.Mail.Backlog(t.Context(), operator)
	require.NoError(t, err)
	require.Equal(t, []int64{5, 1}, []int64{b.Queued, b.Sent})
	require.False(t, b.Partial)
	type line struct {
		lane  models.Lane
		code  models.WaitCode
		n     int64
		since time.Duration
	}
	var got []line
	for _, l := range b.Lines {
		one := line{lane: l.Lane, code: l.Code, n: l.Recipients}
		if !l.Since.IsZero() {
			one.since = f.now.Sub(l.Since)
		}
		got = append(got, one)
	}
	require.Equal(t, []line{
		{models.Urgent, models.WaitProviderSuspend, 2, 3 * time.Minute},
		{models.Bulk, models.WaitBatchStopped, 1, 90 * time.Minute},
		{models.Bulk, models.WaitProviderSuspend, 1, 4 * time.Minute},
		{models.Bulk, models.WaitSchedule, 1, 0},
	}, got)
	for lane, id := range map[models.Lane]models.ID{models.Urgent: oldest, models.Bulk: bulk} {
		l, ok := b.Oldest(lane)
		require.True(t, ok)
		require.Equal(t, id, l.Oldest, "a command or a schedule is no trouble")
		require.Equal(t, f.now.Add(time.Minute), l.Until.UTC())
	}
}

// TestBacklogIsBounded: a read looks at the oldest and the newest batches only, and says so.
func TestBacklogIsBounded(t *testing.T) {
	t.Parallel()
	f := newWaitRig(t)
	f.report(telemetry.ProviderState{}, telemetry.ProviderState{})
	const n = 520
	var oldest models.ID
	for i := range n {
		f.batch.ID = models.NewBatchID(f.now.Add(-time.Hour).Truncate(time.Second).Add(time.Duration(i) * time.Millisecond))
		sum := models.Summary{Version: 1, Accepted: 1, Queued: 1, Untried: 1}
		f.put()
		require.NoError(t, f.store.PutSummaries(t.Context(),
			models.ChunkSummary{User: "aaaa", Chunk: f.batch.ID, Summary: sum}))
		if i == 0 {
			oldest = f.batch.ID
		}
	}
	for _, l := range models.Levels {
		err := f.store.RollUp(t.Context(), models.SpanOf("aaaa", l, oldest.Time()))
		require.NoError(t, err)
	}
	var looked atomic.Int64
	b, err := backlog.Read(t.Context(), f.store, []string{"aaaa"}, f.now.AddDate(0, 0, -2), f.now,
		func(ctx context.Context, id models.ID) (backlog.Batch, bool, error) {
			looked.Add(1)
			return backlog.Batch{ID: id, Lane: models.Urgent, Recipients: 1, Since: id.Time()}, true, nil
		})
	require.NoError(t, err)
	require.True(t, b.Partial)
	require.EqualValues(t, n, b.Queued, "the total is exact")
	require.Less(t, looked.Load(), int64(n))
	require.Equal(t, oldest, b.Lines[0].Oldest)
}
