package dispatch

import (
	"sync"

	"github.com/safedelivr/safedelivr/models"
)

// inflightKey identifies work on a chunk: through any provider, or through one.
type inflightKey struct {
	chunk    models.ID
	provider string // empty: any
}

// inflight deduplicates work on a chunk within this process. A message for a chunk that
// is already being handled is acked at once; the running handler makes one more pass.
// Without it, handlers would race for numbers of the same ledger.
type inflight struct {
	mu   sync.Mutex
	runs map[inflightKey]*inflightRun
}

// inflightRun is the run of one handler.
type inflightRun struct {
	requested bool // another message asked for the same work
}

// newInflight returns an inflight without runs.
func newInflight() *inflight { return &inflight{runs: map[inflightKey]*inflightRun{}} }

// begin starts a run, which must be ended with end. If the work is running already, begin
// asks that run for one more pass and returns nil.
func (f *inflight) begin(key inflightKey) *inflightRun {
	f.mu.Lock()
	defer f.mu.Unlock()
	if run := f.runs[key]; run != nil {
		run.requested = true
		return nil
	}
	run := &inflightRun{}
	f.runs[key] = run
	return run
}

// rerun reports whether the work was requested since the run began or since the last
// rerun. If not, it ends the run.
func (f *inflight) rerun(key inflightKey, run *inflightRun) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !run.requested {
		delete(f.runs, key)
	}
	requested := run.requested
	run.requested = false
	return requested
}

// end ends a run unless it has ended, and reports whether the work was requested
// meanwhile.
func (f *inflight) end(key inflightKey, run *inflightRun) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.runs[key] != run {
		return false
	}
	delete(f.runs, key)
	return run.requested
}
