package consumers

import (
	"sync"

	"github.com/safedelivr/safedelivr/models"
)

// inflightKey is what a message asks for: to bring a chunk forward, through any provider
// or through one.
type inflightKey struct {
	chunk    models.ID
	provider string // empty: any
}

// inflight is the work that handlers of this process do. Workers that did the
// same would only race for the numbers of one ledger, and read it again after each
// that they lost. So a message that asks for what is under way ends at once, and
// who does it looks once more.
type inflight struct {
	mu sync.Mutex
	by map[inflightKey]*inflightRun
}

// inflightRun is the work of one handler.
type inflightRun struct{ rerun bool }

func newInflight() *inflight { return &inflight{by: map[inflightKey]*inflightRun{}} }

// Begin returns nil if the work is under way; who does it will look again. Who
// begins must leave.
func (u *inflight) begin(w inflightKey) *inflightRun {
	u.mu.Lock()
	defer u.mu.Unlock()
	if t := u.by[w]; t != nil {
		t.rerun = true
		return nil
	}
	t := &inflightRun{}
	u.by[w] = t
	return t
}

// rerun reports whether it was asked for the work since it began or was asked
// last; if not, the turn is over.
func (u *inflight) rerun(w inflightKey, t *inflightRun) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !t.rerun {
		delete(u.by, w)
	}
	again := t.rerun
	t.rerun = false
	return again
}

// end ends a turn, if it is not over, and reports whether it was asked for the
// work meanwhile.
func (u *inflight) end(w inflightKey, t *inflightRun) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.by[w] != t {
		return false
	}
	delete(u.by, w)
	return t.rerun
}
