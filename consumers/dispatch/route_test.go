package dispatch

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/policy"
)

// TestRequeueJitter: steps that wait for the same time are not all requeued for one moment.
func TestRequeueJitter(t *testing.T) {
	t.Parallel()
	f := newFixture(t, models.Accepted, "sg")
	now := time.Now()
	const wait = 10 * time.Minute
	seen := map[time.Time]bool{}
	for range 100 {
		var out messages
		st := &policy.Step{
			Do:         policy.Call,
			Recipients: models.SetOf(1),
			Retry:      3,
			Options:    []policy.Option{{Provider: "sg", NotBefore: now.Add(wait)}},
		}
		f.router.requeue(&Chunk{ID: models.NewBatchID(now)}, st, now, "", &out)
		require.Len(t, out, 1)
		require.Equal(t, models.BatchMessage, out[0].Kind, "the provider is chosen again then")
		require.False(t, out[0].NotBefore.Before(now.Add(wait)))
		require.False(t, out[0].NotBefore.After(now.Add(wait+30*time.Second)), "a tenth of the wait, half a minute at most")
		seen[out[0].NotBefore] = true
	}
	require.Greater(t, len(seen), 50)
}

// TestOneMessageForWaitingSteps: the steps of a chunk that wait get one message, which is due with the first of them.
// Two messages would be answered with two each.
func TestOneMessageForWaitingSteps(t *testing.T) {
	t.Parallel()
	f := newFixture(t, models.Accepted, "sg")
	now := time.Now()
	c := &Chunk{ID: models.NewBatchID(now)}
	var out messages
	for n, wait := range []time.Duration{time.Hour, time.Minute, 2 * time.Hour} {
		f.router.requeue(c, &policy.Step{
			Do:         policy.Call,
			Recipients: models.SetOf(n + 1),
			Retry:      n,
			Options:    []policy.Option{{Provider: "sg", NotBefore: now.Add(wait)}},
		}, now, "", &out)
	}
	require.Len(t, out, 1)
	require.WithinRange(t, out[0].NotBefore, now.Add(time.Minute), now.Add(2*time.Minute))
}

// TestUntriedProvidersComeFirst: a provider that refused the mail and may be tried again comes
// after those that were not tried.
func TestUntriedProvidersComeFirst(t *testing.T) {
	t.Parallel()
	f := newFixture(t, models.Accepted, "a", "b", "c")
	now := time.Now()
	before := now.Add(-time.Minute)
	first := func(options ...policy.Option) string {
		providers := f.router.order(&policy.Step{Options: options}, now)
		require.Len(t, providers, 1)
		return providers[0].Name
	}
	for range 6 {
		require.Equal(t, "c", first(
			policy.Option{Provider: "c"},
			policy.Option{Provider: "a", NotBefore: before},
			policy.Option{Provider: "b", NotBefore: before},
		))
	}
	require.Equal(t, "b", first(
		policy.Option{Provider: "a", NotBefore: now.Add(time.Minute)},
		policy.Option{Provider: "b", NotBefore: before},
		policy.Option{Provider: "c", NotBefore: before},
	))
}

// TestNoSlotBeforeShareIsKnown: a worker that does not know its share of a provider's slots
// begins no call.
func TestNoSlotBeforeShareIsKnown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		providers, err := provider.NewSet(
			[]provider.Spec{{Adapter: &adapter{}, Provider: models.Provider{Name: "sg", Concurrency: 4}}},
			&provider.Config{Logger: slog.New(slog.DiscardHandler)},
			noShare{},
		)
		require.NoError(t, err)
		f := newFixture(t, models.Accepted, "sg")
		wait, err := f.caller.acquire(t.Context(), &Chunk{Lane: models.Bulk}, &job{
			Provider: providers.Get("sg"),
			Who:      models.SetOf(1),
			Step:     &policy.Step{},
		})
		require.NoError(t, err)
		require.Positive(t, wait)
		require.Zero(t, providers.Running()["sg"])
	})
}

// noShare is a worker that does not know its share yet.
type noShare struct{ alone }

func (noShare) Share() (provider.Share, bool) { return provider.Share{}, false }

// TestEarliestWayIsTaken: of several providers that take a mail later, the one that takes it first decides when it is
// looked at again, and one that takes it now gets it now.
func TestEarliestWayIsTaken(t *testing.T) {
	t.Parallel()
	f := newFixture(t, models.Accepted, "a", "b")
	now := time.Now()
	requeued := func(b time.Duration) models.Message {
		var out messages
		f.router.requeue(&Chunk{ID: models.NewBatchID(now)}, &policy.Step{Do: policy.Call, Recipients: models.SetOf(1),
			Retry: 1, Options: []policy.Option{
				{Provider: "a", NotBefore: now.Add(time.Hour)},
				{Provider: "b", NotBefore: now.Add(b)},
			},
		}, now, "", &out)
		require.Len(t, out, 1)
		return out[0]
	}
	later := requeued(time.Minute)
	require.Equal(t, models.BatchMessage, later.Kind)
	require.False(t, later.NotBefore.After(now.Add(time.Minute+time.Minute/10)))
	at := requeued(0)
	require.Equal(t, models.ProviderMessage, at.Kind)
	require.Equal(t, "b", at.Provider)
}

// TestRatesDoNotHoldMailUntilItExpires: mail that waits for the rates of a provider is decided again before it expires
// if another provider may take it, and earlier the less time is left.
func TestRatesDoNotHoldMailUntilItExpires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, models.Accepted, "a", "b")
		one := &policy.Step{Options: []policy.Option{{Provider: "a"}}}
		two := &policy.Step{Options: []policy.Option{
			{Provider: "a"},
			{Provider: "b", NotBefore: time.Now().Add(time.Minute)},
		}}
		after := func(st *policy.Step, left, wait time.Duration) time.Duration {
			b := models.Batch{ID: models.NewBatchID(time.Now()), ExpiresAt: time.Now().Add(left)}
			return f.caller.recheckAfter(&Chunk{ID: b.ID, Batch: &b}, &job{Step: st}, wait)
		}
		require.InDelta(t, 10*time.Minute, after(two, 80*time.Minute, time.Hour), float64(time.Minute))
		require.Equal(t, time.Minute, after(two, 24*time.Hour, time.Minute))
		require.Equal(t, time.Second, after(two, 2*time.Second, time.Hour))
		require.Equal(t, time.Hour, after(two, -time.Second, time.Hour), "it was released")
		require.Equal(t, time.Hour, after(one, time.Minute, time.Hour), "there is no other way")
	})
}
