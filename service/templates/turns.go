package templates

import (
	"context"
	"sync"
)

// atOnce is how many previews are made at once: each can take many times the memory of its source.
const atOnce = 2

// turns lets users take turns: a user does one thing at a time, so that others wait for one thing of each at most.
type turns struct {
	places chan struct{} // for each thing that is done now

	mu    sync.Mutex
	users map[string]*turn
}

// turn is that of a user.
type turn struct {
	place chan struct{}
	count int // of those that hold or wait for the place
}

func newTurns(places int) *turns {
	return &turns{places: make(chan struct{}, places), users: map[string]*turn{}}
}

// take waits for the turn of a user. The caller must call end. The error is that of ctx.
func (t *turns) take(ctx context.Context, user string) (end func(), err error) {
	t.mu.Lock()
	own := t.users[user]
	if own == nil {
		own = &turn{place: make(chan struct{}, 1)}
		t.users[user] = own
	}
	own.count++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if own.count--; own.count == 0 {
			delete(t.users, user)
		}
	}
	select {
	case own.place <- struct{}{}:
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
	select {
	case t.places <- struct{}{}:
	case <-ctx.Done():
		<-own.place
		leave()
		return nil, ctx.Err()
	}
	return func() {
		<-t.places
		<-own.place
		leave()
	}, nil
}
