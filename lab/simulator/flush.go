package simulator

import (
	"context"
	"time"
)

// flush waits until the events that are due now are finished.
func (ob *outbox) flush(ctx context.Context) error {
	defer context.AfterFunc(ctx, ob.wakeWaiters)()
	ob.mu.Lock()
	defer ob.mu.Unlock()
	ob.advance(time.Now().UnixNano())
	target := ob.gen
	ob.gen++
	ob.force = max(ob.force, target)
	ob.nudge()
	for ob.openUpTo(target) > 0 {
		if err := ob.interrupted(ctx); err != nil {
			return err
		}
		ob.done.Wait()
	}
	return ob.interrupted(ctx)
}

// settle waits until no event is scheduled or open.
func (ob *outbox) settle(ctx context.Context) error {
	for {
		if err := ob.flush(ctx); err != nil {
			return err
		}
		ob.mu.Lock()
		wait := time.Until(time.Unix(0, ob.future.first(0)))
		settled := len(ob.future) == 0 && len(ob.open) == 0
		ob.mu.Unlock()
		if settled {
			return nil
		}
		if !ob.s.pause(ctx, wait) {
			return ob.interrupted(ctx)
		}
	}
}

// interrupted returns why a wait has to end, or nil.
func (ob *outbox) interrupted(ctx context.Context) error {
	if ob.s.ctx.Err() != nil {
		return errClosed
	}
	return ctx.Err()
}

// openUpTo returns the number of open events of the generations up to gen. The outbox
// is locked.
func (ob *outbox) openUpTo(gen uint32) (n int) {
	for g, open := range ob.open {
		if g <= gen {
			n += open
		}
	}
	return n
}

// pending returns the number of open events.
func (ob *outbox) pending() int64 {
	ob.mu.Lock()
	defer ob.mu.Unlock()
	return int64(ob.openUpTo(ob.gen))
}

// wakeWaiters wakes flush, so that it notices the end of its context.
func (ob *outbox) wakeWaiters() {
	ob.mu.Lock()
	defer ob.mu.Unlock()
	ob.done.Broadcast()
}

// reset drops all events.
func (ob *outbox) reset() {
	ob.mu.Lock()
	defer ob.mu.Unlock()
	ob.gen++
	ob.oldest = ob.gen
	ob.future, ob.retries, ob.log = nil, nil, nil
	ob.ready, ob.posts, ob.waiting = nil, nil, 0
	ob.parked, ob.open = map[*fault][]parked{}, map[uint32]int{}
	ob.done.Broadcast()
}
