package consumers

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/agenda"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/sqlite/sqlitetest"
)

// A queue that nobody empties grows older, also when the worker that knew it is
// gone; one that was emptied has no age.
func TestQueueAges(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	store, broker := sqlitetest.Open(t), inproctest.New(t, "sg")
	queue := models.Queue{Kind: models.ProviderMessage, Provider: "sg", Lane: models.Bulk}
	message := func(ago time.Duration) models.Message {
		return models.Message{
			Kind:     models.ProviderMessage,
			Provider: "sg",
			Lane:     models.Bulk,
			ID:       models.NewBatchID(time.Now()),
			At:       time.Now().Add(-ago).UTC(),
		}
	}
	depth := func() *models.Depth {
		ds, err := broker.Depths(ctx)
		require.NoError(t, err)
		for i := range ds {
			if ds[i].Queue == queue {
				return &ds[i]
			}
		}
		t.Fatal("there is no such queue")
		return nil
	}
	first, second := agenda.NewQueueAges(store, broker, "first"), agenda.NewQueueAges(store, broker, "second")

	require.NoError(t, broker.Publish(ctx, message(2*time.Hour), message(time.Hour), message(30*time.Minute)))
	require.NoError(t, first.Poll(ctx))
	_, known := first.Oldest(depth(), time.Now())
	require.False(t, known, "nobody has seen this queue move or empty")

	take := func(n int) {
		within, cancel := context.WithCancel(ctx)
		defer cancel()
		taken := 0
		require.NoError(
			t,
			broker.Subscribe(within, queue, 1, first.Watch(queue, func(context.Context, models.Message) models.Disposition {
				if taken++; taken == n {
					cancel()
				}
				return models.Done()
			})),
		)
	}
	take(1)
	require.NoError(t, first.Poll(ctx))
	require.NoError(t, second.Poll(ctx))
	for _, a := range []*agenda.QueueAges{first, second} { // second knows it from first
		now := time.Now()
		age, known := a.Oldest(depth(), now)
		require.True(t, known)
		require.InDelta(t, 2*time.Hour, age, float64(time.Minute), "what waits came after what was taken")
		later, _ := a.Oldest(depth(), now.Add(time.Hour))
		require.Equal(t, age+time.Hour, later, "nothing moves")
	}
	take(1)
	age, _ := first.Oldest(depth(), time.Now())
	require.InDelta(t, time.Hour, age, float64(time.Minute))
	take(1)
	age, known = first.Oldest(depth(), time.Now())
	require.True(t, known)
	require.Zero(t, age, "nothing waits")

	emptied := time.Now()
	require.NoError(t, second.Poll(ctx))
	require.NoError(t, broker.Publish(ctx, message(-time.Hour))) // by a clock that is wrong
	require.NoError(t, first.Poll(ctx))
	age, known = first.Oldest(depth(), time.Now())
	require.True(t, known)
	require.LessOrEqual(t, age, time.Since(emptied), "it was seen empty, by the other worker")
	take(1)
	require.NoError(t, broker.Publish(ctx, message(0)))
	age, _ = first.Oldest(depth(), time.Now().Add(time.Minute))
	require.GreaterOrEqual(t, age, time.Minute, "no clock says that it came in the future")
}

// The workers' own metrics and reports tell it while they run.
func TestQueueAgeOfAStuckQueue(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	let := sync.OnceFunc(func() { close(release) })
	p := newScripted("sg", func(_ context.Context, c *models.Call) []models.Part {
		<-release
		return part(models.Accepted, c)
	})
	r := emptyRig(t, nil, "sg")
	cfg := fast()
	reg := prometheus.NewPedanticRegistry()
	cfg.QueuePoll, cfg.Metrics = 10*time.Millisecond, reg
	providers := []provider.Spec{
		{
			Adapter: p,
			Provider: models.Provider{
				Name:        "sg",
				Weight:      1,
				Concurrency: 1,
				ChunkLimit:  1000,
				Timeout:     time.Minute,
				Events:      models.EventsNone,
			},
		},
	}
	e := r.start(cfg, providers)
	t.Cleanup(let) // before the worker is waited for
	var batches []*models.Batch
	for range 30 {
		batches = append(batches, r.batch(1, true, nil))
	}
	waits := func() time.Duration {
		depths, err := r.broker.Depths(t.Context())
		require.NoError(t, err)
		oldest := time.Duration(0)
		for i := range depths {
			if age, known := e.ages.Oldest(&depths[i], time.Now()); known {
				oldest = max(oldest, age)
			}
		}
		return oldest
	}
	shown := func(lane string) float64 {
		all, err := reg.Gather()
		require.NoError(t, err)
		families := map[string]*dto.MetricFamily{}
		for _, f := range all {
			families[f.GetName()] = f
		}
		return value(families, "safedelivr_queue_oldest_seconds", "provider", "sg", lane)
	}
	require.Eventually(
		t,
		func() bool { return waits() > 300*time.Millisecond && shown("bulk") > .3 },
		patience,
		5*time.Millisecond,
		"it grows",
	)
	require.Zero(t, shown("urgent"))
	let()
	for _, b := range batches {
		r.done(b)
	}
	require.Eventually(t, func() bool { return r.idle() && waits() == 0 }, patience, 5*time.Millisecond, "nothing waits")
	require.Eventually(t, func() bool {
		raw, err := r.store.Transients(t.Context(), telemetry.QueuesReport)
		return err == nil && len(raw) == 1
	}, patience, 5*time.Millisecond)
}
