package consumers

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/policy"
	"github.com/safedelivr/safedelivr/models"
)

// TestLanesShareSlots: bulk never takes the slots that are kept for urgent mail,
// and a flood of urgent mail leaves bulk its share.
func TestLanesShareSlots(t *testing.T) {
	t.Parallel()
	s := newSlots(16)
	var bulk []func()
	for {
		release, ok := s.try(models.Bulk)
		if !ok {
			break
		}
		bulk = append(bulk, release)
	}
	require.Len(t, bulk, 14)
	urgent, ok := s.try(models.Urgent)
	require.True(t, ok)
	urgent()
	for _, release := range bulk {
		release()
	}
	for range 16 { // nobody else waits: urgent may use all
		_, ok := s.try(models.Urgent)
		require.True(t, ok)
	}
	_, ok = s.try(models.Urgent)
	require.False(t, ok)

	for _, n := range []int{1, 2, 4, 16} {
		synctest.Test(t, func(t *testing.T) {
			s := newSlots(n)
			ctx, stop := context.WithCancel(t.Context())
			done := [2]int{}
			var all sync.WaitGroup
			work := func(l models.Lane, k int) {
				for ctx.Err() == nil {
					release, err := s.acquire(ctx, l)
					if err != nil {
						return
					}
					time.Sleep(10 * time.Millisecond) // the call
					release()
					s.mu.Lock()
					done[k]++
					s.mu.Unlock()
				}
			}
			for range 2 * n {
				all.Go(func() { work(models.Urgent, 0) })
				all.Go(func() { work(models.Bulk, 1) })
			}
			time.Sleep(10 * time.Second)
			stop()
			all.Wait()
			require.Positive(t, done[0])
			require.GreaterOrEqual(t, done[1]*bulkPart*10, (done[0]+done[1])*9, "bulk has its share of %d slots: %v", n, done)
			require.GreaterOrEqual(t, done[0]*urgentPart*10, (done[0]+done[1])*9, "urgent has its share of %d slots: %v", n, done)
		})
	}
}

// TestReadAhead: what is to be looked at rarely is looked at before its time
// when no message waits in the broker: it may have been lost.
func TestReadAhead(t *testing.T) {
	t.Parallel()
	cfg := fast()
	cfg.Recheck = 30 * time.Minute // Nothing is due by itself
	cfg.InboxAge = time.Second
	p := newScripted("sg", always(models.Accepted))
	r := emptyRig(t, nil, "sg")
	b := models.Batch{ID: models.NewBatchID(time.Now()), User: r.user, Content: models.Content{From: models.Address{Email: "a@b.c"}, Subject: "s", Text: "t"},
		Lane: models.Bulk, OnUnknown: models.Hold, Recipients: 2, Chunks: 1, Deadline: time.Now().Add(time.Hour)}
	require.NoError(t, r.store.PutBatch(t.Context(), b, models.Chunk{ID: b.ID, Recipients: []models.Recipient{{Email: "a@x.test"}, {Email: "b@x.test"}}}))
	require.NoError(t, r.store.Schedule(t.Context(), models.AgendaEntry{Due: time.Now().Add(9 * cfg.Recheck), Kind: models.LookAtBatch, ID: b.ID, User: b.User, Chunks: 1, Round: 9}))
	r.engine = r.worker(cfg, p)
	require.EqualValues(t, 2, r.done(&b).Summary().Success)
}

