package templates

import (
	"context"

	"github.com/safedelivr/safedelivr/internal/priority"
)

// atOnce is how many previews are made at once: each can take many times the memory of its source.
const atOnce = 2

// turns lets users take turns: a user does one thing at a time, so that others wait for one thing of each at most.
type turns struct {
	users  priority.Turns
	places chan struct{} // for each thing that is done now
}

func newTurns(places int) *turns { return &turns{places: make(chan struct{}, places)} }

// take waits for the turn of a user. The caller must call end. The error is that of ctx.
func (t *turns) take(ctx context.Context, user string) (end func(), err error) {
	own, err := t.users.Take(ctx, user, 0)
	if err != nil {
		return nil, err
	}
	select {
	case t.places <- struct{}{}:
		return func() { <-t.places; own() }, nil
	case <-ctx.Done():
		own()
		return nil, ctx.Err()
	}
}
