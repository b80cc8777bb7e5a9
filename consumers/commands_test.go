package consumers

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

// order appends a command to the log of the rig's engine.
func (r *rig) order(c models.Command) {
	r.t.Helper()
	c.By = "test"
	done, err := r.engine.follower.Append(context.Background(), &c, nil)
	require.NoError(r.t, err)
	require.True(r.t, done)
}

// announce publishes a message about a batch.
func (r *rig) announce(b *models.Batch) {
	r.t.Helper()
	require.NoError(
		r.t,
		r.broker.Publish(context.Background(), models.Message{Kind: models.BatchMessage, ID: b.ID, Lane: b.Lane}),
	)
}

// looked waits until the agenda has reconciled a batch again.
func (r *rig) looked(b *models.Batch) {
	r.t.Helper()
	from := time.Now()
	require.Eventually(r.t, func() bool {
		due := r.dueWithin(b, from.Add(r.engine.cfg.Recheck), from.Add(time.Hour))
		return slices.ContainsFunc(due, func(e models.AgendaEntry) bool { return e.ID == b.ID })
	}, patience, 5*time.Millisecond)
}

// TestStopAndResume: a stopped batch is not sent before it is resumed.
func TestStopAndResume(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newScripted("sg", always(models.Accepted))
		r := newRig(t, fast(), nil, p)
		b := r.batch(10, false, nil)
		r.order(models.Command{Kind: models.StopBatch, Batch: b.ID})
		r.announce(b)
		r.looked(b)
		require.Zero(t, p.count())
		require.EqualValues(t, 10, r.view(b).Summary().Untried)
		r.order(models.Command{Kind: models.ResumeBatch, Batch: b.ID})
		r.announce(b)
		require.EqualValues(t, 10, r.done(b).Summary().Success)
		require.Equal(t, 1, p.count())
	})
}

// TestAnnouncedResume: a message that arrives before this worker has read the resume command is
// enough to send the batch, without the agenda.
func TestAnnouncedResume(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := fast()
		cfg.Recheck = time.Hour
		p := newScripted("sg", always(models.Accepted))
		r := newRig(t, cfg, nil, p)
		b := r.batch(10, false, nil)
		r.order(models.Command{Kind: models.StopBatch, Batch: b.ID})
		elsewhere := control.NewFollower(r.store)
		done, err := elsewhere.Append(
			context.Background(),
			&models.Command{Kind: models.ResumeBatch, Batch: b.ID, By: "test"},
			nil,
		)
		require.NoError(t, err)
		require.True(t, done)
		r.announce(b)
		require.EqualValues(t, 10, r.done(b).Summary().Success)
	})
}

// TestStopBetweenAppendAndCall: a stop that arrives while the attempt is being appended prevents
// the call.
func TestStopBetweenAppendAndCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newScripted("sg", always(models.Accepted))
		slow := &slowAppends{}
		r := newRig(t, fast(), func(s models.Store) models.Store { slow.Store = s; return slow }, p)
		b := r.batch(3, false, nil)
		slow.during = func() { // the append takes longer than the rules may be old
			r.order(models.Command{Kind: models.StopBatch, Batch: b.ID})
		}
		r.announce(b)
		require.Eventually(t, func() bool {
			return len(r.view(b).Tries(1)) == 1 && r.view(b).Status(1).Last.Verdict == models.VerdictRefused
		}, patience, 5*time.Millisecond)
		require.Zero(t, p.count())
		r.order(models.Command{Kind: models.ResumeBatch, Batch: b.ID})
		r.announce(b)
		require.EqualValues(t, 3, r.done(b).Summary().Success)
		require.Equal(t, 1, p.copiesOf(b.ID.Log(1)))
	})
}

// slowAppends is a store that calls during before the first append of an attempt.
type slowAppends struct {
	models.Store
	during func()
}

func (s *slowAppends) Append(ctx context.Context, chunk models.ID, e models.Entry) error {
	if f := s.during; f != nil && e.Kind == models.Attempt {
		s.during = nil
		f()
	}
	return s.Store.Append(ctx, chunk, e)
}

