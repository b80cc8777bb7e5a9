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

// inflight deduplicates work on a chunk within this process. A message for a chunk that
// is already being handled is acked at once; the running handler makes one more pass.
// Without it, handlers would race for numbers of the same ledger.
type inflight struct {
	mu sync.Mutex
	By map[InflightKey]*inflightRun
}

// inflightRun is one handler's run. rerun says that another message asked for the same.
type inflightRun struct{ rerun bool }

// NewInflight returns a set without running work.
func NewInflight() *inflight { return &inflight{By: map[InflightKey]*inflightRun{}} }

// Begin starts a run, which must be ended with End. It returns nil if the work is
// already running; that run is then asked for one more pass.
func (u *inflight) Begin(w InflightKey) *inflightRun {
	u.mu.Lock()
	defer u.mu.Unlock()
	if t := u.By[w]; t != nil {
		t.rerun = true
		return nil
	}
	t := &inflightRun{}
	u.By[w] = t
	return t
}

// Rerun reports whether the work was asked for since the run began or since the last
// Rerun. If not, the run has ended.
func (u *inflight) Rerun(w InflightKey, t *inflightRun) bool {
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
func (u *inflight) End(w InflightKey, t *inflightRun) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.By[w] != t {
		return false
	}
	delete(u.By, w)
	return t.rerun
}
