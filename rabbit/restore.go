package rabbit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/safedelivr/safedelivr/models"
)

const (
	declareEvery = 30 * time.Second // also what nobody stumbled over
	declareSoon  = 2 * time.Second  // while that fails
	checkedFor   = time.Second

	// RabbitMQ ends the consumers of a queue that is removed only where no other has its
	// name when they hear of it. Else it moves them there, where they get nothing, and hold
	// what they do not get.
	mourned = 500 * time.Millisecond
)

// restorer declares the topology again when somebody removed a part of it.
type restorer struct {
	topology topology
	log      *slog.Logger
	hint     chan struct{} // holds a token when something is known to be missing
	turn     chan struct{} // holds a token while one declares
	began    time.Time     // when that was done last; of who has the turn

	mu      sync.Mutex
	failed  error // why it failed last
	checked time.Time
	missing error // what was missing then
}

func newRestorer(t topology, log *slog.Logger) *restorer {
	return &restorer{topology: t, log: log, hint: make(chan struct{}, 1), turn: make(chan struct{}, 1)}
}

// missing reports whether the broker said that something is not there.
func missing(err error) bool {
	var e *amqp.Error
	return errors.As(err, &e) && e.Code == amqp.NotFound
}

// restore declares everything, once for all who ask meanwhile. It fails where the
// connection is away: a new one declares it.
func (r *restorer) restore(ctx context.Context, c *connection) error {
	asked := time.Now()
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return silent(ctx)
	}
	if r.began.After(asked) {
		return r.failure()
	}
	conn, err, _ := c.now()
	if err != nil {
		return unavailable(err)
	}
	if missing(within(ctx, func() error { return r.topology.check(conn) })) {
		select {
		case <-time.After(mourned):
		case <-ctx.Done():
			return silent(ctx)
		}
	}
	began := time.Now()
	err = unavailable(within(ctx, func() error { return r.topology.onto(conn) }))
	if err != nil && (ctx.Err() != nil || conn.IsClosed()) {
		return err // nobody knows
	}
	r.began = began
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed, r.missing, r.checked = err, nil, time.Time{}
	if err != nil {
		r.log.Warn("RabbitMQ refuses what is declared", "err", err)
	}
	return err
}

func (r *restorer) failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

// whole fails when something is known to be missing, and has it declared again. It
// asks the broker at most once a second; one that is too busy to answer is not one
// that misses something.
func (r *restorer) whole(ctx context.Context, c *connection) error {
	r.mu.Lock()
	known, ask := errors.Join(r.failed, r.missing), time.Since(r.checked) >= checkedFor
	if ask {
		r.checked = time.Now()
	}
	r.mu.Unlock()
	if !ask {
		return known
	}
	conn, err, _ := c.now()
	if err != nil {
		return unavailable(err)
	}
	err = within(ctx, func() error { return r.topology.check(conn) })
	r.mu.Lock()
	defer r.mu.Unlock()
	r.missing = nil
	if missing(err) {
		r.missing = fmt.Errorf("%w: a part of what is declared on RabbitMQ was removed: %w", models.ErrUnavailable, err)
		select {
		case r.hint <- struct{}{}:
		default:
		}
	}
	return errors.Join(r.failed, r.missing)
}

// watch declares everything from time to time, and soon where something is missing.
// What is removed and nobody stumbles over, as the way back from the delays, would
// be missing for ever.
func (b *Broker) watch() {
	for {
		wait := declareEvery
		if b.restorer.failure() != nil {
			wait = declareSoon
		}
		select {
		case <-time.After(wait):
		case <-b.restorer.hint:
		case <-b.stop.Done():
			return
		}
		ctx, cancel := context.WithTimeout(b.stop, publishWait)
		_ = b.restorer.restore(ctx, b.publisher.conn) // which logs it, and Ping tells
		cancel()
	}
}
