package consumers

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

// TestUnknownWithoutOtherProvider: mail with an unknown outcome that may be sent again goes
// through the same provider if there is no other. When the retries are used up, it ends as
// unknown. A retry does not apply to it then, a release does.
func TestUnknownWithoutOtherProvider(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sg := newScripted("sg", always(models.Unknown))
		r := emptyRig(t, nil, "sg")
		cfg := fast()
		cfg.EvidenceWindow, cfg.Retries = 200*time.Millisecond, 1
		r.withEvents(cfg, sg)
		b := r.batch(1, true, func(b *models.Batch, _ []models.Recipient) { b.OnUnknown = models.Resend })
		v := r.done(b)
		require.Equal(t, models.OutcomeUnknown, v.Status(1).Reason)
		require.Contains(t, v.Status(1).Detail, models.RetriesUsedUp.Words())
		require.Equal(t, 2, sg.count())
		require.True(t, v.Status(1).MayDouble)
		require.True(t, control.Released(v, &models.Command{Kind: models.RetryBatch, Batch: b.ID}).Empty(), "not safe")
		require.Equal(t, 1, control.Released(v, &models.Command{Kind: models.ReleaseBatch, Batch: b.ID}).Len())
		require.Equal(
			t,
			1,
			control.Released(v, &models.Command{Kind: models.ReleaseBatch, Batch: b.ID, Provider: "sg"}).Len(),
		)
	})
}

// TestRetryThatIsNoLongerSafe: a retry does not send mail again if an event shows, after the
// command, that a provider has it.
func TestRetryThatIsNoLongerSafe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var up atomic.Bool
		mg := newScripted("mg", func(_ context.Context, c *models.Call) []models.Part {
			if up.Load() {
				return part(models.Accepted, c)
			}
			return part(models.Unavailable, c)
		})
		r := emptyRig(t, nil, "mg")
		cfg := fast()
		cfg.Retries = 0
		r.withEvents(cfg, mg)
		b := r.batch(2, true, nil)
		require.Equal(t, models.RetriesUsedUp, r.done(b).Status(1).EndedBy)
		require.Equal(t, 1, mg.count())
		up.Store(true)
		r.order(models.Command{Kind: models.StopBatch, Batch: b.ID})
		r.order(models.Command{Kind: models.RetryBatch, Batch: b.ID})
		r.announce(b)
		require.Eventually(t, func() bool { return open(r.view(b)) == 2 }, patience, 20*time.Millisecond)
		r.event("mg", b.ID.Log(1), models.Event{ID: "1", Attempt: 1, Kind: models.Deferred, At: time.Now()})
		require.Eventually(
			t,
			func() bool { return r.view(b).Status(1).Last.Verdict == models.VerdictAccepted },
			patience,
			time.Millisecond,
		)
		r.order(models.Command{Kind: models.ResumeBatch, Batch: b.ID})
		r.announce(b)
		require.Eventually(t, func() bool { return mg.copiesOf(b.ID.Log(2)) == 1 }, patience, 20*time.Millisecond)
		require.Zero(t, mg.copiesOf(b.ID.Log(1)))
		require.False(t, r.view(b).Status(1).MayDouble)
	})
}

// TestReleasedMailIsRerouted: released mail that its provider refuses now goes out through another
// one.
func TestReleasedMailIsRerouted(t *testing.T) {
	t.Parallel()
	for _, class := range []models.Class{models.Throttled, models.Unavailable, models.RejectedHereClass} {
		t.Run(string(class), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var calls atomic.Int64
				sg := newScripted("sg", func(_ context.Context, c *models.Call) []models.Part {
					if calls.Add(1) == 1 {
						return part(models.Accepted, c)
					}
					return part(class, c)
				})
				mg := newScripted("mg", always(models.Accepted))
				r := emptyRig(t, nil, "sg", "mg")
				cfg := fast()
				cfg.FinalEvent, cfg.Silence = 300*time.Millisecond, time.Hour
				r.withEvents(cfg, sg, mg)
				b := r.batch(
					4,
					true,
					func(b *models.Batch, _ []models.Recipient) { b.Providers = []string{"sg", "mg"} },
				)
				require.Equal(t, models.NoFinalEvent, r.done(b).Status(1).Reason)
				r.order(models.Command{Kind: models.ReleaseBatch, Batch: b.ID})
				r.announce(b)
				require.Eventually(t, func() bool { return mg.copiesOf(b.ID.Log(4)) == 1 }, patience, 20*time.Millisecond)
				require.True(t, r.view(b).Status(4).MayDouble)
			})
		})
	}
}

