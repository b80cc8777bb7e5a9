package cassandra

import (
	"context"
	"sync"
	"time"

	"github.com/gocql/gocql"
)

const (
	// readingKeep is how long a reading is used. The monotonic clocks of two machines differ by milliseconds after that
	// time.
	readingKeep = time.Minute
	// maxStep is how far wall clock and monotonic clock may drift apart within that time. A larger difference says that
	// the wall clock was set, or that the machine slept and the monotonic clock stopped.
	maxStep = time.Second
	// clockReadings is how many readings are made at a time. The quickest is used.
	clockReadings = 3
)

// clock knows the servers' time: a reading, continued by the monotonic clock of this process. So the order of writes
// does not depend on the wall clocks of processes, which may be wrong by any amount.
type clock struct {
	read func(ctx context.Context) (time.Time, error) // a server's time
	now  func() time.Time                             // time of this process, with a monotonic reading
	wall func() time.Time                             // the same without one

	lock     chan struct{} // holds a token while a caller reads; it guards the next two
	failure  error         // of the last reading that failed
	failedAt time.Time

	mu     sync.Mutex
	server time.Time // the reading
	at     time.Time // when it was made, by c.now; zero: never
	atWall time.Time // the same by c.wall
}

func newClock(now func() time.Time, read func(ctx context.Context) (time.Time, error)) *clock {
	return &clock{
		read: read,
		now:  now,
		wall: func() time.Time { return now().Round(0) },
		lock: make(chan struct{}, 1),
	}
}

// time returns the servers' time. It makes a reading once a minute and returns its error. A caller that waited for the
// failed reading of another returns that error, so that callers do not wait for each other's readings while no server
// answers.
func (c *clock) time(ctx context.Context) (time.Time, error) {
	if t, fresh := c.known(); fresh {
		return t, nil
	}
	began := c.now()
	select {
	case c.lock <- struct{}{}:
	case <-ctx.Done():
		return time.Time{}, ended(ctx)
	}
	defer func() { <-c.lock }()
	if t, fresh := c.known(); fresh { // another caller has made a reading
		return t, nil
	}
	if c.failedAt.After(began) {
		return time.Time{}, c.failure
	}
	if err := c.renew(ctx); err != nil {
		if ctx.Err() == nil { // otherwise the error is not about the servers
			c.failure, c.failedAt = err, c.now()
		}
		return time.Time{}, err
	}
	return c.about(), nil
}

// about returns the servers' time for uses that do not depend on its accuracy.
func (c *clock) about() time.Time {
	t, _ := c.known()
	return t
}

// known returns the time by the last reading and reports whether that is still reliable.
func (c *clock) known() (t time.Time, fresh bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if c.at.IsZero() {
		return now, false
	}
	passed := now.Sub(c.at)
	step := c.wall().Sub(c.atWall) - passed
	return c.server.Add(passed), passed < readingKeep && step.Abs() < maxStep
}

// renew makes readings of a server's time. It takes the middle of a reading as the moment of the server's answer.
func (c *clock) renew(ctx context.Context) error {
	var server, at, wall time.Time
	quickest := time.Duration(-1)
	for range clockReadings {
		began := c.now()
		t, err := c.read(ctx)
		if err != nil {
			return err
		}
		now := c.now()
		if took := now.Sub(began); quickest < 0 || took < quickest {
			server, at, wall, quickest = t.Add(took/2), now, c.wall(), took
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.server, c.at, c.atWall = server, at, wall
	return nil
}

// serverTime reads the time of the node that has the first replica of a certain row, so that all processes use the same
// node while it is up. One replica is enough, even if it has missed the row: it still answers with a count.
func (r *runner) serverTime(ctx context.Context) (t time.Time, err error) {
	err = r.try(ctx, plain, func() error {
		var rows, ms int64
		q := r.session.Query(`SELECT count(*), toUnixTimestamp(now()) FROM settings WHERE name = ?`,
			"shards").WithContext(ctx)
		err := q.Consistency(gocql.One).Scan(&rows, &ms)
		t = time.UnixMilli(ms).UTC()
		return err
	})
	return t, err
}
