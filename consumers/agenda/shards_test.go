package agenda

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store/memory"
)

// TestShardsAreShared: each worker holds its share of the shards. The others take over the
// shards of a worker that stops.
func TestShardsAreShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, broker := memory.Open(t), inproctest.New(t, "sg")
		all := store.Shards()
		first, second := newFixture(t, store, broker, testConfig()), newFixture(t, store, broker, testConfig())
		first.run(t)
		require.Eventually(t, func() bool { return first.held() == all }, patience, time.Millisecond)

		first.cluster.size.Store(2)
		second.cluster.size.Store(2)
		stop := second.run(t)
		require.Eventually(
			t,
			func() bool { return first.held() == (all+1)/2 && second.held() == all/2 },
			patience,
			time.Millisecond,
		)
		for i := range first.shards {
			require.NotEqual(t, first.shards[i].held.Load(), second.shards[i].held.Load(), "one of them holds shard %d", i)
		}

		stop()
		first.cluster.size.Store(1)
		require.Eventually(t, func() bool { return first.held() == all }, patience, time.Millisecond)
	})
}

// TestShardsAreKeptWhileRepublishing: a worker that republishes a backlog keeps its shards
// until that is done, because a new worker does not know the backlog.
func TestShardsAreKeptWhileRepublishing(t *testing.T) {
	t.Parallel()
	store := memory.Open(t)
	f, all := newFixture(t, store, inproctest.New(t, "sg"), testConfig()), store.Shards()
	f.acquireShards(t.Context())
	require.Equal(t, all, f.held())
	f.cluster.size.Store(2)
	f.Outbox.Outage.MarkUnannounced(time.Now())
	f.releaseSurplus(t.Context())
	require.Equal(t, all, f.held())
	f.Outbox.Outage.CaughtUp(time.Now())
	f.releaseSurplus(t.Context())
	require.Equal(t, all/2, f.held())
}

// leases is a store that counts how often the leases of shards are acquired and renewed.
// Its batches cannot be read until the test allows it.
type leases struct {
	models.Store
	renewals atomic.Int64
	reading  chan struct{} // closed when a batch is being read
	once     sync.Once
	free     chan struct{}
}

func (s *leases) Lease(ctx context.Context, name, holder string, ttl time.Duration) (bool, error) {
	held, err := s.Store.Lease(ctx, name, holder, ttl)
	if held && err == nil && strings.HasPrefix(name, "agenda.") {
		s.renewals.Add(1)
	}
	return held, err
}

func (s *leases) Batch(ctx context.Context, id models.ID) (models.Batch, error) {
	s.once.Do(func() { close(s.reading) })
	select {
	case <-s.free:
	case <-ctx.Done():
	}
	return s.Store.Batch(ctx, id)
}

// TestLeasesAreRenewedDuringLongWork: a worker keeps all its shards while the work on one
// takes longer than a lease.
func TestLeasesAreRenewedDuringLongWork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &leases{Store: memory.Open(t), reading: make(chan struct{}), free: make(chan struct{})}
		cfg := testConfig()
		cfg.Lease = 100 * time.Millisecond
		f := newFixture(t, s, inproctest.New(t, "sg"), cfg)
		f.put(t, models.Bulk, time.Now())
		f.run(t)
		<-s.reading
		began, all := s.renewals.Load(), int64(len(f.shards))
		require.Eventually(t, func() bool { return s.renewals.Load() >= began+10*all }, patience, time.Millisecond)
		close(s.free)
		require.Eventually(t, func() bool { return f.announced(t)[models.Bulk] == 1 }, patience, time.Millisecond)
	})
}