// TestCancel: a cancellation ends what was not accepted yet.
func TestCancel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		// The provider accepts the first half and throttles the rest.
		p := newScripted("sg", func(_ context.Context, c *models.Call) []models.Part {
			var taken, not models.Set
			for r := range c.Numbers().All() {
				if r <= 5 {
					taken.Add(r)
				} else {
					not.Add(r)
				}
			}
			return []models.Part{
				{Class: models.Accepted, Recipients: taken},
				{Class: models.Throttled, Recipients: not, RetryAt: time.Now().Add(time.Hour)},
			}
		})
		r := newRig(t, fast(), nil, p)
		b := r.batch(10, true, nil)
		require.Eventually(t, func() bool { return r.view(b).Summary().Success == 5 }, patience, 5*time.Millisecond)
		r.order(models.Command{Kind: models.CancelBatch, Batch: b.ID, Why: "wrong list"})
		r.announce(b)
		sum := r.done(b).Summary()
		require.EqualValues(t, 5, sum.Success)
		require.EqualValues(t, 5, sum.Cancelled)
		require.Equal(t, "wrong list", r.view(b).Status(6).Detail)
		require.Equal(t, 1, p.count())
	})
}

// TestRetryFailed: a retry sends failed mail again if that is safe, and only once.
func TestRetryFailed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		answer := models.RejectedHereClass
		p := newScripted("sg", func(_ context.Context, c *models.Call) []models.Part {
			var bad, soft models.Set
			for r := range c.Numbers().All() {
				if r == 1 {
					bad.Add(r)
				} else {
					soft.Add(r)
				}
			}
			return []models.Part{{Class: models.RejectedRecipient, Recipients: bad}, {Class: answer, Recipients: soft}}
		})
		r := newRig(t, fast(), nil, p)
		b := r.batch(3, true, nil)
		require.EqualValues(t, 3, r.done(b).Summary().Failed)

		answer = models.Accepted
		r.order(models.Command{Kind: models.ReleaseBatch, Batch: b.ID}) // nothing is held, so nothing is sent
		r.order(models.Command{Kind: models.RetryBatch, Batch: b.ID, Why: "fixed"})
		r.announce(b)
		require.Eventually(t, func() bool { return r.view(b).Summary().Success == 2 }, patience, 5*time.Millisecond)
		v := r.done(b)
		require.Equal(t, models.MailboxInvalid, v.Status(1).Reason, "hard failures are final")
		require.False(t, v.Status(2).MayDouble)
		require.Equal(t, 2, p.count())

		// A command applies once, and not to what fails later.
		r.announce(b)
		r.announce(b)
		require.EqualValues(t, 2, r.done(b).Summary().Success)
		require.Equal(t, 2, p.count())
	})
}

// TestReleasesBecomeOneEntry: releases that are pending together become one entry of the
// ledger. A chunk that a release does not name gets none.
func TestReleasesBecomeOneEntry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := fast()
		cfg.EvidenceWindow, cfg.StartBy = time.Millisecond, 300*time.Millisecond
		r := newRig(t, cfg, nil, newScripted("sg", always(models.Unknown)))
		b := r.batch(4, true, nil)
		require.Equal(t, models.OutcomeUnknown, r.done(b).Status(2).Reason)
		r.order(models.Command{Kind: models.StopBatch, Batch: b.ID})
		for n := 1; n <= 3; n++ {
			r.order(models.Command{Kind: models.ReleaseBatch, Batch: b.ID, Log: b.ID.Log(n)})
		}
		r.order(models.Command{Kind: models.ReleaseBatch, Batch: b.ID, Chunks: []int{1}})
		r.announce(b)
		require.Eventually(t, func() bool { return open(r.view(b)) == 3 }, patience, 5*time.Millisecond)
		r.announce(b)
		require.Never(t, func() bool {
			releases := slices.DeleteFunc(
				r.view(b).Entries,
				func(e models.Entry) bool { return e.Kind != models.Release },
			)
			return len(releases) != 1 || releases[0].Recipients != models.SetOf(1, 2, 3)
		}, 200*time.Millisecond, 20*time.Millisecond)
	})
}

