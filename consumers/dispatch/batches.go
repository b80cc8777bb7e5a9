package dispatch

import (
	"math"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/safedelivr/safedelivr/models"
)

const (
	batchesBytes = 8 << 20 // that a process keeps of batches: some seconds of single mails
	batchBytes   = 1 << 10 // of a batch without its texts, about
)

// batches keeps the batches that were used last, up to batchesBytes, and always the last one.
type batches struct {
	mu    sync.Mutex
	known *simplelru.LRU[models.ID, *models.Batch]
	bytes int
}

func newBatches() *batches {
	bs := &batches{}
	known, err := simplelru.NewLRU(math.MaxInt32, func(_ models.ID, b *models.Batch) { bs.bytes -= bytesOf(b) })
	if err != nil {
		panic("dispatch: " + err.Error()) // the size is positive
	}
	bs.known = known
	return bs
}

// bytesOf returns about how much memory a batch takes.
func bytesOf(b *models.Batch) int {
	return batchBytes + len(b.Content.HTML) + len(b.Content.Text) + 100*len(b.Own)
}

func (bs *batches) get(id models.ID) (*models.Batch, bool) {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	return bs.known.Get(id)
}

func (bs *batches) add(b *models.Batch) {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	bs.known.Remove(b.ID)
	bs.known.Add(b.ID, b)
	for bs.bytes += bytesOf(b); bs.bytes > batchesBytes && bs.known.Len() > 1; {
		bs.known.RemoveOldest()
	}
}