// TestLanesShareRates: a flood in one lane leaves the other its share of an
// provider's rates, and all of them are used; alone, a lane has them all.
func TestLanesShareRates(t *testing.T) {
	t.Parallel()
	const perSecond, seconds = 100, 60
	flood := func(t *testing.T, a models.Provider, urgent, bulk int) (sent [2]int) {
		t.Helper()
		cfg := DefaultConfig()
		cfg.Sole = true
		cfg = cfg.withDefaults()
		a.Name, a.Concurrency = "sg", 8
		acc := newProvider(Provider{Adapter: newScripted("sg", nil), Provider: a}, &cfg, newCrew(nil, &cfg))
		ctx, stop := context.WithTimeout(t.Context(), seconds*time.Second)
		defer stop()
		var mu sync.Mutex
		var all sync.WaitGroup
		work := func(l models.Lane, k, n int) {
			for ctx.Err() == nil {
				wait, err := acc.await(ctx, l, n)
				if err != nil {
					return
				}
				if wait > 0 { // it comes back through a delay
					time.Sleep(wait)
					continue
				}
				mu.Lock()
				sent[k] += n
				mu.Unlock()
			}
		}
		for range 8 {
			if urgent > 0 {
				all.Go(func() { work(models.Urgent, 0, urgent) })
			}
			if bulk > 0 {
				all.Go(func() { work(models.Bulk, 1, bulk) })
			}
		}
		all.Wait()
		return sent
	}
	for name, c := range map[string]struct {
		provider     models.Provider
		urgent, bulk int // Recipients per call
		whole        int // of the limit, in recipients
	}{
		"recipients":          {models.Provider{Rate: perSecond}, 1, 50, perSecond * seconds},
		"recipients, in tens": {models.Provider{Rate: perSecond}, 10, 10, perSecond * seconds},
		"calls":               {models.Provider{CallRate: perSecond}, 1, 1, perSecond * seconds},
		"urgent alone":        {models.Provider{Rate: perSecond}, 1, 0, perSecond * seconds},
		"bulk alone":          {models.Provider{Rate: perSecond}, 0, 50, perSecond * seconds},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				sent := flood(t, c.provider, c.urgent, c.bulk)
				t.Logf("urgent %d, bulk %d of %d", sent[0], sent[1], c.whole)
				require.GreaterOrEqual(t, sent[0]+sent[1], c.whole*9/10, "the limit is used")
				require.LessOrEqual(t, sent[0]+sent[1], c.whole+2*perSecond)
				if c.urgent > 0 && c.bulk > 0 {
					require.GreaterOrEqual(t, sent[1], c.whole/bulkPart*8/10, "bulk has its share")
					require.GreaterOrEqual(t, sent[0], c.whole*(bulkPart-1)/bulkPart*8/10, "urgent has its share")
				}
			})
		})
	}
}

// Where a provider takes fewer calls at once than there are workers, some have no
// part of them: what they take from a queue goes to one that has.
func TestWorkerWithoutSlots(t *testing.T) {
	t.Parallel()
	cfg := fast()
	cfg.Recheck, cfg.Lease = time.Hour, 200*time.Millisecond
	free := make(chan struct{})
	p := newScripted("sg", func(_ context.Context, c *models.Call) []models.Part {
		<-free
		return part(models.Accepted, c)
	})
	r := emptyRig(t, nil, "sg")
	engines := make([]*Engine, 3)
	for i := range engines {
		engines[i] = r.start(cfg, []Provider{{Adapter: p, Provider: models.Provider{Name: p.name, Weight: 1, Concurrency: 1, ChunkLimit: 1000,
			Timeout: time.Second, Events: models.EventsNone}}})
	}
	open := sync.OnceFunc(func() { close(free) })
	t.Cleanup(open)
	require.Eventually(t, func() bool {
		none := 0
		for _, e := range engines {
			part, ok := e.crew.share()
			if _, behind := e.outage.open(); ok && !behind && part.size == len(engines) && portion(1, part) == 0 {
				none++
			}
		}
		return none == len(engines)-1
	}, patience, time.Millisecond)
	all := make([]*models.Batch, 0, 30)
	for range cap(all) {
		b := r.stored(models.Bulk, time.Now().Add(time.Hour)) // the agenda does not help
		require.NoError(t, r.broker.Publish(t.Context(), models.Message{Kind: models.ProviderMessage, Provider: "sg", ID: b.ID, Lane: b.Lane}))
		all = append(all, b)
	}
	require.Eventually(t, func() bool {
		depths, err := r.broker.Depths(t.Context())
		require.NoError(t, err)
		ready := 0
		for _, d := range depths {
			ready += d.Ready
		}
		return p.count() == 1 && ready <= len(all)-len(engines)
	}, patience, time.Millisecond, "each worker has taken one")
	open()
	for _, b := range all {
		r.done(b)
		require.Equal(t, 1, p.copiesOf(b.ID.Log(1)))
	}
}

// How many slots a worker has is not known before it knows the others: nothing is
// begun until then.
func TestNoSlotBeforeTheShareIsKnown(t *testing.T) {
	t.Parallel()
	r := emptyRig(t, nil, "sg")
	e, err := New(r.store, r.broker, []Provider{{Adapter: newScripted("sg", nil), Provider: models.Provider{Name: "sg", Weight: 1, Concurrency: 4}}}, fast())
	require.NoError(t, err)
	a := e.byName["sg"]
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	wait, err := e.admit(ctx, &chunk{lane: models.Bulk}, &job{provider: a, who: models.SetOf(1), step: &policy.Step{}})
	require.NoError(t, err)
	require.Positive(t, wait)
	require.Zero(t, a.slots.used)
}
