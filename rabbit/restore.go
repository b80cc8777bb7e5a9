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
	declareEvery = 30 * time.Second // how often everything is declared, missing or not
	declareSoon  = 2 * time.Second  // the same while it fails
	checkEvery   = time.Second      // the shortest time between two checks

	// consumersEnd is how long RabbitMQ needs to end the consumers of a removed queue. If
	// a new queue has the name by then, it moves them there instead, where they get
	// nothing and hold messages back.
	consumersEnd = 500 * time.Millisecond
)

// restorer declares the topology again when a part of it was removed.
type restorer struct {
	topology topology
	log      *slog.Logger
	hint     chan struct{} // holds a token when something is known to be missing
	lock     chan struct{} // holds a token while a caller declares
	began    time.Time     // when that was last begun; guarded by lock

	mu      sync.Mutex
	failed  error // of the last declaration
	checked time.Time
	missing error // what the last check missed
}

func newRestorer(t topology, log *slog.Logger) *restorer {
	return &restorer{
		topology: t,
		log:      log,
		hint:     make(chan struct{}, 1),
		lock:     make(chan struct{}, 1),
	}
}

// missing reports whether RabbitMQ said that a queue or an exchange does not exist.
func missing(err error) bool {
	var e *amqp.Error
	return errors.As(err, &e) && e.Code == amqp.NotFound
}

// restore declares everything, once for all concurrent callers. It fails if there is
// no connection: a new one declares everything anyway.
func (r *restorer) restore(ctx context.Context, c *connection) error {
	asked := time.Now()
	select {
	case r.lock <- struct{}{}:
		defer func() { <-r.lock }()
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
		case <-time.After(consumersEnd):
		case <-ctx.Done():
			return silent(ctx)
		}
	}
	began := time.Now()
	err = unavailable(within(ctx, func() error { return r.topology.onto(conn) }))
	if err != nil && (ctx.Err() != nil || conn.IsClosed()) {
		return err // the outcome is not known
	}
	r.began = began
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed, r.missing, r.checked = err, nil, time.Time{}
	if err != nil {
		r.log.Warn("RabbitMQ refuses a declaration", "err", err)
	}
	return err
}

func (r *restorer) failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

// whole returns an error if something is known to be missing, and has it declared
// again. It asks RabbitMQ at most once a second. A RabbitMQ that is too busy to answer
// is not missing anything.
func (r *restorer) whole(ctx context.Context, c *connection) error {
	r.mu.Lock()
	known, ask := errors.Join(r.failed, r.missing), time.Since(r.checked) >= checkEvery
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
		r.missing = fmt.Errorf("%w: an exchange, queue or binding was removed from RabbitMQ: %w", models.ErrUnavailable, err)
		select {
		case r.hint <- struct{}{}:
		default:
		}
	}
	return errors.Join(r.failed, r.missing)
}

// watch declares everything from time to time, and soon if something is missing. No
// error shows that the way back from the delays was removed, for example.
func (b *Broker) watch() {
	for {
		wait := declareEvery
		if b.restorer.failure() != nil {
			wait = declareSoon
		}
		select {
		case <-time.After(wait):
		case <-b.restorer.hint:
		case <-b.subs.Context().Done():
			return
		}
		ctx, cancel := context.WithTimeout(b.subs.Context(), publishWait)
		_ = b.restorer.restore(ctx, b.publisher.conn) // it logs errors, and Ping reports them
		cancel()
	}
}