// TestReleaseHeld: a release sends held mail again, although that may double it. A retry does not.
func TestReleaseHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := fast()
		cfg.EvidenceWindow, cfg.StartBy = time.Millisecond, 300*time.Millisecond
		p := newScripted("sg", always(models.Unknown))
		r := newRig(t, cfg, nil, p)
		b := r.batch(4, true, nil)
		v := r.done(b)
		require.Equal(t, models.OutcomeUnknown, v.Status(2).Reason)
		r.order(models.Command{Kind: models.RetryBatch, Batch: b.ID}) // not safe, so nothing is sent
		r.order(models.Command{Kind: models.ReleaseBatch, Batch: b.ID, Log: b.ID.Log(2)})
		p.mu.Lock()
		p.answer = always(models.Accepted)
		p.mu.Unlock()
		r.announce(b)
		require.Eventually(t, func() bool { return r.view(b).Summary().Success == 1 }, patience, 5*time.Millisecond)
		v = r.done(b)
		require.True(t, v.Status(2).MayDouble, "it stays marked")
		require.EqualValues(t, 3, v.Summary().Failed)
		require.Equal(t, 2, p.count())
	})
}

// TestBlocksAndModes: blocks, offline providers and draining providers take no mail.
func TestBlocksAndModes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sg, mg := newScripted("sg", always(models.Accepted)), newScripted("mg", always(models.Accepted))
		r := newRig(t, fast(), nil, sg, mg)
		r.order(models.Command{Kind: models.ProviderOffline, Provider: "sg"})
		r.order(models.Command{Kind: models.AddBlock, Block: &models.Block{ID: "fail", Domain: "bad.test", Fail: true}})
		r.order(models.Command{Kind: models.AddBlock, Block: &models.Block{ID: "wait", Domain: "wait.test"}})
		b := r.batch(30, true, func(_ *models.Batch, rs []models.Recipient) {
			rs[0].Email, rs[1].Email = "a@bad.test", "b@wait.test"
		})
		require.Eventually(t, func() bool { return open(r.view(b)) == 1 }, patience, 5*time.Millisecond)
		v := r.view(b)
		require.Equal(t, models.BlockedByRule, v.Status(1).Reason)
		require.Equal(t, models.Queued, v.Status(2).State)
		require.Zero(t, sg.count())
		require.Zero(t, mg.copiesOf(b.ID.Log(1)))

		r.order(models.Command{Kind: models.RemoveBlock, Block: &models.Block{ID: "wait"}})
		require.EqualValues(t, 29, r.done(b).Summary().Success, "the agenda finds it")
		require.Zero(t, sg.count())

		// If all providers are offline, mail waits. A draining one takes mail that no other may take.
		r.order(models.Command{Kind: models.ProviderOffline, Provider: "mg"})
		b = r.batch(5, true, nil)
		r.looked(b)
		require.EqualValues(t, 5, r.view(b).Summary().Untried)
		r.order(models.Command{Kind: models.ProviderDrain, Provider: "mg"})
		require.EqualValues(t, 5, r.done(b).Summary().Success)
		r.order(models.Command{Kind: models.ProviderOnline, Provider: "sg"})
		before := mg.count()
		for range 4 {
			b = r.batch(5, true, nil)
			require.EqualValues(t, 5, r.done(b).Summary().Success)
		}
		require.Equal(t, before, mg.count())
	})
}

