package consumers

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/dispatch"
	"github.com/safedelivr/safedelivr/models"
)

// leaving is a broker that can be away for those who publish.
type leaving struct {
	models.Broker
	away      atomic.Bool
	published atomic.Int64
}

func (b *leaving) Publish(ctx context.Context, ms ...models.Message) error {
	if b.away.Load() {
		return fmt.Errorf("%w: away", models.ErrUnavailable)
	}
	b.published.Add(int64(len(ms)))
	return b.Broker.Publish(ctx, ms...)
}

func (b *leaving) Ping(ctx context.Context) error {
	if b.away.Load() {
		return fmt.Errorf("%w: away", models.ErrUnavailable)
	}
	return b.Broker.Ping(ctx)
}

// stored keeps a batch of one recipient that nobody announces.
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
		Deadline:   now.Add(100 * time.Hour),
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

// What could not be announced goes out when the broker is back, hours before the
// agenda would look at it.
func TestMissedIsAnnounced(t *testing.T) {
	p := newScripted("sg", always(models.Accepted))
	r := emptyRig(t, nil, "sg")
	b := &leaving{Broker: r.broker}
	r.broker = b
	cfg := fast()
	cfg.Recheck = time.Hour
	r.engine = r.worker(cfg, p)
	require.Eventually(
		t,
		func() bool { _, ok := r.engine.dispatch.Outage.UnannouncedSince(); return !ok },
		patience,
		10*time.Millisecond,
		"the start is made up for",
	)

	b.away.Store(true)
	var all []*models.Batch
	all = append(all, r.stored(models.Bulk, time.Now().Add(50*time.Millisecond))) // looked at while the broker is away
	require.Eventually(
		t,
		func() bool { _, ok := r.engine.dispatch.Outage.UnannouncedSince(); return ok },
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
		func() bool { _, ok := r.engine.dispatch.Outage.UnannouncedSince(); return !ok },
		patience,
		10*time.Millisecond,
	)
}

// A retry that cannot be announced is not forgotten: its message comes again.
func TestRetryWhileTheBrokerIsAway(t *testing.T) {
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
		func() bool { _, ok := r.engine.dispatch.Outage.UnannouncedSince(); return ok && refusing.count() > 0 },
		patience,
		time.Millisecond,
	)
	b.away.Store(false)
	r.done(batch)
	require.Equal(t, 1, taking.copiesOf(batch.ID.Log(1)))
}

// Urgent mail is announced whatever waits; bulk only as far as there is room.
func TestMissedUrgentFirst(t *testing.T) {
	r := emptyRig(t, nil, "sg")
	b := &leaving{Broker: r.broker}
	e, err := New(r.store, b, nil, fast())
	require.NoError(t, err)
	begin, now := time.Now(), time.Now()
	for i := range 40 {
		lane := models.Bulk
		if i%4 == 3 {
			lane = models.Urgent
		}
		now = now.Add(time.Millisecond) // so that no two are due at once
		r.stored(lane, now.Add(e.cfg.Recheck))
	}
	old := models.AgendaEntry{
		Due:    now.Add(e.cfg.Recheck),
		Kind:   models.LookAtBatch,
		ID:     models.NewBatchID(now),
		User:   r.user,
		Chunks: 1,
		Lane:   models.Bulk,
		Round:  3,
	}
	require.NoError(t, r.store.Schedule(t.Context(), old)) // it was announced
	for _, s := range e.agenda.Shards {
		s.Held.Store(true)
	}
	c := e.agenda.NewBacklog(begin, false)
	c.Begun = now.Add(time.Second)
	waiting := func() map[models.Lane]int {
		depths, err := b.Depths(t.Context())
		require.NoError(t, err)
		out := map[models.Lane]int{}
		for _, d := range depths {
			if d.Queue.Kind == models.BatchMessage {
				out[d.Queue.Lane] += d.Ready
			}
		}
		return out
	}
	require.NoError(t, e.agenda.Republish(t.Context(), c, 5))
	require.Equal(t, map[models.Lane]int{models.Urgent: 10, models.Bulk: 5}, waiting())
	require.NoError(t, e.agenda.Republish(t.Context(), c, 0))
	require.Equal(t, map[models.Lane]int{models.Urgent: 10, models.Bulk: 5}, waiting())
	require.NotEmpty(t, c.Left[1])
	require.NoError(t, e.agenda.Republish(t.Context(), c, 1000))
	require.Equal(t, map[models.Lane]int{models.Urgent: 10, models.Bulk: 30}, waiting())
	require.Empty(t, c.Left[0])
	require.Empty(t, c.Left[1])
}

// While the broker is away one try is made a second, and nobody else waits.
func TestOutage(t *testing.T) {
	var o dispatch.Outage
	now := time.Now()
	require.True(t, o.Begin(now))
	o.End(now, nil)
	_, ok := o.UnannouncedSince()
	require.False(t, ok)
	require.True(t, o.Begin(now))
	o.End(now, models.ErrUnroutable)
	require.True(t, o.Begin(now), "it is there")
	away := fmt.Errorf("%w: away", models.ErrUnavailable)
	o.End(now, away)
	since, ok := o.UnannouncedSince()
	require.True(t, ok)
	require.Equal(t, now, since)
	require.False(t, o.Begin(now.Add(time.Second/2)))
	require.True(t, o.Begin(now.Add(time.Second)))
	require.False(t, o.Begin(now.Add(time.Second)), "one at a time")
	o.End(now.Add(2*time.Second), away)
	require.False(t, o.Begin(now.Add(5*time.Second/2)))
	require.True(t, o.Begin(now.Add(3*time.Second)))
	o.End(now.Add(3*time.Second), nil)
	require.True(t, o.Begin(now.Add(3*time.Second)))
	require.True(t, o.Begin(now.Add(3*time.Second)), "it is back")

	o.CaughtUp(now.Add(time.Second)) // others failed later
	since, ok = o.UnannouncedSince()
	require.True(t, ok)
	require.Equal(t, now.Add(time.Second), since)
	o.CaughtUp(now.Add(4 * time.Second))
	_, ok = o.UnannouncedSince()
	require.False(t, ok)
}
