package service

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/announce"
)

// nearBroker is a broker with a number of idle handlers in this process.
type nearBroker struct {
	idle    int
	offered []models.ID

	mu        sync.Mutex
	published []models.ID
}

func (b *nearBroker) Offer(m models.Message) bool {
	if b.idle == 0 {
		return false
	}
	b.idle--
	b.offered = append(b.offered, m.ID)
	return true
}

func (b *nearBroker) Publish(_ context.Context, ms ...models.Message) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range ms {
		b.published = append(b.published, m.ID)
	}
	return nil
}

// TestOneChunkIsOffered: a batch of one chunk is handled where it was accepted if a handler is idle there. The broker
// gets it otherwise, and all batches of several chunks.
func TestOneChunkIsOffered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &nearBroker{idle: 1}
		bulk := announce.New(b, nil)
		a := announcers{slog.New(slog.DiscardHandler), map[models.Lane]*announce.Announcer{models.Bulk: bulk}}
		three, one, another := models.NewBatchID(time.Now()), models.NewBatchID(time.Now()), models.NewBatchID(time.Now())
		a.batch(three, 3, models.Bulk)
		synctest.Wait()
		require.ElementsMatch(t, []models.ID{three.Chunk(0), three.Chunk(1), three.Chunk(2)}, b.published)
		a.batch(one, 1, models.Bulk)
		a.batch(another, 1, models.Bulk)
		bulk.Close()
		require.Equal(t, []models.ID{one.Chunk(0)}, b.offered)
		require.Len(t, b.published, 4)
		require.Contains(t, b.published, another.Chunk(0))
	})
}
