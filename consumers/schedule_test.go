package consumers

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// TestScheduledMailLeavesInTime: mail that was announced when it was accepted is not handed over before its time, and
// is without another announcement.
func TestScheduledMailLeavesInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sg := newScripted("sg", always(models.Accepted))
		r := newRig(t, fast(), nil, sg)
		b := r.batch(2, true, func(b *models.Batch, _ []models.Recipient) {
			b.DeliverAt = time.Now().Add(700 * time.Millisecond)
		})
		v := r.done(b)
		require.Equal(t, models.Success, v.Status(1).State)
		require.Equal(t, 1, sg.count())
		require.False(t, v.Entries[0].At.Before(b.DeliverAt.Truncate(time.Millisecond)))
	})
}

// TestCancelledBeforeItsTime: a batch that is cancelled before its time ends at once and is not sent at its time. A
// stopped one is not sent either, until it is resumed.
func TestCancelledBeforeItsTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sg := newScripted("sg", always(models.Accepted))
		r := newRig(t, fast(), nil, sg)
		soon := time.Now().Add(time.Second)
		scheduled := func(b *models.Batch, _ []models.Recipient) { b.DeliverAt = soon }
		stopped := r.batch(1, true, scheduled)
		r.order(models.Command{Kind: models.StopBatch, Batch: stopped.ID})
		cancelled := r.batch(
			1,
			true,
			func(b *models.Batch, _ []models.Recipient) { b.DeliverAt = time.Now().Add(24 * time.Hour) },
		)
		r.order(models.Command{Kind: models.CancelBatch, Batch: cancelled.ID})
		require.NoError(t, r.broker.Publish(context.Background(),
			models.Message{Kind: models.BatchMessage, ID: cancelled.ID, Lane: cancelled.Lane}))
		require.Equal(t, models.Cancelled, r.done(cancelled).Status(1).State)

		sent := r.batch(1, true, scheduled)
		r.done(sent)
		require.Equal(t, models.Queued, r.view(stopped).Status(1).State)
		r.order(models.Command{Kind: models.ResumeBatch, Batch: stopped.ID})
		require.Equal(t, models.Success, r.done(stopped).Status(1).State)
		require.Equal(t, 2, sg.count())
	})
}

// TestMovedMailLeavesAtItsNewTime: mail that is moved later is not handed over at its former time, although the agenda
// and messages remind of it; mail that is moved earlier is handed over then, and not again at its former time.
func TestMovedMailLeavesAtItsNewTime(t *testing.T) {
	t.Parallel()
	sg := newScripted("sg", always(models.Accepted))
	r := newRig(t, fast(), nil, sg)
	now := time.Now()
	at := func(d time.Duration) func(*models.Batch, []models.Recipient) {
		return func(b *models.Batch, _ []models.Recipient) { b.DeliverAt = now.Add(d) }
	}
	later, earlier := r.batch(1, true, at(500*time.Millisecond)), r.batch(1, true, at(24*time.Hour))
	move := func(b *models.Batch, to time.Time) {
		r.order(models.Command{
			Kind:     models.RescheduleBatch,
			Batch:    b.ID,
			Schedule: &models.Schedule{DeliverAt: to, ExpiresAt: b.ExpiresAt},
		})
		r.announce(b)
	}
	moved := now.Add(1500 * time.Millisecond)
	move(later, moved)
	move(earlier, now)
	require.Equal(t, models.Success, r.done(earlier).Status(1).State)
	r.announce(later)
	v := r.done(later)
	require.Equal(t, models.Success, v.Status(1).State)
	require.False(t, v.Entries[0].At.Before(moved), "%s", v.Entries[0].At)
	require.Equal(t, 2, sg.count())
}
