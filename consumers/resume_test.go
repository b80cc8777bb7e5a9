package consumers

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
)

// forgetful is a broker that loses the first message to a provider's queue.
type forgetful struct {
	models.Broker
	lost atomic.Bool
}

func (f *forgetful) Publish(ctx context.Context, ms ...models.Message) error {
	var kept []models.Message
	for _, m := range ms {
		if m.Kind == models.ProviderMessage && !f.lost.Swap(true) {
			continue
		}
		kept = append(kept, m)
	}
	if len(kept) == 0 {
		return nil
	}
	return f.Broker.Publish(ctx, kept...)
}

// caughtUp waits until the worker has republished the backlog of earlier ones.
func (r *rig) caughtUp() {
	r.t.Helper()
	r.engine.outbox.Outage.MarkUnannounced(time.Now())
	require.Eventually(
		r.t,
		func() bool {
			_, open := r.engine.outbox.Outage.UnannouncedSince()
			return !open && r.idle()
		},
		patience,
		time.Millisecond,
	)
}

// TestMessageLostAfterCall: if the message that follows a call is lost, the next reconcile finds
// the mail, even if an earlier one ran during the call.
func TestMessageLostAfterCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := emptyRig(t, nil, "sg", "mg")
		looked := make(chan struct{})
		var b *models.Batch
		sg := newScripted("sg", func(_ context.Context, c *models.Call) []models.Part {
			<-looked
			return part(models.Unavailable, c)
		})
		mg := newScripted("mg", always(models.Accepted))
		r.broker = &forgetful{Broker: r.broker}
		r.withEvents(fast(), sg, mg) // evidence windows are an hour
		b = r.batch(1, true, func(b *models.Batch, _ []models.Recipient) { b.Providers = []string{"sg", "mg"} })
		require.Eventually(t, func() bool { return sg.count() == 1 }, patience, 20*time.Millisecond)
		require.Eventually(t, func() bool {
			due := r.dueWithin(b, time.Now(), time.Now().Add(3*time.Hour))
			return len(due) > 0 && due[0].Round > 0
		}, patience, time.Millisecond, "the agenda has reconciled it")
		close(looked)
		require.Eventually(t, func() bool { return mg.count() == 1 }, patience, 20*time.Millisecond)
		require.True(t, r.broker.(*forgetful).lost.Load())
	})
}

// TestUnknownAppendIsAnnounced: if an append with an unknown outcome turns out to be stored, after
// its message was handled, the worker that finds out announces the chunk.
func TestUnknownAppendIsAnnounced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sg := newScripted("sg", always(models.Accepted))
		var appends, reads atomic.Int64
		said := make(chan struct{})
		r := emptyRig(t, func(s models.Store) models.Store {
			return &gate{&countedReads{s, &reads}, func(_ context.Context, next func() error) error {
				switch appends.Add(1) {
				case 1:
					if err := next(); err != nil {
						return err
					}
					return fmt.Errorf("%w: as the test wants", models.ErrOutcomeUnknown)
				case 2:
					<-said // the store answers late
				}
				return next()
			}}
		}, "sg")
		cfg := fast()
		cfg.AgendaPoll, cfg.Recheck = time.Hour, time.Hour // the agenda does not find it
		r.withEvents(cfg, sg)
		b := r.batch(2, true, nil)
		require.Eventually(
			t,
			func() bool { return appends.Load() == 2 && reads.Load() >= 2 && r.idle() },
			patience,
			time.Millisecond,
			"the message came again, and was acked because a call seems to run",
		)
		close(said)
		require.Eventually(t, func() bool { return sg.copiesOf(b.ID.Log(2)) == 1 }, patience, 20*time.Millisecond)
	})
}

