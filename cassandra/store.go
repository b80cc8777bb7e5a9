// Package cassandra implements the Store on Apache Cassandra 4.1 or newer. Any number
// of processes can share it.
//
// There are two kinds of write, which never meet in a column. The outcome of a
// compare-and-set (ledger, commands, commits of batches, names, revocations, leases,
// marks, claims) is found out by repeating it and never by a plain read. Plain writes
// may be repeated.
//
// No write has a timestamp from the clock of its process. If the order of plain writes
// matters, their timestamps are a version, rise above the stored timestamp, or fall
// with the servers' time, so that the newest, the first or the oldest write stays.
// Otherwise the server sets the timestamp.
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

// shards is recorded with the keyspace: agenda entries and posts are stored by shard.
const shards = 8

// atOnce bounds the statements that one call runs at the same time.
const atOnce = 16

// Store implements models.Store in one keyspace.
type Store struct {
	runner

	log          *slog.Logger
	now          func() time.Time     // clock of this process
	clock        *clock               // clock of the servers
	exists       *recent[models.ID]   // batches that are known to exist
	listed       *recent[ownerBucket] // buckets that are known to be in owner_buckets
	indexedHours *recent[ownerBucket] // hours known to be in address_index_hours; an hour is dropped long after it ended
	falling      atomic.Int64         // the last falling timestamp

	gate    sync.RWMutex
	closed  bool
	ending  chan struct{}
	running sync.WaitGroup
	ended   sync.Once
}

var _ models.Store = (*Store)(nil)

// Open connects to the keyspace and checks that it can be used: its schema, its serial
// level, the constants that rows are stored by, and that reads see what is written.
// With Config.Migrate it first applies missing schema files. Errors:
// models.ErrUnavailable, models.ErrInvalid (the configuration), and reasons why the
// keyspace cannot be used.
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
	guard := s.guard
	s.running.Go(func() { guard.watch(s.ending) })
	return s, nil
}

func newStore(c *Config, session *gocql.Session) *Store {
	ending := make(chan struct{})
	clocked := runner{session: session, timeout: c.Timeout,
		closing: ending} // the clock must not wait for statements with low priority
	return &Store{
		runner: runner{
			session: session,
			timeout: c.Timeout,
			closing: ending,
			limit:   &semaphore{},
			guard: &guard{consistency: c.Consistency, serial: c.Serial, log: c.Logger,
				read: func(ctx context.Context) (replication, error) {
					return readReplication(ctx, &clocked, c.Keyspace)
				}},
		},
		log:          c.Logger,
		ending:       ending,
		now:          c.now,
		clock:        newClock(c.now, clocked.serverTime),
		exists:       newRecent[models.ID](50_000),
		listed:       newRecent[ownerBucket](10_000),
		indexedHours: newRecent[ownerBucket](10_000),
	}
}

// Close implements models.Store. Appends whose outcome is unknown stop trying.
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

// ended returns the error for a call that did nothing because ctx has ended.
func ended(ctx context.Context) error { return errors.Join(models.ErrUnavailable, ctx.Err()) }

// call runs f as a call that Close waits for. It wraps errors with what and args.
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

// wrapped turns a value that the server refuses, because it is too large, into
// models.ErrInvalid.
func wrapped(err error) error {
	var request gocql.RequestError
	if errors.As(err, &request) && request.Code() == gocql.ErrCodeInvalid && !errors.Is(err, models.ErrInvalid) {
		return fmt.Errorf("%w: %w", models.ErrInvalid, err)
	}
	return err
}

// each runs f for 0 to n-1, some at a time, and returns the first error.
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

// Ping implements models.Store. It asks one node for its own state and tries only
// briefly.
func (s *Store) Ping(ctx context.Context) error {
	return s.call(ctx, func() error {
		once := runner{session: s.session, timeout: min(s.timeout, 2*time.Second)}
		_, err := query(ctx, &once, column[string], `SELECT key FROM system.local`)
		return err
	}, "ping")
}

// fallFrom minus the microseconds since 1970 is a timestamp that falls with time. It
// lies in the past, so that a removal with the server's timestamp wins, and is above
// zero until 2061.
const fallFrom = 2_900_000_000_000_000

// fall returns a timestamp that is lower than all that it returned before, so that the
// first of several writes stays. now is the servers' time.
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
