// Package cassandra implements the shapes of package store in Apache Cassandra 4.1 or newer. Any number of processes
// can share a keyspace. Each table of the store is a table of CQL.
//
// There are two kinds of write, which never meet in a column. Plain writes may be repeated. The version of a row is
// their timestamp, so that the highest one stays. The outcome of a compare-and-set is found out by repeating it, and a
// plain read sees every one that has returned.
//
// No write has a timestamp from the clock of its process: what is not a version comes from the clock of the servers.
package cassandra

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gocql/gocql"
	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store"
	"github.com/safedelivr/safedelivr/store/shapes"
)

// atOnce bounds the statements that one call runs at the same time.
const atOnce = 16

// engine implements shapes.Engine and shapes.Stamper in one keyspace.
type engine struct {
	runner

	writer  *writer
	buckets *buckets
	tables  map[*shapes.Table]*table

	ending   chan struct{}
	watching sync.WaitGroup
}

var (
	_ shapes.Engine  = (*engine)(nil)
	_ shapes.Stamper = (*engine)(nil)
)

// Open connects to the keyspace and checks that it can be used: its schema, its serial level, the constants that rows
// are stored by, and that reads see what is written. With Config.Migrate it first applies missing parts of the schema.
// Errors: models.ErrUnavailable, models.ErrInvalid (the configuration), and reasons why the keyspace cannot be used.
func Open(ctx context.Context, c Config) (*store.Store, error) {
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
	e := newEngine(&c, session)
	if _, err := e.writer.clock.time(ctx); err != nil {
		session.Close()
		return nil, fmt.Errorf("cassandra: time of the servers: %w", err)
	}
	guard := e.guard
	e.watching.Go(func() { guard.watch(e.ending) })
	return store.New(e, c.Options), nil
}

func newEngine(c *Config, session *gocql.Session) *engine {
	ending := make(chan struct{})
	clocked := runner{session: session, timeout: c.Timeout,
		closing: ending} // the clock must not wait for statements with low priority
	e := &engine{
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
		tables: map[*shapes.Table]*table{},
		ending: ending,
	}
	e.writer = &writer{runner: &e.runner, clock: newClock(c.Now, clocked.serverTime)}
	e.buckets = &buckets{e.writer, store.NewRecent[bucketOf](20_000)}
	for _, t := range store.Tables() {
		e.tables[t] = newTable(t)
	}
	return e
}

// End implements shapes.Stamper.
func (e *engine) End() { close(e.ending) }

// Close implements shapes.Engine.
func (e *engine) Close() error {
	e.watching.Wait()
	e.session.Close()
	return nil
}

// Ping implements shapes.Engine. It asks one node for its own state and tries only briefly.
func (e *engine) Ping(ctx context.Context) error {
	once := runner{session: e.session, timeout: min(e.timeout, 2*time.Second)}
	_, err := query(ctx, &once, column[string], `SELECT key FROM system.local`)
	return err
}

// Now implements shapes.Engine.
func (e *engine) Now(ctx context.Context) (time.Time, error) { return e.writer.clock.time(ctx) }

// Stamp implements shapes.Stamper.
func (e *engine) Stamp(ctx context.Context) (int64, error) {
	now, err := e.writer.clock.time(ctx)
	return now.UnixMicro(), err
}

// Sweep implements shapes.Engine. The servers end rows.
func (e *engine) Sweep(context.Context) error { return nil }

// ended returns the error for a call that did nothing because ctx has ended.
func ended(ctx context.Context) error { return errors.Join(models.ErrUnavailable, ctx.Err()) }

// failed turns a value that the server refuses, because it is too large, into models.ErrInvalid.
func failed(err error) error {
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
