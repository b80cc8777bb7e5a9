package dispatch

import (
	"sync"

	"github.com/safedelivr/safedelivr/models"
)

// InflightKey identifies work on a chunk: through any provider, or through one.
type InflightKey struct {
	Chunk    models.ID
	Provider string // empty: any
}

// Inflight deduplicates work on a chunk within this process. A message for a chunk that
// is already being handled is acked at once; the running handler makes one more pass.
// Without it, handlers would race for numbers of the same ledger.
type Inflight struct {
	mu sync.Mutex
	By map[InflightKey]*InflightRun
}

// InflightRun is one handler's run. rerun says that another message asked for the same.
type InflightRun struct{ rerun bool }

// NewInflight returns a set without running work.
func NewInflight() *Inflight { return &Inflight{By: map[InflightKey]*InflightRun{}} }

// Begin starts a run, which must be ended with End. It returns nil if the work is
// already running; that run is then asked for one more pass.
func (u *Inflight) Begin(w InflightKey) *InflightRun {
	u.mu.Lock()
	defer u.mu.Unlock()
	if t := u.By[w]; t != nil {
		t.rerun = true
		return nil
	}
	t := &InflightRun{}
	u.By[w] = t
	return t
}

// Rerun reports whether the work was asked for since the run began or since the last
// Rerun. If not, the run has ended.
func (u *Inflight) Rerun(w InflightKey, t *InflightRun) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !t.rerun {
		delete(u.By, w)
	}
	again := t.rerun
	t.rerun = false
	return again
}

// End ends a run unless it has ended, and reports whether the work was asked for
// meanwhile.
func (u *Inflight) End(w InflightKey, t *InflightRun) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.By[w] != t {
		return false
	}
	delete(u.By, w)
	return t.rerun
}
