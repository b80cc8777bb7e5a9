package cassandra

import (
	"context"
	"slices"
	"sync"

	"github.com/safedelivr/safedelivr/internal/priority"
)

// The most statements with low priority that a process runs at once.
const (
	lowAlone  = 32
	lowBeside = 8 // while others run
)

// semaphore limits the statements with low priority (priority.WithLow), so that
// they do not delay others: a node runs statements in the order of their arrival.
type semaphore struct {
	mu      sync.Mutex
	others  int             // running statements with normal priority
	low     int             // running statements with low priority
	waiting []chan struct{} // waiting statements with low priority; closed to admit one
}

// acquire waits until a statement may be sent. The caller must call release after its
// answer.
func (t *semaphore) acquire(ctx context.Context) (release func(), err error) {
	if t == nil {
		return func() {}, nil
	}
	t.mu.Lock()
	if !priority.IsLow(ctx) {
		t.others++
		t.mu.Unlock()
		return t.releaseOther, nil
	}
	admitted := make(chan struct{})
	t.waiting = append(t.waiting, admitted)
	t.admit()
	t.mu.Unlock()
	select {
	case <-admitted:
		return t.releaseLow, nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(t.waiting, admitted); i >= 0 {
		t.waiting = slices.Delete(t.waiting, i, i+1)
	} else { // it was admitted meanwhile
		t.low--
		t.admit()
	}
	return nil, ctx.Err()
}

func (t *semaphore) releaseOther() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.others--
	t.admit()
}

func (t *semaphore) releaseLow() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.low--
	t.admit()
}

// admit admits waiting statements up to the limit. t.mu is held.
func (t *semaphore) admit() {
	most := lowAlone
	if t.others > 0 {
		most = lowBeside
	}
	for len(t.waiting) > 0 && t.low < most {
		close(t.waiting[0])
		t.waiting = t.waiting[1:]
		t.low++
	}
}
