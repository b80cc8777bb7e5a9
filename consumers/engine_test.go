package consumers

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// TestRefusedMailIsRerouted: mail that one provider cannot take goes out through the other, in
// one call.
func TestRefusedMailIsRerouted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sg, mg := newScripted("sg", always(models.Unavailable)), newScripted("mg", always(models.Accepted))
		r := newRig(t, fast(), nil, sg, mg)
		b := r.batch(100, true, func(b *models.Batch, _ []models.Recipient) { b.Providers = []string{"sg", "mg"} })
		v := r.done(b)
		for i := 1; i <= 100; i++ {
			require.Equal(t, models.Success, v.Status(i).State)
			require.Equal(t, 1, mg.copiesOf(b.ID.Log(i)))
		}
		require.Equal(t, 1, mg.count(), "in one call: %+v", v.Entries)
		require.Contains(t, v.Entries[1].Because, "sg")
		require.Equal(t, 1, v.Entries[1].Retry)
	})
}

// TestHardRefusalIsNotRerouted: mail that no provider would take is not offered to another.
func TestHardRefusalIsNotRerouted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sg, mg := newScripted("sg", always(models.RejectedRequest)), newScripted("mg", always(models.Accepted))
		r := newRig(t, fast(), nil, sg, mg)
		v := r.done(
			r.batch(5, true, func(b *models.Batch, _ []models.Recipient) { b.Providers = []string{"sg", "mg"} }),
		)
		require.Equal(t, models.InvalidRequest, v.Status(1).Reason)
		require.Zero(t, mg.count())
	})
}

// TestBadRecipientIsFound: if a provider refuses a call because of one recipient, that recipient is
// found by halving, and the others are sent.
func TestBadRecipientIsFound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sg := newScripted("sg", func(_ context.Context, c *models.Call) []models.Part {
			for i := range c.Recipients {
				if strings.HasPrefix(c.Recipients[i].Email, "bad") {
					if len(c.Recipients) == 1 {
						return part(models.RejectedRecipient, c)
					}
					return part(models.Split, c)
				}
			}
			return part(models.Accepted, c)
		})
		mg := newScripted("mg", always(models.Accepted))
		r := newRig(t, fast(), nil, sg, mg)
		bad := map[int]bool{17: true, 500: true, 1000: true}
		b := r.batch(1000, true, func(b *models.Batch, rs []models.Recipient) {
			b.Providers = []string{"sg", "mg"}
			for n := range bad {
				rs[n-1].Email = fmt.Sprintf("bad%d@x.test", n)
			}
		})
		v := r.done(b)
		for i := 1; i <= 1000; i++ {
			s := v.Status(i)
			if bad[i] {
				require.Equal(t, models.MailboxInvalid, s.Reason)
				require.Zero(t, sg.copiesOf(b.ID.Log(i)))
				continue
			}
			require.Equal(t, models.Success, s.State, i)
			require.Equal(t, 1, sg.copiesOf(b.ID.Log(i)))
			require.Zero(t, s.Retries, "the search for another recipient uses up no retry")
		}
		require.LessOrEqual(t, sg.count(), 1+2*10*len(bad))
		require.Zero(t, mg.count(), "the others went out through the same provider")
	})
}

// TestNoAddressTwiceInACall: recipients with the same address go out in calls of their own.
func TestNoAddressTwiceInACall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sg := newScripted("sg", always(models.Accepted))
		r := newRig(t, fast(), nil, sg)
		b := r.batch(6, true, func(_ *models.Batch, rs []models.Recipient) {
			rs[1].Email, rs[2].Email, rs[5].Email = "SAME@x.test", "same@x.test", "Same@x.test"
		})
		r.done(b)
		require.Equal(t, 3, sg.count())
		for _, c := range sg.calls {
			seen := map[string]bool{}
			for i := range c.Recipients {
				a := strings.ToLower(c.Recipients[i].Email)
				require.False(t, seen[a])
				seen[a] = true
			}
		}
		for i := 1; i <= 6; i++ {
			require.Equal(t, 1, sg.copiesOf(b.ID.Log(i)))
		}
	})
}

