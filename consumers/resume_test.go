package consumers

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
)

// forgetful is a broker that loses the first message to a provider.
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

// caughtUp waits until the worker has announced all that earlier ones may have missed.
func (r *rig) caughtUp() {
	r.t.Helper()
	r.engine.dispatch.Outage.MarkUnannounced(time.Now())
	require.Eventually(
		r.t,
		func() bool { _, open := r.engine.dispatch.Outage.UnannouncedSince(); return !open && r.idle() },
		patience,
		time.Millisecond,
	)
}

// The agenda looks while a call runs, and what follows on its answer is lost: it is
// found by the next look, not when the window of the call is over.
func TestLostAfterACallThatRan(t *testing.T) {
	t.Parallel()
	r := emptyRig(t, nil, "sg", "mg")
	looked := make(chan struct{})
	var b *models.Batch
	sg := newScripted("sg", func(_ context.Context, c *models.Call) []models.Part {
		<-looked
		return part(models.Unavailable, c)
	})
	mg := newScripted("mg", always(models.Accepted))
	r.broker = &forgetful{Broker: r.broker}
	r.withEvents(fast(), sg, mg) // its windows are an hour
	b = r.batch(1, true, func(b *models.Batch, _ []models.Recipient) { b.Providers = []string{"sg", "mg"} })
	require.Eventually(t, func() bool { return sg.count() == 1 }, patience, time.Millisecond)
	require.Eventually(t, func() bool {
		due := r.dueWithin(b, time.Now(), time.Now().Add(3*time.Hour))
		return len(due) > 0 && due[0].Round > 0
	}, patience, time.Millisecond, "the agenda has looked")
	close(looked)
	require.Eventually(t, func() bool { return mg.count() == 1 }, patience, time.Millisecond)
	require.True(t, r.broker.(*forgetful).lost.Load())
}

// An append whose outcome is unknown turns out to stand, and was not called, after
// the agenda has looked: who finds that out tells others.
func TestDisownedGoesOn(t *testing.T) {
	t.Parallel()
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
				<-said // the store is slow to say
			}
			return next()
		}}
	}, "sg")
	cfg := fast()
	cfg.AgendaPoll, cfg.Recheck = time.Hour, time.Hour // nobody else finds it
	r.withEvents(cfg, sg)
	b := r.batch(2, true, nil)
	require.Eventually(
		t,
		func() bool { return appends.Load() == 2 && reads.Load() >= 2 && r.idle() },
		patience,
		time.Millisecond,
		"the message has come back, and ended because a call seems to run",
	)
	close(said)
	require.Eventually(t, func() bool { return sg.copiesOf(b.ID.Log(2)) == 1 }, patience, time.Millisecond)
}

// What a handler passed on with a delay, and then did itself, it passes on again
// when it is refused again.
func TestPassedOnAgain(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	mg := newScripted("mg", func(_ context.Context, c *models.Call) []models.Part {
		if c.Recipients[0].Log.Recipient() != 1 {
			time.Sleep(1010 * time.Millisecond) // Until the first is due again
			return part(models.Accepted, c)
		}
		n := calls.Add(1)
		if n > 1 {
			time.Sleep(400 * time.Millisecond) // its message comes meanwhile, and ends
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
}

// A first attempt that nobody was called for is none that retries are counted from,
// also where none are wanted.
func TestUncalledWithoutRetries(t *testing.T) {
	t.Parallel()
	cfg := fast()
	cfg.StartBy, cfg.MaxRetries = time.Second, 0
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
}

// What an order lets go on goes on at once also where the agenda would look at it
// late, as while long queues wait.
func TestLiftedFarAhead(t *testing.T) {
	t.Parallel()
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
		Deadline:   now.Add(100 * time.Hour),
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
	require.Eventually(t, r.idle, patience, time.Millisecond)
	require.Zero(t, sg.count())
	r.order(models.Command{Kind: models.ProviderOnline, Provider: "sg"})
	require.EqualValues(t, 1, r.done(&b).Summary().Success)
}