// TestRequeueAfterOwnCall: a handler that requeued a step with a delay, and then made its call
// itself, requeues it again if it is refused again.
func TestRequeueAfterOwnCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		mg := newScripted("mg", func(_ context.Context, c *models.Call) []models.Part {
			if c.Recipients[0].Log.Recipient() != 1 {
				time.Sleep(1010 * time.Millisecond) // until the first is due again
				return part(models.Accepted, c)
			}
			n := calls.Add(1)
			if n > 1 {
				time.Sleep(400 * time.Millisecond) // its message arrives meanwhile, and is acked
			}
			if n < 3 {
				return part(models.Unavailable, c)
			}
			return part(models.Accepted, c)
		})
		cfg := fast()
		cfg.AgendaPoll, cfg.Recheck, cfg.Delays = time.Hour, time.Hour, []time.Duration{time.Second}
		r := emptyRig(t, nil, "mg")
		r.engine = r.start(
			cfg,
			[]provider.Spec{{Adapter: mg, Provider: models.Provider{Name: "mg", Weight: 1, Concurrency: 2, ChunkLimit: 1,
				Timeout: 2 * time.Second, Events: models.EventsNone}}},
		)
		b := r.batch(2, false, nil)
		require.NoError(
			t,
			r.broker.Publish(t.Context(), models.Message{Kind: models.ProviderMessage, Provider: "mg", ID: b.ID, Lane: b.Lane}),
		)
		require.EqualValues(t, 2, r.done(b).Summary().Success)
	})
}

// TestUncalledAttemptIsNoRetry: an attempt without a call does not count as a retry, even if
// retries are off.
func TestUncalledAttemptIsNoRetry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := fast()
		cfg.StartBy, cfg.Retries = time.Second, 0
		sg := newScripted("sg", always(models.Accepted))
		var once sync.Once
		r := newRig(t, cfg, func(s models.Store) models.Store {
			return &gate{s, func(_ context.Context, next func() error) error {
				err := next()
				once.Do(func() { time.Sleep(1200 * time.Millisecond) })
				return err
			}}
		}, sg)
		b := r.batch(2, true, nil)
		require.EqualValues(t, 2, r.done(b).Summary().Success)
		require.Equal(t, 1, sg.count())
		require.Equal(t, models.StartByPassed, r.view(b).Tries(1)[0].Reason)
	})
}

// TestResumeOfRareRecheck: mail that a command resumes is sent at once, even if its next reconcile
// is due late because long queues wait.
func TestResumeOfRareRecheck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := fast()
		cfg.Recheck = time.Hour
		sg := newScripted("sg", always(models.Accepted))
		r := newRig(t, cfg, nil, sg)
		r.caughtUp()
		r.order(models.Command{Kind: models.ProviderOffline, Provider: "sg"})
		const maxRecheckFactor = 10 // the longest pause between reconciles while long queues wait, in rechecks
		now := time.Now()
		b := models.Batch{
			ID:         models.NewBatchID(now),
			User:       r.user,
			Content:    models.Content{From: models.Address{Email: "a@b.c"}, Subject: "s", Text: "t"},
			Lane:       models.Bulk,
			OnUnknown:  models.Hold,
			Recipients: 1,
			Chunks:     1,
			ExpiresAt:  now.Add(100 * time.Hour),
		}
		require.NoError(
			t,
			r.store.Schedule(
				t.Context(),
				models.AgendaEntry{
					Due:    now.Add(maxRecheckFactor * cfg.Recheck),
					Kind:   models.LookAtBatch,
					ID:     b.ID,
					User:   b.User,
					Chunks: 1,
					Round:  maxRecheckFactor,
					Lane:   models.Bulk,
				},
			),
		)
		require.NoError(
			t,
			r.store.PutBatch(t.Context(), b, models.Chunk{ID: b.ID, Recipients: []models.Recipient{{Email: "u@x.test"}}}),
		)
		r.announce(&b)
		require.Eventually(t, r.idle, patience, 20*time.Millisecond)
		require.Zero(t, sg.count())
		r.order(models.Command{Kind: models.ProviderOnline, Provider: "sg"})
		require.EqualValues(t, 1, r.done(&b).Summary().Success)
	})
}