// TestBlockWhileWaitingForSlot: a block applies to mail that was planned before it and waits for a
// slot.
func TestBlockWhileWaitingForSlot(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]models.Command{
		"by domain":   {Kind: models.AddBlock, Block: &models.Block{ID: "1", Domain: "x.test"}},
		"by user":     {Kind: models.AddBlock, Block: &models.Block{ID: "1", Fail: true}},
		"by provider": {Kind: models.AddBlock, Block: &models.Block{ID: "1", Provider: "sg"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r, p, b, open := waiting(t)
				if name == "by user" {
					c.Block.User = r.user
				}
				r.order(c)
				open()
				if c.Block.Fail {
					require.Equal(t, models.BlockedByRule, r.done(b).Status(1).Reason)
				} else {
					r.looked(b)
					r.looked(b) // a second time: it has been planned again
					require.EqualValues(t, 3, r.view(b).Summary().Untried)
				}
				require.Zero(t, p.copiesOf(b.ID.Log(1)))
				r.order(models.Command{Kind: models.RemoveBlock, Block: c.Block})
				r.done(b)
			})
		})
	}
}

// TestAfterRestore: mail from before a restore waits until an operator lifts the hold. Later mail
// is sent.
func TestAfterRestore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newScripted("sg", always(models.Accepted))
		r := newRig(t, fast(), nil, p)
		old := r.batch(5, false, nil)
		r.order(models.Command{Kind: models.HoldOld, Before: old.Created().Add(time.Millisecond)})
		r.announce(old)
		r.looked(old)
		require.Eventually(
			t,
			func() bool { return time.Now().After(old.Created().Add(2 * time.Millisecond)) },
			patience,
			time.Millisecond,
		)
		later := r.batch(5, true, nil)
		require.EqualValues(t, 5, r.done(later).Summary().Success)
		require.EqualValues(t, 5, r.view(old).Summary().Untried)
		r.order(models.Command{Kind: models.LiftHolds})
		require.EqualValues(t, 5, r.done(old).Summary().Success)
	})
}

// TestResumedMailIsSentAtOnce: mail that a command held back is sent when the command is lifted,
// and not at its next reconcile.
func TestResumedMailIsSentAtOnce(t *testing.T) {
	t.Parallel()
	block := &models.Block{ID: "1", Domain: "x.test"}
	for name, c := range map[string][2]models.Command{
		"block":    {{Kind: models.AddBlock, Block: block}, {Kind: models.RemoveBlock, Block: block}},
		"provider": {{Kind: models.ProviderOffline, Provider: "sg"}, {Kind: models.ProviderOnline, Provider: "sg"}},
		"drained":  {{Kind: models.ProviderOffline, Provider: "sg"}, {Kind: models.ProviderDrain, Provider: "sg"}},
		"user":     {{Kind: models.PauseUser}, {Kind: models.ResumeUser}},
		"holds":    {{Kind: models.HoldOld, Before: time.Now().Add(time.Hour)}, {Kind: models.LiftHolds}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg := fast()
				cfg.Recheck = time.Hour
				r := newRig(t, cfg, nil, newScripted("sg", always(models.Accepted)))
				c[0].User, c[1].User = r.user, r.user
				r.order(c[0])
				b := r.batch(
					3,
					true,
					func(b *models.Batch, _ []models.Recipient) { b.ExpiresAt = time.Now().Add(100 * time.Hour) },
				)
				require.Eventually(t, func() bool {
					return len(r.dueWithin(b, time.Now().Add(cfg.Recheck/2), time.Now().Add(3*cfg.Recheck))) > 0
				}, patience, 20*time.Millisecond)
				require.EqualValues(t, 3, r.view(b).Summary().Untried)
				r.order(c[1])
				require.EqualValues(t, 3, r.done(b).Summary().Success)
			})
		})
	}
}

// TestAllProvidersBlocked: mail fails if each of its providers has a block that fails it.
func TestAllProvidersBlocked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sg, mg := newScripted("sg", always(models.Accepted)), newScripted("mg", always(models.Accepted))
		r := newRig(t, fast(), nil, sg, mg)
		for _, a := range []string{"sg", "mg"} {
			r.order(
				models.Command{
					Kind:  models.AddBlock,
					Block: &models.Block{ID: a, Provider: a, Domain: "x.test", Fail: true},
				},
			)
		}
		b := r.batch(2, true, nil)
		require.Equal(t, models.BlockedByRule, r.done(b).Status(1).Reason)
		require.Zero(t, sg.count()+mg.count())
	})
}