// TestUnknownOutcome: mail with an unknown outcome waits for evidence, and then is held or
// sent again as its batch says.
func TestUnknownOutcome(t *testing.T) {
	t.Parallel()
	setup := func(t *testing.T, policy models.UnknownPolicy) (*rig, *scripted, *scripted, *models.Batch) {
		sg, mg := newScripted("sg", always(models.Unknown)), newScripted("mg", always(models.Accepted))
		cfg := fast()
		cfg.EvidenceWindow = 300 * time.Millisecond
		cfg.StartBy = time.Hour // the window begins with the answer, not with the latest end of the call
		r := newRig(t, cfg, nil, sg, mg)
		return r, sg, mg, r.batch(4, true, func(b *models.Batch, _ []models.Recipient) {
			b.Providers, b.OnUnknown = []string{"sg", "mg"}, policy
		})
	}
	t.Run("hold", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			r, sg, mg, b := setup(t, models.Hold)
			v := r.done(b)
			require.Equal(t, models.OutcomeUnknown, v.Status(1).Reason)
			require.Equal(t, 1, sg.count())
			require.Zero(t, mg.count(), "it is never sent again on its own")
		})
	})
	t.Run("resend", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			r, sg, mg, b := setup(t, models.Resend)
			v := r.done(b)
			require.Equal(t, models.Success, v.Status(1).State)
			require.True(t, v.Status(1).MayDouble)
			require.Equal(t, 1, sg.count())
			require.Equal(t, 1, mg.count())
			answered, second := v.Tries(1)[0].At, v.Entries[1]
			require.True(t, second.At.After(answered.Add(300*time.Millisecond)), "not before the window expired")
		})
	})
	t.Run("evidence", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			r, _, mg, b := setup(t, models.Hold)
			require.Eventually(t, func() bool { return len(r.view(b).Entries) == 1 }, patience, 20*time.Millisecond)
			for i := 1; i <= 4; i++ {
				r.event(
					"sg",
					b.ID.Log(i),
					models.Event{ID: fmt.Sprint("e", i), Attempt: 1, Kind: models.Delivered, At: time.Now()},
				)
			}
			require.Equal(t, models.Success, r.done(b).Status(4).State)
			require.Zero(t, mg.count())
		})
	})
}

// TestNothingAnnounced: the agenda finds a batch that was never announced.
func TestNothingAnnounced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sg := newScripted("sg", always(models.Accepted))
		r := newRig(t, fast(), nil, sg)
		require.Equal(t, models.Success, r.done(r.batch(3, false, nil)).Status(1).State, "the agenda finds it")
	})
}

// TestIncompleteBatchIsRemoved: a batch whose client stopped in the middle is removed, and
// cannot be completed any more.
func TestIncompleteBatchIsRemoved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := fast()
		var out lockedBuffer
		cfg.IntakeGrace, cfg.Logger = 300*time.Millisecond, slog.New(slog.NewTextHandler(&out, nil))
		r := newRig(t, cfg, nil, newScripted("sg", always(models.Accepted)))
		ctx := context.Background()
		now := time.Now()
		b := models.Batch{
			ID:         models.NewBatchID(now),
			User:       r.user,
			Recipients: 2000,
			Chunks:     2,
			Lane:       models.Bulk,
			OnUnknown:  models.Hold,
		}
		require.NoError(
			t,
			r.store.Schedule(
				ctx,
				models.AgendaEntry{
					Due:    now.Add(50 * time.Millisecond),
					Kind:   models.LookAtBatch,
					ID:     b.ID,
					User:   r.user,
					Chunks: 2,
				},
			),
		)
		require.NoError(
			t,
			r.store.PutChunk(ctx, models.Chunk{ID: b.ID.Chunk(1), Recipients: []models.Recipient{{Email: "a@b.c"}}}),
		)
		// A complete batch of the same age is not removed.
		whole := r.batch(1, true, nil)
		require.Equal(t, models.Success, r.done(whole).Status(1).State)
		require.Eventually(
			t,
			func() bool { return strings.Contains(out.String(), "incomplete batch removed") },
			patience,
			5*time.Millisecond,
		)
		err := r.store.PutBatch(ctx, b, models.Chunk{ID: b.ID, Recipients: []models.Recipient{{Email: "a@b.c"}}})
		require.ErrorIs(t, err, models.ErrNotFound, "it can never exist")
	})
}

// TestHangingProviderDelaysNoOther: a provider that hangs does not delay the mail of others.
func TestHangingProviderDelaysNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := newScripted("slow", func(ctx context.Context, c *models.Call) []models.Part {
			<-ctx.Done()
			return part(models.Unknown, c)
		})
		quick := newScripted("quick", always(models.Accepted))
		r := newRig(t, fast(), nil, slow, quick)
		for range 30 {
			r.batch(1, true, func(b *models.Batch, _ []models.Recipient) { b.Providers = []string{"slow"} })
		}
		require.Eventually(t, func() bool { return slow.count() >= 3 }, patience, 20*time.Millisecond)
		var bs []*models.Batch
		for range 50 {
			bs = append(
				bs,
				r.batch(1, true, func(b *models.Batch, _ []models.Recipient) { b.Providers = []string{"quick"} }),
			)
		}
		before := slow.count()
		for _, b := range bs {
			r.done(b)
		}
		require.LessOrEqual(t, slow.count(), before+8, "all of them were sent while slow hung")
	})
}
