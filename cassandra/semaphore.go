package cassandra

import (
	"context"
	"slices"
	"sync"

	"github.com/safedelivr/safedelivr/models"
)

// How many statements of work that can wait a process has under way at once.
const (
	patientAlone  = 32
	patientBeside = 8 // while somebody waits for others
)

// turns keeps work that can wait (models.WithBackground) from holding up other
// work: a node works statements off in the order in which they come.
type turns struct {
	mu      sync.Mutex
	others  int             // statements under way that somebody waits for
	patient int             // statements under way that can wait
	line    []chan struct{} // statements that wait for their turn; closed when it comes
}

// begin waits until a statement may be sent, and returns what is to be called
// after its answer.
func (t *turns) begin(ctx context.Context) (end func(), err error) {
	if t == nil {
		return func() {}, nil
	}
	t.mu.Lock()
	if !models.IsBackground(ctx) {
		t.others++
		t.mu.Unlock()
		return t.endOther, nil
	}
	turn := make(chan struct{})
	t.line = append(t.line, turn)
	t.next()
	t.mu.Unlock()
	select {
	case <-turn:
		return t.endPatient, nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(t.line, turn); i >= 0 {
		t.line = slices.Delete(t.line, i, i+1)
	} else { // its turn came meanwhile
		t.patient--
		t.next()
	}
	return nil, ctx.Err()
}

func (t *turns) endOther() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.others--
	t.next()
}

func (t *turns) endPatient() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.patient--
	t.next()
}

// next lets those go whose turn it is.
func (t *turns) next() {
	most := patientAlone
	if t.others > 0 {
		most = patientBeside
	}
	for len(t.line) > 0 && t.patient < most {
		close(t.line[0])
		t.line = t.line[1:]
		t.patient++
	}
}
