package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
)

// A commit is limited, so that no caller waits long for it.
const (
	groupRequests = 1024
	groupBytes    = 8 << 20
)

// writer owns the only connection that writes. All waiting requests share one
// transaction, because the sync of a commit is what is expensive.
type writer struct {
	conn    *conn
	failing atomic.Bool // the last transaction failed

	log            string       // path of the write-ahead log
	limit          int64        // of its size
	truncateFailed time.Time    // when it last could not be truncated
	reading        sync.RWMutex // read-locked by each read, locked to truncate the log

	mu     sync.Mutex
	urgent []*request
	low    []*request    // low priority: see priority.WithLow
	last   time.Time     // when some of low were taken last
	more   chan struct{} // holds a token when something was queued
	closed bool
	ended  chan struct{}
}

// Requests with low priority are written at most every lowPause, and at most
// lowBeside at a time beside others. So a flood of webhooks does not delay mail.
const (
	lowPause  = time.Millisecond
	lowBeside = 16
)

// request is one write. do may run more than once, each time from a clean state. If
// it returns a *dbError, its changes are rolled back. Any other error, or nil, is
// its answer, which the caller gets after the commit.
type request struct {
	do    func(c *conn) error
	size  int
	state atomic.Int32
	err   error
	done  chan struct{} // closed after err is set

	low bool // low priority

	// exclusive says that the caller has to know whether the write was done. A commit
	// that failed must be distinguished from one that never began.
	exclusive bool
}

// The states of a request.
const (
	waiting int32 = iota
	taken
	dropped
)

func newWriter(c *conn, log string, limit int64) *writer {
	w := &writer{
		conn:  c,
		log:   log,
		limit: limit,
		more:  make(chan struct{}, 1),
		ended: make(chan struct{}),
	}
	go w.loop()
	return w
}

// close ends the loop after all queued requests are written.
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
	if r.low {
		w.low = append(w.low, r)
	} else {
		w.urgent = append(w.urgent, r)
	}
	w.mu.Unlock()
	w.wake()
}

// take waits for requests and returns a group of them. The group is empty after close.
func (w *writer) take(group []*request) []*request {
	for {
		w.mu.Lock()
		wait := time.Duration(-1)
		due := len(w.low) > 0
		if due && !w.closed {
			wait = lowPause - time.Since(w.last)
			due = wait <= 0
		}
		switch {
		case len(w.urgent) > 0 || due:
			group = w.dequeue(group, due)
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

// dequeue removes a group of requests from the queues.
func (w *writer) dequeue(group []*request, low bool) []*request {
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
	urgent := len(w.urgent) > 0
	from(&w.urgent, groupRequests)
	if low {
		most := groupRequests
		if urgent {
			most = lowBeside
		}
		from(&w.low, most)
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
		w.requeue(live[settled:])
		clear(group)
		w.boundLog()
	}
}

// requeue puts requests that were taken and not begun back into the queue.
func (w *writer) requeue(rest []*request) {
	if len(rest) == 0 {
		return
	}
	for _, r := range rest {
		r.state.Store(waiting)
	}
	w.mu.Lock()
	w.low = slices.Insert(w.low, 0, rest...)
	w.last = time.Time{} // they need not pause again
	w.mu.Unlock()
}

// hasUrgent reports whether urgent requests wait.
func (w *writer) hasUrgent() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.urgent) > 0
}

// run writes a group, or the first requests of it, and returns how many. If their
// common transaction fails, each request gets its own, so that a request that
// cannot be written does not fail the others.
func (w *writer) run(group []*request) int {
	if len(group) == 0 {
		return 0
	}
	n, unsure, err := w.transact(group)
	if err == nil {
		w.failing.Store(false)
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
	w.failing.Store(err != nil)
	return len(group)
}

// fail sets the error of a request whose last transaction failed. unsure says that
// one of its transactions may be in the log nevertheless.
func (r *request) fail(err error, unsure bool) {
	if r.err = err; unsure && r.exclusive {
		r.err = errors.Join(models.ErrOutcomeUnknown, err)
	}
}

// transact runs a group in one transaction and returns how many requests took part.
// Requests with low priority give way to urgent ones that arrive meanwhile. After an
// error nothing of the transaction is visible. unsure says that its pages may be in
// the log, where recovery after a crash would find them unless they are overwritten.
func (w *writer) transact(group []*request) (n int, unsure bool, err error) {
	if _, err := w.conn.exec("BEGIN IMMEDIATE"); err != nil {
		return 0, false, err
	}
	low := 0
	for i, r := range group {
		if r.low {
			if low++; low > lowBeside && w.hasUrgent() {
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

// rollback ends the transaction, if the failure did not end it already.
func (w *writer) rollback() { _, _ = w.conn.exec("ROLLBACK") }

// write queues do and waits until it is committed or ctx ends. size is about the number
// of bytes that it writes.
func (e *engine) write(ctx context.Context, size int, do func(c *conn) error) error {
	return e.submit(ctx, &request{do: do, size: size})
}

// decided is write for a request that decides something between callers, and returns what do returned. After an error
// the result is zero, because do may still run.
func decided[T any](ctx context.Context, e *engine, size int, do func(c *conn) (T, error)) (T, error) {
	var out, none T
	err := e.submit(ctx, &request{size: size, exclusive: true, do: func(c *conn) (err error) {
		out, err = do(c)
		return err
	}})
	if err != nil {
		return none, err
	}
	return out, nil
}

func (e *engine) submit(ctx context.Context, r *request) error {
	if err := ctx.Err(); err != nil {
		return errors.Join(models.ErrUnavailable, err)
	}
	r.done, r.low = make(chan struct{}), priority.IsLow(ctx)
	e.writer.push(r)
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
	return errors.Join(models.ErrUnavailable, ctx.Err()) // it is idempotent, so the caller may repeat it
}

// walLimit is the size of the write-ahead log above which reads have to wait for
// it to be truncated. SQLite copies the log into the database beside reads, but
// restarts the log only at a moment without reads: reads that overlap would let
// it grow.
const walLimit = 64 << 20

// checkpointPause is the pause after a failed attempt to truncate the log. It fails
// while another process reads the database.
const checkpointPause = 10 * time.Second

// boundLog truncates the log if it is too large. It waits for running reads, and
// later reads and writes wait for it. None of them fails.
func (w *writer) boundLog() {
	log, err := os.Stat(w.log)
	if err != nil || log.Size() <= w.limit || time.Since(w.truncateFailed) < checkpointPause {
		return
	}
	w.reading.Lock()
	defer w.reading.Unlock()
	if !w.truncate() {
		w.truncateFailed = time.Now()
	}
}

// truncate copies the whole log into the database and empties it. It reports whether
// it did: it does not while another process uses the log.
func (w *writer) truncate() bool {
	if err := w.conn.script("PRAGMA busy_timeout = 0"); err != nil {
		return false
	}
	busy := int64(1)
	err := w.conn.query("PRAGMA wal_checkpoint(TRUNCATE)", func(row []driver.Value) error {
		busy, _ = row[0].(int64)
		return nil
	})
	return w.conn.script("PRAGMA "+busyTimeout) == nil && err == nil && busy == 0
}
