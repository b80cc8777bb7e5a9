package cassandra

import (
	"context"
	"sync"
	"time"

	"github.com/gocql/gocql"
)

const (
	// clockKept is how long a reading is gone on from: the monotonic clocks of two
	// machines are milliseconds apart by then.
	clockKept = time.Minute
	// clockStep is how far wall clock and monotonic clock may part within that
	// time; more says that the one was set, or that the machine slept and the
	// other stood still.
	clockStep = time.Second
	// clockReadings are made at a time; the quickest counts.
	clockReadings = 3
)

// clock is the time of the servers, as this process knows it: a reading, gone on
// from by the monotonic clock. So the order of what processes write does not
// hang on their wall clocks, which may be wrong by anything.
type clock struct {
	read func(ctx context.Context) (time.Time, error) // a server's time
	now  func() time.Time                             // of this process, with a monotonic reading
	wall func() time.Time                             // without

	turn     chan struct{} // held by who reads, and with it:
	failure  error         // of the newest reading that failed
	failedAt time.Time

	mu     sync.Mutex
	server time.Time // as it was read
	at     time.Time // when that was, by this process; zero: never
	atWall time.Time
}

func newClock(now func() time.Time, read func(ctx context.Context) (time.Time, error)) *clock {
	return &clock{read: read, now: now, wall: func() time.Time { return now().Round(0) }, turn: make(chan struct{}, 1)}
}

// time returns the servers' time. Errors are those of a reading, which is due
// once a minute; who waited for another's, and does not get one, has its error: else
// all of them would wait for each other's while no server answers.
func (c *clock) time(ctx context.Context) (time.Time, error) {
	if t, fresh := c.known(); fresh {
		return t, nil
	}
	began := c.now()
	select {
	case c.turn <- struct{}{}:
	case <-ctx.Done():
		return time.Time{}, ended(ctx)
	}
	defer func() { <-c.turn }()
	if t, fresh := c.known(); fresh { // somebody else has read it
		return t, nil
	}
	if c.failedAt.After(began) {
		return time.Time{}, c.failure
	}
	if err := c.renew(ctx); err != nil {
		if ctx.Err() == nil { // else it says nothing of the servers
			c.failure, c.failedAt = err, c.now()
		}
		return time.Time{}, err
	}
	return c.about(), nil
}

// about returns the servers' time where nothing hangs on its being right.
func (c *clock) about() time.Time {
	t, _ := c.known()
	return t
}

// known goes on from the newest reading, and reports whether that is to be
// relied on.
func (c *clock) known() (t time.Time, fresh bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if c.at.IsZero() {
		return now, false
	}
	passed := now.Sub(c.at)
	step := c.wall().Sub(c.atWall) - passed
	return c.server.Add(passed), passed < clockKept && step.Abs() < clockStep
}

// renew reads a server's time. Nobody knows when within the reading it was that.
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

// serverTime reads the time of the node that has the first replica of a certain
// row: so all processes go by the same node while it is up. One replica is enough,
// and it may have missed the row: a count is answered all the same.
func (r *runner) serverTime(ctx context.Context) (t time.Time, err error) {
	err = r.try(ctx, plain, func() error {
		var rows, ms int64
		q := r.session.Query(`SELECT count(*), toUnixTimestamp(now()) FROM settings WHERE name = ?`, "shards").WithContext(ctx)
		err := q.Consistency(gocql.One).Scan(&rows, &ms)
		t = time.UnixMilli(ms).UTC()
		return err
	})
	return t, err
}
