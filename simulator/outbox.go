package simulator

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

// A courier is the part of an outbox that differs from vendor to vendor.
type courier interface {
	// stages returns the events that a copy with this outcome has.
	stages(o outcome) []stage
	// urls returns where the event of the stage is posted, possibly nowhere.
	urls(st *stage) []string
	// looksUp reports whether there is a look-up API, so that events must be
	// remembered although no webhook is sent.
	looksUp() bool
	// collect takes due events from the outbox for one post, or reports that it
	// is not time yet. The outbox is locked.
	collect(ob *outbox, now int64) (p post, ok bool)
	// flushAt returns when collect will be ready at the latest, if events are
	// waiting, and how many posts those would be now. The outbox is locked.
	flushAt(ob *outbox, now int64) (at int64, posts int)
	// send renders the post and makes the request. status is 0 if there was no
	// answer; sent is the number of events in the request, 0 if none was made
	// because all of them are kept back. It counts those in p.muted, and may
	// shorten p if it enqueues the rest.
	send(ob *outbox, p *post) (status, sent int)
	// again returns when to repeat a post that was answered with status, or
	// false if it is over. Posts that were acknowledged are not asked about.
	again(p *post, status int, now int64) (at int64, retry bool)
	// acknowledged reports whether the status ends a post with success.
	acknowledged(status int) bool
}

// An outbox holds the events of an account from acceptance until they are
// acknowledged or given up. One goroutine moves what is due, and up to
// Options.WebhookWorkers make requests while there is something to send.
type outbox struct {
	a *account
	s *Simulator

	mu      sync.Mutex
	future  emissions           // not due yet
	ready   queue[*emission]    // due, with events that no post has taken
	waiting int                 // number of those events
	since   int64               // when the oldest of them became due
	posts   queue[post]         // to be sent at once
	retries []queue[post]       // to be sent later, by the number of tries: all of one queue wait equally long
	parked  map[*fault][]parked // events that do not happen while the fault stands
	log     []*emission         // Mailgun: all that happened, by time
	workers int

	// Each event belongs to the generation in which it became due. flush begins
	// a new one and waits until the older ones have no open events.
	gen    uint32
	open   map[uint32]int
	oldest uint32 // generations before it belong to the time before a reset
	force  uint32 // ready events of generations up to this are sent at once

	wake chan struct{} // tells run to look again
	done *sync.Cond    // an event was finished; with mu
}

// parked is an emission that waits for the end of a suspension. after is its
// distance from the first of its mailing.
type parked struct {
	*emission
	after time.Duration
}

func newOutbox(a *account) *outbox {
	ob := &outbox{a: a, s: a.s, parked: map[*fault][]parked{}, open: map[uint32]int{}, wake: make(chan struct{}, 1), gen: 1, oldest: 1}
	ob.done = sync.NewCond(&ob.mu)
	return ob
}

// schedule puts in the events of a stored mailing; begin is the time of the
// first.
func (ob *outbox) schedule(m *mailing, counts []count, begin int64) {
	if !ob.a.provider.looksUp() && ob.a.hookURL() == "" {
		return // nobody would ever see them
	}
	ob.mu.Lock()
	for _, c := range counts {
		g := m.group(c.group)
		for i, st := range ob.a.provider.stages(c.outcome) {
			after := ob.s.scaled(st.after)
			e := &emission{m: m, due: begin + int64(g.delay+after), off: uint32(m.sharedEnd()), left: c.n,
				outcome: c.outcome, group: c.group, stage: uint8(i)}
			if g.park != nil && g.park.events.has(st.event, st.kind) && ob.park(g.park, e, after) {
				continue
			}
			heap.Push(&ob.future, e)
		}
	}
	ob.mu.Unlock()
	ob.nudge()
}

// park keeps e until the fault ends. It reports false if the fault has ended and
// e is to happen.
func (ob *outbox) park(f *fault, e *emission, after time.Duration) bool {
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
			p.due = now + int64(p.after)
			heap.Push(&ob.future, p.emission)
		}
	}
	ob.mu.Unlock()
	ob.nudge()
}

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
	for len(ob.future) > 0 && ob.future[0].due <= now {
		e := heap.Pop(&ob.future).(*emission)
		st := e.stageOf()
		if f := ob.suspension(e, st); f != nil && ob.park(f, e, 0) {
			if f.swallows() {
				e.m.swallowed.Or(1 << e.outcome)
			}
			continue
		}
		ob.happen(e, st)
	}
	for i := range ob.retries {
		for q := &ob.retries[i]; q.len() > 0 && q.front().at <= now; {
			ob.posts.push(q.pop())
		}
	}
}

// suspension returns the fault that stands in the way of e: one that was
// injected after the mail was accepted and concerns all of the account.
func (ob *outbox) suspension(e *emission, st *stage) *fault {
	if e.m.group(e.group).park != nil {
		return nil // it had its suspension
	}
	for _, f := range ob.s.faults.standing(ob.a.name, func(f *fault) bool {
		return f.suspends() && f.Times == 0 && f.Share == 0 && f.pattern == nil && f.events.has(st.event, st.kind)
	}) {
		return f
	}
	return nil
}

func (ob *outbox) happen(e *emission, st *stage) {
	if ob.a.provider.looksUp() {
		if n := len(ob.log); n > 0 {
			e.due = max(e.due, ob.log[n-1].due) // the log is in order
		}
		ob.log = append(ob.log, e)
	}
	if len(ob.a.provider.urls(st)) == 0 {
		return
	}
	if ob.waiting == 0 {
		ob.since = e.due
	}
	e.gen = ob.gen
	ob.open[e.gen] += int(e.left)
	ob.waiting += int(e.left)
	ob.ready.push(e)
}

