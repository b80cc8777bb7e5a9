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

// TestMovedMailLeavesAtItsNewTime: mail that is moved later is not sent at its former time, although the agenda and
// messages remind of it. Mail that is moved earlier is sent then, and not again at its former time.
func TestMovedMailLeavesAtItsNewTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
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
	})
}

// TestOwnTimesAreKept: recipients with times of their own get their mail at these and expire by these, also while the
// batch is stopped; those of the batch count for the others. A cancellation ends all that are left.
func TestOwnTimesAreKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sg := newScripted("sg", always(models.Accepted))
		r := newRig(t, fast(), nil, sg)
		now := time.Now()
		in := func(d time.Duration) models.Schedule {
			return models.Schedule{DeliverAt: now.Add(d), ExpiresAt: now.Add(time.Hour)}
		}
		soon, later, tomorrow := in(700*time.Millisecond), in(1500*time.Millisecond), in(24*time.Hour)
		soon.ExpiresAt = now.Add(1200 * time.Millisecond)
		batch := func(own ...models.Schedule) *models.Batch {
			return r.batch(1, true, func(b *models.Batch, rs []models.Recipient) {
				b.Sizes = []int{1}
				for _, s := range own {
					b.Own = append(b.Own, models.OwnTimes{Schedule: s, From: b.Chunks})
					require.NoError(t, r.store.PutChunk(t.Context(), models.Chunk{ID: b.ID.Chunk(b.Chunks), Recipients: rs}))
					b.Recipients, b.Chunks, b.Sizes = b.Recipients+1, b.Chunks+1, append(b.Sizes, 1)
				}
			})
		}
		status := func(b *models.Batch, chunk int) (*models.Status, []models.Entry) {
			entries, facts, err := r.store.Record(t.Context(), b.ID.Chunk(chunk))
			require.NoError(t, err)
			return models.Resolve(1, entries, facts).Status(1), entries
		}
		ends := func(b *models.Batch, chunk int) (*models.Status, []models.Entry) {
			require.Eventually(t, func() bool {
				s, _ := status(b, chunk)
				return !s.State.Open()
			}, patience, 5*time.Millisecond)
			return status(b, chunk)
		}
		b, stopped := batch(soon, later, tomorrow), batch(soon, later)
		r.order(models.Command{Kind: models.StopBatch, Batch: stopped.ID})
		for chunk, s := range []models.Schedule{{}, soon, later} {
			got, entries := ends(b, chunk)
			require.Equal(t, models.Success, got.State)
			require.False(t, entries[0].At.Before(s.DeliverAt.Truncate(time.Millisecond)))
		}
		s, _ := ends(stopped, 1)
		require.Equal(t, models.Expired, s.Reason)
		s, _ = status(stopped, 2)
		require.Equal(t, models.Queued, s.State)
		s, _ = status(b, 3)
		require.Equal(t, models.Queued, s.State)
		r.order(models.Command{Kind: models.CancelBatch, Batch: b.ID})
		require.NoError(t, r.broker.Publish(context.Background(),
			models.Message{Kind: models.BatchMessage, ID: b.ID.Chunk(3), Lane: b.Lane}))
		s, _ = ends(b, 3)
		require.Equal(t, models.Cancelled, s.State)
	})
}
