// Package cassandra is the Store on Apache Cassandra 4.1 or newer, shared by
// any number of processes.
//
// Two kinds of write are kept apart and never meet in a table's columns:
// compare-and-set (the ledger, the commit of batches, names, revocations,
// leases, marks), whose outcome is found out by asking again and never by a plain
// read; and plain writes, each of which may be repeated. No write brings the
// clock of its process along. Where the order of plain writes matters, their
// timestamps are a version, rise above what is there, or fall with the servers'
// time, so that the newest, the first or the oldest stays; the others get theirs
// from the server.
package cassandra

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gocql/gocql"
	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/models"
)

// shards is recorded with the keyspace: agenda entries and posts are stored by
// it.
const shards = 8

// atOnce bounds the statements that one call has under way.
const atOnce = 16

// Store keeps everything in one keyspace. It implements models.Store.
type Store struct {
	runner

	log          *slog.Logger
	now          func() time.Time     // the clock of this process
	clock        *clock               // of the servers
	exists       *recent[models.ID]   // batches that are known to be committed
	listed       *recent[ownerBucket] // buckets that are known to be in the index
	indexedHours *recent[ownerBucket] // hours known to be in address_index_hours; an hour is dropped long after it ended
	falling      atomic.Int64         // the last falling timestamp

	gate    sync.RWMutex
	closed  bool
	ending  chan struct{}
	running sync.WaitGroup
	ended   sync.Once
}

var _ models.Store = (*Store)(nil)

// Open connects to the keyspace and checks that it is used as it was made: its
// schema, the serial level, the constants that rows are stored by, and that
// what is written is seen by who reads. With Config.Migrate it first applies
// what is missing. Errors: models.ErrUnavailable, models.ErrInvalid (the
// configuration), and what speaks against using the keyspace.
func Open(ctx context.Context, c Config) (*Store, error) {
	c, l, err := c.complete()
	if err != nil {
		return nil, fmt.Errorf("cassandra: %w", err)
	}
	if c.Migrate {
		if _, err := Migrate(ctx, c); err != nil {
			return nil, err
		}
	}
	if err := check(ctx, &c, l); err != nil {
		return nil, fmt.Errorf("cassandra: keyspace %s: %w", c.Keyspace, err)
	}
	session, err := c.connect(ctx, l, c.Keyspace)
	if err != nil {
		return nil, fmt.Errorf("cassandra: %w", err)
	}
	s := newStore(&c, session)
	if _, err := s.clock.time(ctx); err != nil {
		session.Close()
		return nil, fmt.Errorf("cassandra: time of the servers: %w", err)
	}
	return s, nil
}

func newStore(c *Config, session *gocql.Session) *Store {
	ending := make(chan struct{})
	clocked := runner{session: session, timeout: c.Timeout, closing: ending} // nothing waits in front of it
	return &Store{
		runner: runner{session: session, timeout: c.Timeout, closing: ending, turns: &turns{}},
		log:    c.Logger, ending: ending, now: c.now, clock: newClock(c.now, clocked.serverTime),
		exists: newRecent[models.ID](50_000), listed: newRecent[ownerBucket](10_000), indexedHours: newRecent[ownerBucket](10_000),
	}
}

// Close implements models.Store. Appends whose outcome is unknown give up.
func (s *Store) Close() error {
	s.gate.Lock()
	if !s.closed {
		s.closed = true
		close(s.ending)
	}
	s.gate.Unlock()
	s.running.Wait()
	s.ended.Do(s.session.Close)
	return nil
}

// enter begins a call; running.Done ends it.
func (s *Store) enter(ctx context.Context) error {
	s.gate.RLock()
	defer s.gate.RUnlock()
	if s.closed {
		return models.ErrClosed
	}
	if ctx.Err() != nil {
		return ended(ctx)
	}
	s.running.Add(1)
	return nil
}

// ended says that nothing was done because ctx has ended.
func ended(ctx context.Context) error { return errors.Join(models.ErrUnavailable, ctx.Err()) }

// call runs f as a call that Close waits for. Errors are wrapped with what was
// being done.
func (s *Store) call(ctx context.Context, f func() error, what string, args ...any) error {
	err := s.enter(ctx)
	if err == nil {
		defer s.running.Done()
		err = f()
	}
	if err != nil {
		return fmt.Errorf(what+": %w", append(args, wrapped(err))...)
	}
	return nil
}

// wrapped names what the server refused as the caller's mistake: a value that
// is too large for it.
func wrapped(err error) error {
	var request gocql.RequestError
	if errors.As(err, &request) && request.Code() == gocql.ErrCodeInvalid && !errors.Is(err, models.ErrInvalid) {
		return fmt.Errorf("%w: %w", models.ErrInvalid, err)
	}
	return err
}

// each runs f for 0 to n-1, some at once, and returns the first error.
func each(ctx context.Context, n int, f func(ctx context.Context, i int) error) error {
	if n == 1 {
		return f(ctx, 0)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for i := range n {
		g.Go(func() error { return f(ctx, i) })
	}
	return g.Wait()
}

// Shards implements models.Store.
func (s *Store) Shards() int { return shards }

// Ping implements models.Store. It asks one node for its own state and does
// not insist.
func (s *Store) Ping(ctx context.Context) error {
	return s.call(ctx, func() error {
		once := runner{session: s.session, timeout: min(s.timeout, 2*time.Second)}
		_, err := query(ctx, &once, column[string], `SELECT key FROM system.local`)
		return err
	}, "ping")
}

// fallFrom less the microseconds since 1970 is a timestamp that falls with
// time. It lies in the past, so that a removal with a plain timestamp wins,
// and above zero until 2061.
const fallFrom = 2_900_000_000_000_000

// fall returns a timestamp lower than all that this process got before: of
// writes with them the first stays. now is the servers' time.
func (s *Store) fall(now time.Time) int64 {
	for {
		last, next := s.falling.Load(), fallFrom-now.UnixMicro()
		if last != 0 && next >= last {
			next = last - 1
		}
		if s.falling.CompareAndSwap(last, next) {
			return next
		}
	}
}
