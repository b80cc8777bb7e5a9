package dispatch

import (
	"sync"

	"github.com/safedelivr/safedelivr/models"
)

// InflightKey is what a message asks for: to bring a chunk forward, through any provider
// or through one.
type InflightKey struct {
	Chunk    models.ID
	Provider string // empty: any
}

// inflight is the work that handlers of this process do. Workers that did the
// same would only race for the numbers of one ledger, and read it again after each
// that they lost. So a message that asks for what is under way ends at once, and
// who does it looks once more.
type inflight struct {
	mu sync.Mutex
	By map[InflightKey]*inflightRun
}

// inflightRun is the work of one handler.
type inflightRun struct{ rerun bool }

func NewInflight() *inflight { return &inflight{By: map[InflightKey]*inflightRun{}} }

// Begin returns nil if the work is under way; who does it will look again. Who
// begins must leave.
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

// Rerun reports whether it was asked for the work since it began or was asked
// last; if not, the turn is over.
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

// End ends a turn, if it is not over, and reports whether it was asked for the
// work meanwhile.
func (u *inflight) End(w InflightKey, t *inflightRun) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.By[w] != t {
		return false
	}
	delete(u.By, w)
	return t.rerun
}
