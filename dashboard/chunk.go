package dashboard

import (
	"context"
	"reflect"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// The story of a log costs reading its whole chunk. All open logs of a chunk
// share one reader, which reads it when the counts of its batch have changed.

// quietLogs is how often a chunk is read although the counts do not change: for
// an opening, a click, a late bounce.
const quietLogs = 10 * time.Second

// chunks are the readers of the chunks whose logs are open.
type chunks struct {
	service *service.Service

	mu      sync.Mutex
	readers map[string]*chunkReader
}

// of returns the reader for a log of a caller, and forgets those that nobody
// used for a while.
func (c *chunks) of(who service.Caller, log models.ID) *chunkReader {
	now := time.Now()
	key := eventsKey(who.User, " ", who.Operator, " ", log.ChunkID())
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, r := range c.readers {
		if k != key && r.idle(now) {
			delete(c.readers, k)
		}
	}
	r := c.readers[key]
	if r == nil {
		r = &chunkReader{service: c.service, who: who, log: log}
		c.readers[key] = r
	}
	return r
}

// chunkReader reads one chunk for all who look at its logs.
type chunkReader struct {
	service *service.Service
	who     service.Caller
	log     models.ID // some log of the chunk

	mu      sync.Mutex
	asked   time.Time // when the counts were read last
	read    time.Time // when the chunk was read last
	counts  service.Counts
	stories *service.Stories
}

func (r *chunkReader) idle(now time.Time) bool {
	if !r.mu.TryLock() {
		return false // it is reading
	}
	defer r.mu.Unlock()
	return !r.asked.IsZero() && now.Sub(r.asked) > 3*quietLogs
}

// now returns the stories as they were at most liveEvery ago. They are the same
// as long as nothing has changed.
func (r *chunkReader) now(ctx context.Context) (*service.Stories, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if r.stories != nil && now.Sub(r.asked) < liveEvery {
		return r.stories, nil
	}
	b, err := r.service.Batch(ctx, r.who, r.log.Batch().String())
	if err != nil {
		return nil, err
	}
	if r.stories == nil || now.Sub(r.read) >= quietLogs || !reflect.DeepEqual(b.Counts, r.counts) {
		if r.stories, err = r.service.Stories(ctx, r.who, r.log); err != nil {
			return nil, err
		}
		r.read, r.counts = now, b.Counts
	}
	r.asked = now
	return r.stories, nil
}