// staff starts as many workers as there is work for, and returns how long there
// will be nothing new. The outbox is locked.
func (ob *outbox) staff(now int64) time.Duration {
	next := now + int64(time.Hour)
	if len(ob.future) > 0 {
		next = min(next, ob.future[0].due)
	}
	for i := range ob.retries {
		if q := &ob.retries[i]; q.len() > 0 {
			next = min(next, q.front().at)
		}
	}
	work := ob.posts.len()
	if ob.waiting > 0 {
		at, posts := ob.a.provider.flushAt(ob, now)
		if work += posts; posts == 0 {
			next = min(next, at)
		}
	}
	for ; work > 0 && ob.workers < ob.s.opts.WebhookWorkers; work-- {
		ob.workers++
		ob.s.wg.Add(1)
		go ob.work()
	}
	return time.Duration(max(next-now, 0))
}

// work makes posts until there are none.
func (ob *outbox) work() {
	defer ob.s.wg.Done()
	for {
		ob.mu.Lock()
		p, ok := ob.take(time.Now().UnixNano())
		if !ok || ob.s.ctx.Err() != nil {
			ob.workers--
			ob.mu.Unlock()
			ob.nudge() // for the timer of what is left
			return
		}
		ob.mu.Unlock()
		ob.deliver(p)
	}
}

func (ob *outbox) take(now int64) (post, bool) {
	if ob.posts.len() > 0 {
		return ob.posts.pop(), true
	}
	if ob.waiting == 0 {
		return post{}, false
	}
	return ob.a.provider.collect(ob, now)
}

// deliver makes one post and decides what becomes of its events.
func (ob *outbox) deliver(p post) {
	muted := p.muted
	status, sent := ob.a.provider.send(ob, &p)
	own, total := ob.a.tally.Load(), ob.s.total.Load()
	if sent > 0 {
		own.post(status, sent)
		total.post(status, sent)
	}
	own.muted.Add(int64(p.muted - muted))
	total.muted.Add(int64(p.muted - muted))
	p.tries++
	ob.mu.Lock()
	defer ob.mu.Unlock()
	if p.gen < ob.oldest {
		return // from before a reset
	}
	switch {
	case sent == 0:
	case ob.a.provider.acknowledged(status):
		n := int64(p.events()) - int64(p.muted)
		own.ok.Add(n)
		total.ok.Add(n)
	default:
		at, retry := ob.a.provider.again(&p, status, time.Now().UnixNano())
		if retry {
			p.at = at
			for len(ob.retries) <= int(p.tries) {
				ob.retries = append(ob.retries, queue[post]{})
			}
			ob.retries[p.tries].push(p)
			ob.nudge()
			return
		}
		n := int64(p.events()) - int64(p.muted)
		own.givenUp.Add(n)
		total.givenUp.Add(n)
	}
	p.segments(func(s segment) { ob.close(s.gen, int(s.n)) })
}

// enqueue adds a post that send found to be necessary besides its own. fresh
// says that its events have not been counted as open.
func (ob *outbox) enqueue(p post, fresh bool) {
	ob.mu.Lock()
	if p.gen >= ob.oldest {
		if fresh {
			p.segments(func(s segment) { ob.open[s.gen] += int(s.n) })
		}
		ob.posts.push(p)
	}
	ob.mu.Unlock()
	ob.nudge()
}

// close ends n events of a generation. The outbox is locked.
func (ob *outbox) close(gen uint32, n int) {
	if ob.open[gen] -= n; ob.open[gen] == 0 {
		delete(ob.open, gen)
		ob.done.Broadcast()
	}
}

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

// settle waits until nothing is to come.
func (ob *outbox) settle(ctx context.Context) error {
	for {
		if err := ob.flush(ctx); err != nil {
			return err
		}
		ob.mu.Lock()
		var wait time.Duration
		if len(ob.future) > 0 {
			wait = time.Until(ob.future[0].at())
		}
		settled := len(ob.future) == 0 && len(ob.open) == 0
		ob.mu.Unlock()
		if settled {
			return nil
		}
		if !ob.a.pause(ctx, wait) {
			return ob.interrupted(ctx)
		}
	}
}

func (ob *outbox) interrupted(ctx context.Context) error {
	if ob.s.ctx.Err() != nil {
		return errClosed
	}
	return ctx.Err()
}

func (ob *outbox) openUpTo(gen uint32) (n int) {
	for g, open := range ob.open {
		if g <= gen {
			n += open
		}
	}
	return n
}

func (ob *outbox) pending() (n int64) {
	ob.mu.Lock()
	defer ob.mu.Unlock()
	for _, open := range ob.open {
		n += int64(open)
	}
	return n
}

func (ob *outbox) wakeWaiters() {
	ob.mu.Lock()
	defer ob.mu.Unlock()
	ob.done.Broadcast()
}

func (ob *outbox) reset() {
	ob.mu.Lock()
	defer ob.mu.Unlock()
	ob.gen++
	ob.oldest = ob.gen
	ob.future, ob.retries, ob.log = nil, nil, nil
	ob.ready, ob.posts, ob.waiting = queue[*emission]{}, queue[post]{}, 0
	ob.parked, ob.open = map[*fault][]parked{}, map[uint32]int{}
	ob.done.Broadcast()
}
