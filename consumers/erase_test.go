package consumers

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
)

// erase erases the address of a recipient of a batch, as a command does.
func (r *rig) erase(b *models.Batch, address string) {
	r.t.Helper()
	r.order(models.Command{Kind: models.EraseAddress, Subject: "@" + models.DomainOf(address)})
	_, err := r.store.Erase(r.t.Context(), b.ID, address)
	require.NoError(r.t, err)
}

// TestErasedMailIsNotSent: mail to an erased address that was not sent fails as erased, and the
// rest of its chunk is sent. No retry or release sends it later.
func TestErasedMailIsNotSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newScripted("sg", always(models.Accepted))
		r := newRig(t, fast(), nil, p)
		r.order(models.Command{Kind: models.ProviderOffline, Provider: "sg"}) // the agenda may begin with the batch
		b := r.batch(4, false, nil)
		r.erase(b, "U2@x.test")
		r.erase(b, "u3@x.test")
		r.order(models.Command{Kind: models.ProviderOnline, Provider: "sg"})
		r.announce(b)
		v := r.done(b)
		for n, want := range map[int]models.State{1: models.Success, 2: models.Failed, 3: models.Failed, 4: models.Success} {
			require.Equal(t, want, v.Status(n).State, n)
		}
		require.Equal(t, models.Erased, v.Status(2).Reason)
		calls := p.count()
		r.order(models.Command{Kind: models.RetryBatch, Batch: b.ID})
		r.order(models.Command{Kind: models.ReleaseBatch, Batch: b.ID, Log: b.ID.Log(3)})
		r.announce(b)
		require.Eventually(
			t,
			func() bool { return r.idle() && open(r.view(b)) == 0 },
			patience,
			5*time.Millisecond,
		)
		require.Equal(t, models.Erased, r.view(b).Status(3).Reason)
		require.Equal(t, calls, p.count())
	})
}

// TestReleaseSkipsErasedMail: mail that had ended before its address was erased keeps state and timeline. Later
// commands do not change it.
func TestReleaseSkipsErasedMail(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newScripted("sg", always(models.RejectedHereClass))
		r := newRig(t, fast(), nil, p)
		b := r.batch(2, true, nil)
		before := *r.done(b).Status(1)
		require.Equal(t, models.Failed, before.State)
		r.erase(b, "u1@x.test")
		r.order(models.Command{Kind: models.RetryBatch, Batch: b.ID})
		r.announce(b)
		require.Eventually(t, func() bool { return r.view(b).Status(2).Attempts == 2 }, patience, 5*time.Millisecond)
		v := r.done(b)
		require.Equal(t, before.Reason, v.Status(1).Reason)
		require.Equal(t, before.Attempts, v.Status(1).Attempts)
	})
}

// TestErasedWhileInMemory: a worker does not send recipients that it has kept in memory since
// their batch was accepted, if an address was erased since.
func TestErasedWhileInMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newScripted("sg", always(models.Accepted))
		r := newRig(t, fast(), nil, p)
		var to []models.Recipient
		b := r.batch(2, false, func(b *models.Batch, rs []models.Recipient) {
			b.ExpiresAt, to = time.Now().Add(time.Hour), rs
		})
		kept := append([]models.Recipient{}, to...)
		r.engine.Accepted(b, models.Chunk{ID: b.ID, Recipients: kept})
		r.erase(b, "u1@x.test")
		require.NoError(
			t,
			r.broker.Publish(context.Background(), models.Message{Kind: models.BatchMessage, ID: b.ID, Lane: b.Lane}),
		)
		v := r.done(b)
		require.Equal(t, models.Erased, v.Status(1).Reason)
		require.Equal(t, models.Success, v.Status(2).State)
		require.Zero(t, p.copiesOf(b.ID.Log(1)))
	})
}

// TestErasedWhileWaiting: a worker does not send to an address that was erased while its mail waited for a slot.
func TestErasedWhileWaiting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		p := newScripted("sg", func(_ context.Context, c *models.Call) []models.Part {
			<-answer
			return part(models.Accepted, c)
		})
		r := emptyRig(t, nil, "sg")
		cfg, spec := fast(), specOf(p, "sg", time.Minute)
		cfg.Sole, spec.Concurrency = true, 1
		var err error
		r.engine, err = New(r.store, r.broker, []provider.Spec{spec}, cfg)
		require.NoError(t, err)
		calling, waiting := r.accepted(1), r.accepted(2)
		handled := make(chan models.Disposition, 2)
		handle := func(b *models.Batch, kind models.MessageKind) models.Disposition {
			m := models.Message{Kind: kind, ID: b.ID, Lane: b.Lane}
			if kind == models.BatchMessage {
				return r.engine.dispatch.HandleBatch(t.Context(), m)
			}
			m.Provider = "sg"
			return r.engine.dispatch.HandleProvider(t.Context(), m)
		}
		go func() { handled <- handle(calling, models.BatchMessage) }()
		synctest.Wait()
		require.Equal(t, models.Done(), handle(waiting, models.BatchMessage), "it joins the queue")
		go func() { handled <- handle(waiting, models.ProviderMessage) }()
		synctest.Wait()
		r.erase(waiting, "u1@x.test")
		close(answer)
		for range 2 {
			require.Equal(t, models.Done(), <-handled)
		}
		require.Equal(t, models.Erased, r.view(waiting).Status(1).Reason)
		require.Equal(t, []int{0, 1}, []int{p.copiesOf(waiting.ID.Log(1)), p.copiesOf(waiting.ID.Log(2))})
	})
}
