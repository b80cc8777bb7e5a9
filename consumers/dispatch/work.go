package dispatch

import (
	"context"
	"sync"
)

// Work is what goes on while handlers stop: the calls of providers, and writes in the background that follow from them.
type Work struct {
	ctx        context.Context
	cancel     context.CancelFunc
	background sync.WaitGroup // unknown appends being resolved, and posts being marked
}

// NewWork returns Work that goes on until Stop.
func NewWork() *Work {
	w := &Work{}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	return w
}

// Context returns the context of provider calls. Stop cancels it.
func (w *Work) Context() context.Context { return w.ctx }

// Go runs f in the background, so that Wait waits for it.
func (w *Work) Go(f func()) { w.background.Go(f) }

// Stop cancels running calls.
func (w *Work) Stop() { w.cancel() }

// Wait waits until all background work has ended.
func (w *Work) Wait() { w.background.Wait() }
