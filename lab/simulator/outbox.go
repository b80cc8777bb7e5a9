package simulator

import (
	"container/heap"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

// An outbox holds the events of an account from acceptance until they are
// acknowledged or given up. One goroutine moves what is due, and up to
// Options.WebhookWorkers make requests while there is something to send.
type outbox struct {
	a        *account
	s        *Simulator
	batching provider.Batching

	mu      sync.Mutex
	future  schedule            // not due yet
	ready   []*scheduled        // due, with webhook events that no post has taken
	waiting int                 // number of those events
	since   int64               // when the oldest of them became due
	posts   []post              // to be sent at once
	retries schedule            // to be sent later
	parked  map[*fault][]parked // events that do not happen while the fault is in force
	log     []message.Event     // all that happened, by time
	workers int

	// Each event belongs to the generation in which it became due. flush begins
	// a new one and waits until the older ones have no open events.
	gen    uint32
	open   map[uint32]int
	oldest uint32 // generations before it are from before a reset
	force  uint32 // ready events of generations up to this are sent at once

	wake chan struct{} // wakes run
	done *sync.Cond    // an event was finished; with mu
}

// A parked event waits for the end of a suspension.
type parked struct {
	*scheduled
	after time.Duration // since the first event of its batch
}

func newOutbox(a *account) *outbox {
	ob := &outbox{
		a:        a,
		s:        a.s,
		batching: a.provider.Hooks.Batching,
		parked:   map[*fault][]parked{},
		open:     map[uint32]int{},
		wake:     make(chan struct{}, 1),
		gen:      1,
		oldest:   1,
	}
	ob.done = sync.NewCond(&ob.mu)
	return ob
}

// schedule enters the events of a stored batch. The first happens at begin.
func (ob *outbox) schedule(b *stored, begin int64) {
	type fate struct {
		message.Outcome
		group uint8
	}
	var fates []fate
	copies := map[fate]int{}
	for _, c := range b.Copies {
		f := fate{c.Outcome, c.Group}
		if copies[f]++; copies[f] == 1 {
			fates = append(fates, f)
		}
	}
	ob.mu.Lock()
	for _, c := range fates {
		g := b.group(c.group)
		for i := range ob.a.provider.Stages[c.Outcome] {
			st := &ob.a.provider.Stages[c.Outcome][i]
			after := ob.s.scaled(st.After)
			e := &scheduled{
				Event: message.Event{
					Batch:   &b.Batch,
					Due:     begin + int64(g.delay+after),
					Outcome: c.Outcome,
					Group:   c.group,
					Stage:   uint8(i),
				},
				batch: b,
				left:  copies[c],
			}
			if g.park != nil && g.park.selects(st) && ob.park(g.park, e, after) {
				continue
			}
			heap.Push(&ob.future, e)
		}
	}
	ob.mu.Unlock()
	ob.nudge()
}

// park keeps e until the fault ends. It reports false if the fault has ended and e
// must happen. The outbox is locked.
func (ob *outbox) park(f *fault, e *scheduled, after time.Duration) bool {
	if f.cleared.Load() {
		return !f.Release
	}
	ob.parked[f] = append(ob.parked[f], parked{e, after})
	return true
}

// unpark ends a suspension: parked events happen now, in their order, or never.
func (ob *outbox) unpark(f *fault) {
	now := time.Now().UnixNano()
	ob.mu.Lock()
	list := ob.parked[f]
	delete(ob.parked, f)
	if f.Release {
		for _, p := range list {
			p.Due = now + int64(p.after)
			heap.Push(&ob.future, p.scheduled)
		}
	}
	ob.mu.Unlock()
	ob.nudge()
}

// nudge wakes run.
func (ob *outbox) nudge() {
	select {
	case ob.wake <- struct{}{}:
	default:
	}
}

// run moves what is due and starts workers until the simulator is closed.
func (ob *outbox) run() {
	defer ob.s.wg.Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ob.s.ctx.Done():
			return
		case <-ob.wake:
		case <-timer.C:
		}
		ob.mu.Lock()
		now := time.Now().UnixNano()
		ob.advance(now)
		wait := ob.staff(now)
		ob.mu.Unlock()
		timer.Reset(wait)
	}
}

// advance makes ready what is due. The outbox is locked.
func (ob *outbox) advance(now int64) {
	for ob.future.first(now+1) <= now {
		e := heap.Pop(&ob.future).(*scheduled)
		if f := ob.suspension(e); f != nil && ob.park(f, e, 0) {
			if f.swallows() {
				e.batch.swallowed.Or(1 << e.Outcome)
			}
			continue
		}
		ob.happen(e)
	}
	for ob.retries.first(now+1) <= now {
		ob.posts = append(ob.posts, *heap.Pop(&ob.retries).(*post))
	}
}

// suspension returns the fault that keeps e from happening: one that was injected
// after the mail was accepted and concerns all of the account.
func (ob *outbox) suspension(e *scheduled) *fault {
	if e.group().park != nil {
		return nil // it had its suspension
	}
	st := e.stage()
	list := ob.s.faults.inForce(ob.a.name, func(f *fault) bool {
		return f.suspends() && f.Times == 0 && f.Share == 0 && f.pattern == nil && f.selects(st)
	})
	if len(list) == 0 {
		return nil
	}
	return list[0]
}

// happen enters e in the log and makes its webhook events ready. The outbox is
// locked.
func (ob *outbox) happen(e *scheduled) {
	if n := len(ob.log); n > 0 {
		e.Due = max(e.Due, ob.log[n-1].Due) // the log is in order
	}
	ob.log = append(ob.log, e.Event)
	if len(ob.a.provider.URLs(e.stage())) == 0 {
		return
	}
	if ob.waiting == 0 {
		ob.since = e.Due
	}
	e.gen = ob.gen
	ob.open[e.gen] += e.left
	ob.waiting += e.left
	ob.ready = append(ob.ready, e)
}

// happened returns the events up to the given time, oldest first.
func (ob *outbox) happened(until time.Time) []message.Event {
	ob.mu.Lock()
	defer ob.mu.Unlock()
	n := sort.Search(len(ob.log), func(i int) bool { return ob.log[i].Due > until.UnixNano() })
	return slices.Clip(ob.log[:n])
}

// staff starts as many workers as there is work for. It returns how long nothing
// new will be due. The outbox is locked.
func (ob *outbox) staff(now int64) time.Duration {
	next := min(ob.future.first(now+int64(time.Hour)), ob.retries.first(now+int64(time.Hour)))
	work := len(ob.posts)
	switch {
	case ob.waiting == 0:
	case ob.mature(now):
		work += 1 + (ob.waiting-1)/ob.batching.Events
	default:
		next = min(next, ob.flushTime())
	}
	for ; work > 0 && ob.workers < ob.s.opts.WebhookWorkers; work-- {
		ob.workers++
		ob.s.wg.Add(1)
		go ob.work()
	}
	return time.Duration(max(next-now, 0))
}
