package consumers

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
)

// TestReadAhead: what is to be looked at rarely is looked at before its time
// when no message waits in the broker: it may have been lost.
func TestReadAhead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := fast()
		cfg.Recheck = 30 * time.Minute // Nothing is due by itself
		cfg.InboxAge = time.Second
		p := newScripted("sg", always(models.Accepted))
		r := emptyRig(t, nil, "sg")
		b := models.Batch{
			ID:         models.NewBatchID(time.Now()),
			User:       r.user,
			Content:    models.Content{From: models.Address{Email: "a@b.c"}, Subject: "s", Text: "t"},
			Lane:       models.Bulk,
			OnUnknown:  models.Hold,
			Recipients: 2,
			Chunks:     1,
			ExpiresAt:  time.Now().Add(time.Hour),
		}
		require.NoError(
			t,
			r.store.PutBatch(
				t.Context(),
				b,
				models.Chunk{ID: b.ID, Recipients: []models.Recipient{{Email: "a@x.test"}, {Email: "b@x.test"}}},
			),
		)
		require.NoError(
			t,
			r.store.Schedule(
				t.Context(),
				models.AgendaEntry{
					Due:    time.Now().Add(9 * cfg.Recheck),
					Kind:   models.LookAtBatch,
					ID:     b.ID,
					User:   b.User,
					Chunks: 1,
					Round:  9,
				},
			),
		)
		r.engine = r.worker(cfg, p)
		require.EqualValues(t, 2, r.done(&b).Summary().Success)
	})
}

// Where a provider takes fewer calls at once than there are workers, some have no
// part of them: what they take from a queue goes to one that has.
func TestWorkerWithoutSlots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
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
			engines[i] = r.start(
				cfg,
				[]provider.Spec{{Adapter: p, Provider: models.Provider{Name: p.name, Weight: 1, Concurrency: 1, ChunkLimit: 1000,
					Timeout: time.Second, Events: models.EventsNone}}},
			)
		}
		open := sync.OnceFunc(func() { close(free) })
		t.Cleanup(open)
		require.Eventually(t, func() bool {
			none := 0
			for _, e := range engines {
				part, ok := e.cluster.Share()
				if _, behind := e.outbox.Outage.UnannouncedSince(); ok && !behind && part.Size == len(engines) &&
					provider.Portion(1, part) == 0 {
					none++
				}
			}
			return none == len(engines)-1
		}, patience, 20*time.Millisecond)
		all := make([]*models.Batch, 0, 30)
		for range cap(all) {
			b := r.stored(models.Bulk, time.Now().Add(time.Hour)) // the agenda does not help
			require.NoError(
				t,
				r.broker.Publish(t.Context(), models.Message{Kind: models.ProviderMessage, Provider: "sg", ID: b.ID, Lane: b.Lane}),
			)
			all = append(all, b)
		}
		require.Eventually(t, func() bool {
			depths, err := r.broker.Depths(t.Context())
			require.NoError(t, err)
			held := 0 // how many wait does not say it: mail that a worker leaves to others is announced anew
			for _, d := range depths {
				held += d.Unacked
			}
			return p.count() == 1 && held >= len(engines)
		}, patience, time.Millisecond, "each worker has taken one")
		open()
		for _, b := range all {
			r.done(b)
			require.Equal(t, 1, p.copiesOf(b.ID.Log(1)))
		}
	})
}
