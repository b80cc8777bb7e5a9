package consumers

import (
	"sync"

	"github.com/safedelivr/safedelivr/models"
)

// work is what a message asks for: to bring a chunk forward, through any provider
// or through one.
type work struct {
	chunk    models.ID
	provider string // empty: any
}

// underway is the work that handlers of this process do. Workers that did the
// same would only race for the numbers of one ledger, and read it again after each
// that they lost. So a message that asks for what is under way ends at once, and
// who does it looks once more.
type underway struct {
	mu sync.Mutex
	by map[work]*turn
}

// turn is the work of one handler.
type turn struct{ again bool }

func newUnderway() *underway { return &underway{by: map[work]*turn{}} }

// Begin returns nil if the work is under way; who does it will look again. Who
// begins must leave.
func (u *underway) begin(w work) *turn {
	u.mu.Lock()
	defer u.mu.Unlock()
	if t := u.by[w]; t != nil {
		t.again = true
		return nil
	}
	t := &turn{}
	u.by[w] = t
	return t
}

// again reports whether it was asked for the work since it began or was asked
// last; if not, the turn is over.
func (u *underway) again(w work, t *turn) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !t.again {
		delete(u.by, w)
	}
	again := t.again
	t.again = false
	return again
}

// leave ends a turn, if it is not over, and reports whether it was asked for the
// work meanwhile.
func (u *underway) leave(w work, t *turn) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.by[w] != t {
		return false
	}
	delete(u.by, w)
	return t.again
}
