package consumers

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/inproc"
	"github.com/safedelivr/safedelivr/models"
)

// leaving is a broker to which nothing can be published while it is away.
type leaving struct {
	models.Broker
	away      atomic.Bool
	published atomic.Int64
}

func (b *leaving) Publish(ctx context.Context, ms ...models.Message) error {
	if b.away.Load() {
		return fmt.Errorf("%w: down", models.ErrUnavailable)
	}
	b.published.Add(int64(len(ms)))
	return b.Broker.Publish(ctx, ms...)
}

func (b *leaving) Ping(ctx context.Context) error {
	if b.away.Load() {
		return fmt.Errorf("%w: down", models.ErrUnavailable)
	}
	return b.Broker.Ping(ctx)
}

// stored stores a batch of one recipient that is not announced.
func (r *rig) stored(lane models.Lane, due time.Time) *models.Batch {
	r.t.Helper()
	now := time.Now()
	b := models.Batch{
		ID:         models.NewBatchID(now),
		User:       r.user,
		Content:    models.Content{From: models.Address{Email: "a@b.c"}, Subject: "s", Text: "t"},
		Lane:       lane,
		OnUnknown:  models.Hold,
		Recipients: 1,
		Chunks:     1,
		ExpiresAt:  now.Add(100 * time.Hour),
	}
	require.NoError(
		r.t,
		r.store.Schedule(
			r.t.Context(),
			models.AgendaEntry{Due: due, Kind: models.LookAtBatch, ID: b.ID, User: b.User, Chunks: 1, Lane: lane},
		),
	)
	require.NoError(
		r.t,
		r.store.PutBatch(r.t.Context(), b, models.Chunk{ID: b.ID, Recipients: []models.Recipient{{Email: "u@x.test"}}}),
	)
	return &b
}

// TestBacklogIsRepublished: mail that could not be announced is sent when the broker is back, hours
// before its next reconcile.
func TestBacklogIsRepublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newScripted("sg", always(models.Accepted))
		r := emptyRig(t, nil, "sg")
		b := &leaving{Broker: r.broker}
		r.broker = b
		cfg := fast()
		cfg.Recheck = time.Hour
		r.engine = r.worker(cfg, p)
		require.Eventually(
			t,
			func() bool { _, ok := r.engine.outbox.Outage.UnannouncedSince(); return !ok },
			patience,
			10*time.Millisecond,
			"the backlog of the start is republished",
		)

		b.away.Store(true)
		var all []*models.Batch
		all = append(all, r.stored(models.Bulk, time.Now().Add(50*time.Millisecond))) // reconciled while the broker is down
		require.Eventually(
			t,
			func() bool { _, ok := r.engine.outbox.Outage.UnannouncedSince(); return ok },
			patience,
			10*time.Millisecond,
		)
		for i := range 50 {
			all = append(all, r.stored([]models.Lane{models.Urgent, models.Bulk}[i%2], time.Now().Add(cfg.Recheck)))
		}
		require.Zero(t, p.count())
		b.away.Store(false)
		for _, batch := range all {
			r.done(batch)
			require.Equal(t, 1, p.copiesOf(batch.ID.Log(1)))
		}
		require.Eventually(
			t,
			func() bool { _, ok := r.engine.outbox.Outage.UnannouncedSince(); return !ok },
			patience,
			10*time.Millisecond,
		)
	})
}

// TestRetryWhileBrokerIsDown: the message of a retry that cannot be published is redelivered.
func TestRetryWhileBrokerIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := emptyRig(t, nil, "sg", "mg")
		b := &leaving{Broker: r.broker}
		r.broker = b
		cfg := fast()
		cfg.Recheck = time.Hour
		refusing := newScripted("sg", func(_ context.Context, c *models.Call) []models.Part {
			b.away.Store(true)
			return part(models.Unavailable, c)
		})
		taking := newScripted("mg", always(models.Accepted))
		r.engine = r.worker(cfg, refusing, taking)
		batch := r.batch(1, true, func(b *models.Batch, _ []models.Recipient) { b.Providers = []string{"sg", "mg"} })
		require.Eventually(
			t,
			func() bool {
				_, ok := r.engine.outbox.Outage.UnannouncedSince()
				return ok && refusing.count() > 0
			},
			patience,
			time.Millisecond,
		)
		b.away.Store(false)
		r.done(batch)
		require.Equal(t, 1, taking.copiesOf(batch.ID.Log(1)))
	})
}

// TestMailIsSentWhileBrokerIsAway: the handlers of a worker get messages from its standby while the broker takes none,
// also those of a reroute. Nothing is sent twice when the broker is back.
func TestMailIsSentWhileBrokerIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := emptyRig(t, nil, "sg", "mg")
		b := &leaving{Broker: r.broker}
		r.broker = b
		cfg := fast()
		standby, err := inproc.NewStandby([]string{"sg", "mg"}, nil, nil)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, standby.Close()) })
		cfg.Standby = standby
		taking := newScripted("mg", always(models.Accepted))
		r.engine = r.worker(cfg, newScripted("sg", always(models.Unavailable)), taking)
		b.away.Store(true)
		before := b.published.Load()
		var all []*models.Batch
		for i := range 50 {
			all = append(all, r.stored([]models.Lane{models.Urgent, models.Bulk}[i%2], time.Now().Add(cfg.Recheck)))
		}
		for _, batch := range all {
			r.done(batch)
		}
		require.Equal(t, before, b.published.Load())
		b.away.Store(false)
		time.Sleep(time.Minute)
		for _, batch := range all {
			require.Equal(t, 1, taking.copiesOf(batch.ID.Log(1)))
		}
	})
}
