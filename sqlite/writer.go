package sqlite

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// The most that is put into one commit, so that nobody waits long.
const (
	groupRequests = 1024
	groupBytes    = 8 << 20
)

// writer owns the only connection that writes. All requests that wait at the
// same time share one transaction: the sync of a commit is what costs.
type writer struct {
	conn    *conn
	trouble atomic.Bool // the newest transaction failed

	log     string       // path of the write-ahead log
	limit   int64        // of its size
	bounded time.Time    // when it could not be kept to that last
	reading sync.RWMutex // held by each read, and against all of them by bound

	mu     sync.Mutex
	queue  []*request
	idle   []*request    // that can wait: see models.WithBackground
	last   time.Time     // when some of idle were taken last
	more   chan struct{} // holds one when something was queued
	closed bool
	ended  chan struct{}
}

// What can wait is written at most every idlePause, and no more than so many at
// a time while something is in a hurry: a flood of webhooks does not hold up mail.
const (
	idlePause  = time.Millisecond
	idleBeside = 16
)

// request is one write. do may run more than once, each time from a clean
// state; it returns a *dbError for a failure, which undoes it, and any other
// error or nil as an answer, which goes to the caller after the commit.
type request struct {
	do    func(c *conn) error
	size  int
	state atomic.Int32
	err   error
	done  chan struct{} // closed after err is set

	patient bool // it can wait

	// exclusive: whether it took decides something, so that a failed commit
	// has to be told from one that never began.
	exclusive bool
}

// The states of a request.
const (
	waiting int32 = iota
	taken
	dropped
)

func newWriter(c *conn, log string, limit int64) *writer {
	w := &writer{conn: c, log: log, limit: limit, more: make(chan struct{}, 1), ended: make(chan struct{})}
	go w.loop()
	return w
}

// close ends the loop after everything that waits is written.
func (w *writer) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.wake()
	<-w.ended
}

func (w *writer) wake() {
	select {
	case w.more <- struct{}{}:
	default:
	}
}

func (w *writer) push(r *request) {
	w.mu.Lock()
	if r.patient {
		w.idle = append(w.idle, r)
	} else {
		w.queue = append(w.queue, r)
	}
	w.mu.Unlock()
	w.wake()
}

// take waits for requests and returns a group of them; none when closed.
func (w *writer) take(group []*request) []*request {
	for {
		w.mu.Lock()
		wait := time.Duration(-1)
		due := len(w.idle) > 0
		if due && !w.closed {
			wait = idlePause - time.Since(w.last)
			due = wait <= 0
		}
		switch {
		case len(w.queue) > 0 || due:
			group = w.cut(group, due)
			w.mu.Unlock()
			return group
		case w.closed:
			w.mu.Unlock()
			return group
		}
		w.mu.Unlock()
		if wait < 0 {
			<-w.more
			continue
		}
		t := time.NewTimer(wait)
		select {
		case <-w.more:
		case <-t.C:
		}
		t.Stop()
	}
}

// cut takes a group off the queues.
func (w *writer) cut(group []*request, idle bool) []*request {
	size := 0
	from := func(queue *[]*request, most int) {
		n := 0
		for n < len(*queue) && n < most && size < groupBytes {
			size += (*queue)[n].size
			n++
		}
		group = append(group, (*queue)[:n]...)
		rest := copy(*queue, (*queue)[n:])
		clear((*queue)[rest:])
		*queue = (*queue)[:rest]
	}
	hurried := len(w.queue) > 0
	from(&w.queue, groupRequests)
	if idle {
		most := groupRequests
		if hurried {
			most = idleBeside
		}
		from(&w.idle, most)
		w.last = time.Now()
	}
	return group
}

func (w *writer) loop() {
	defer close(w.ended)
	var group []*request
	for {
		group = w.take(group[:0])
		if len(group) == 0 {
			return
		}
		live := group[:0]
		for _, r := range group {
			if r.state.CompareAndSwap(waiting, taken) {
				live = append(live, r)
			}
		}
		settled := w.run(live)
		for _, r := range live[:settled] {
			close(r.done)
		}
		w.putBack(live[settled:])
		clear(group)
		w.bound()
	}
}

// putBack queues again what was taken and not begun.
func (w *writer) putBack(rest []*request) {
	if len(rest) == 0 {
		return
	}
	for _, r := range rest {
		r.state.Store(waiting)
	}
	w.mu.Lock()
	w.idle = slices.Insert(w.idle, 0, rest...)
	w.last = time.Time{} // its pause is over
	w.mu.Unlock()
}

// hurried reports whether something waits that is in a hurry.
func (w *writer) hurried() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.queue) > 0
}

// run writes a group, or the first of it, and returns how many. When the common
// transaction fails, each request gets one of its own, so that one that cannot
// be written does not fail the others.
func (w *writer) run(group []*request) int {
	if len(group) == 0 {
		return 0
	}
	n, unsure, err := w.transact(group)
	if err == nil {
		w.trouble.Store(false)
		return n
	}
	if len(group) == 1 {
		group[0].fail(err, unsure)
	} else {
		for _, r := range group {
			var again bool
			if _, again, err = w.transact([]*request{r}); err != nil {
				r.fail(err, unsure || again)
			}
		}
	}
	w.trouble.Store(err != nil)
	return len(group)
}

// fail ends a request that was not written by its newest transaction. unsure:
// one that it took part in may be in the log all the same.
func (r *request) fail(err error, unsure bool) {
	if r.err = err; unsure && r.exclusive {
		r.err = errors.Join(models.ErrOutcomeUnknown, err)
	}
}

// transact runs a group in one transaction and returns how many took part: what
// can wait makes room for what comes in a hurry. An error says that none of it
// can be seen. unsure: the commit failed when its pages may have been in the
// log, where a crash would find them unless something was written over them.
func (w *writer) transact(group []*request) (n int, unsure bool, err error) {
	if _, err := w.conn.exec("BEGIN IMMEDIATE"); err != nil {
		return 0, false, err
	}
	patient := 0
	for i, r := range group {
		if r.patient {
			if patient++; patient > idleBeside && w.hurried() {
				group = group[:i]
				break
			}
		}
		r.err = r.do(w.conn)
		var failed *dbError
		if errors.As(r.err, &failed) {
			w.rollback()
			return 0, false, failed
		}
	}
	if _, err = w.conn.exec("COMMIT"); err != nil {
		w.rollback()
		return 0, !isFull(err), err
	}
	return len(group), false, nil
}

// rollback ends the transaction, if the failure has not done that already.
func (w *writer) rollback() { _, _ = w.conn.exec("ROLLBACK") }

// write queues do and waits until it is committed or ctx ends. size is about
// how many bytes it writes.
func (s *Store) write(ctx context.Context, size int, do func(c *conn) error) error {
	return s.submit(ctx, &request{do: do, size: size})
}

// decide is write for what decides something between callers.
func (s *Store) decide(ctx context.Context, size int, do func(c *conn) error) error {
	return s.submit(ctx, &request{do: do, size: size, exclusive: true})
}

func (s *Store) submit(ctx context.Context, r *request) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.running.Done()
	r.done, r.patient = make(chan struct{}), models.IsBackground(ctx)
	s.writer.push(r)
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
	}
	if r.state.CompareAndSwap(waiting, dropped) {
		return errors.Join(models.ErrUnavailable, ctx.Err())
	}
	select {
	case <-r.done:
		return r.err
	default:
	}
	if r.exclusive {
		return errors.Join(models.ErrOutcomeUnknown, ctx.Err())
	}
	return errors.Join(models.ErrUnavailable, ctx.Err()) // idempotent, so to the caller it was not done
}