// TestCancelAfterRelease: mail that was released and then cancelled ends at once, without a
// look-up, because no wait for evidence ends.
func TestCancelAfterRelease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := fast()
		cfg.StartBy, cfg.EvidenceWindow, cfg.FinalEvent = 200*time.Millisecond, 300*time.Millisecond, 100*time.Hour
		p := &reporting{scripted: newScripted("mg", always(models.Unknown))}
		r := lookUpRig(t, cfg, p)
		b := r.batch(1, true, nil)
		require.Eventually(t, func() bool {
			return r.view(b).Status(1).Reason == models.OutcomeUnknown
		}, patience, 10*time.Millisecond)
		r.order(models.Command{Kind: models.StopBatch, Batch: b.ID})
		r.event(
			"mg",
			b.ID.Log(1),
			models.Event{ID: "1", Attempt: r.view(b).Entries[0].Number, Kind: models.Processed, At: time.Now()},
		)
		require.Eventually(t, func() bool { return r.view(b).Status(1).Accepted != nil }, patience, 20*time.Millisecond)
		r.order(models.Command{Kind: models.ReleaseBatch, Batch: b.ID, Log: b.ID.Log(1)})
		r.announce(b)
		require.Eventually(
			t,
			func() bool { return r.view(b).Status(1).State == models.Queued },
			patience,
			time.Millisecond,
		)
		r.order(models.Command{Kind: models.CancelBatch, Batch: b.ID})
		r.announce(b)
		require.Equal(t, models.Failed, r.done(b).Status(1).State)
	})
}

// TestReleaseWhilePaused: mail that was released while its user is paused is sent when the user is
// resumed, even if all of the batch had ended and is not announced.
func TestReleaseWhilePaused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := fast()
		cfg.StartBy, cfg.EvidenceWindow = 200*time.Millisecond, time.Millisecond
		var up atomic.Bool
		sg := newScripted("sg", func(_ context.Context, c *models.Call) []models.Part {
			if up.Load() {
				return part(models.Accepted, c)
			}
			return part(models.Unknown, c)
		})
		r := newRig(t, cfg, nil, sg)
		b := r.batch(2, true, nil)
		require.Equal(t, models.OutcomeUnknown, r.done(b).Status(1).Reason)
		require.Eventually(
			t,
			func() bool {
				s := storedUntil(t, r.store, b)
				return r.engine.Pending() == 0 && s != nil && s.Failed == 2
			},
			patience,
			time.Millisecond,
		)
		up.Store(true)
		r.order(models.Command{Kind: models.PauseUser, User: r.user})
		r.order(models.Command{Kind: models.ReleaseBatch, Batch: b.ID})
		require.NoError(
			t,
			r.store.Schedule(
				t.Context(),
				models.AgendaEntry{
					Due:    time.Now().Add(100 * time.Millisecond),
					Kind:   models.LookAtBatch,
					ID:     b.ID,
					User:   b.User,
					Chunks: 1,
					Lane:   b.Lane,
				},
			),
		)
		require.Eventually(t, func() bool {
			due := r.dueWithin(b, time.Now(), time.Now().Add(time.Hour))
			return len(due) > 0 && due[len(due)-1].Round > 1
		}, patience, time.Millisecond, "the agenda has reconciled it, and will again")
		r.order(models.Command{Kind: models.ResumeUser, User: r.user})
		require.Eventually(t, func() bool { return sg.copiesOf(b.ID.Log(2)) == 1 }, patience, 20*time.Millisecond)
	})
}
