// Package subscribers holds the subscriptions of a broker in one process. They end with the broker, which waits for
// their handlers.
package subscribers

import (
	"context"
	"slices"
	"sync"

	"github.com/safedelivr/safedelivr/models"
)

// maxWakes bounds the wakes that wait for a subscriber; later ones are dropped.
const maxWakes = 100

// Group are the subscriptions of a broker.
type Group struct {
	open    context.Context // ends when Close is called
	end     context.CancelFunc
	running sync.WaitGroup

	mu    sync.Mutex
	wakes map[chan []string]int64 // subscribers to wakes, and since when
}

// New returns a group without subscriptions. It has the values of ctx, and does not end with it.
func New(ctx context.Context) *Group {
	g := &Group{wakes: map[chan []string]int64{}}
	g.open, g.end = context.WithCancel(context.WithoutCancel(ctx))
	return g
}

// Context returns the context of the broker, which ends when Close is called.
func (g *Group) Context() context.Context { return g.open }

// Open returns models.ErrClosed after Close.
func (g *Group) Open() error {
	if g.open.Err() != nil {
		return models.ErrClosed
	}
	return nil
}

// Join begins a subscription, which ends with ctx or with the broker. Its caller calls leave then. Errors:
// models.ErrClosed.
func (g *Group) Join(ctx context.Context) (joined context.Context, leave func(), err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.Open(); err != nil {
		return nil, nil, err
	}
	g.running.Add(1)
	joined, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(g.open, cancel)
	return joined, func() {
		stop()
		cancel()
		g.running.Done()
	}, nil
}

// Close ends the subscriptions and waits for them. It reports false if it was called before.
func (g *Group) Close() bool {
	g.mu.Lock()
	closed := g.Open() != nil
	g.end()
	g.mu.Unlock()
	if !closed {
		g.running.Wait()
	}
	return !closed
}

// Wake hands users that were woken at a time to the subscribers since then. The unit of the time is that of the broker.
func (g *Group) Wake(at int64, users []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for c, since := range g.wakes {
		if at < since {
			continue
		}
		select {
		case c <- slices.Clone(users):
		default:
		}
	}
}

// ServeWakes calls h with the users that are woken since a time, until ctx ends.
func (g *Group) ServeWakes(ctx context.Context, since int64, h func(users []string)) {
	c := make(chan []string, maxWakes)
	g.mu.Lock()
	g.wakes[c] = since
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.wakes, c)
	}()
	for {
		select {
		case users := <-c:
			h(users)
		case <-ctx.Done():
			return
		}
	}
}
