package rabbit

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/safedelivr/safedelivr/models"
)

const (
	dialTimeout = 5 * time.Second
)

// connection keeps one connection to RabbitMQ open. When it breaks, it is replaced
// by a new object, so that an acknowledgement for the old one can never reach the
// new one. In a cluster it starts with a random node and goes on to the next when
// that one cannot be reached. up prepares each new connection for use.
type connection struct {
	nodes
	name string
	log  *slog.Logger
	up   func(*amqp.Connection) error
	node int // index of the node that is used or tried next; only keep touches it

	mu      sync.Mutex
	conn    *amqp.Connection // nil while broken
	changed chan struct{}    // closed when conn changes
	last    error            // why conn is nil
	stop    context.CancelFunc
	done    chan struct{}
}

// nodes says where the nodes of RabbitMQ are.
type nodes struct {
	urls []string
	tls  *tls.Config // of amqps:// URLs

	heartbeat time.Duration
}

func connect(n nodes, name string, log *slog.Logger, up func(*amqp.Connection) error) *connection {
	ctx, cancel := context.WithCancel(context.Background())
	c := &connection{
		nodes:   n,
		name:    name,
		log:     log,
		up:      up,
		changed: make(chan struct{}),
		stop:    cancel,
		done:    make(chan struct{}),
		last:    errors.New("not connected yet"),
		node:    rand.IntN(len(n.urls)), //nolint:gosec // spreads processes over the nodes
	}
	go c.keep(ctx)
	return c
}

// keep connects and reconnects until ctx ends.
func (c *connection) keep(ctx context.Context) {
	defer close(c.done)
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 200*time.Millisecond, 10*time.Second
	for ctx.Err() == nil {
		conn, err := c.dialAny(ctx)
		if err == nil {
			wait.Reset()
			closed := conn.NotifyClose(make(chan *amqp.Error, 1))
			c.set(conn, nil)
			c.log.Info("connected to RabbitMQ", "connection", c.name)
			select {
			case e := <-closed:
				err = fmt.Errorf("connection lost: %w", orClosed(e))
				c.nextNode()
			case <-ctx.Done():
				c.set(nil, models.ErrClosed)
				closeConn(conn)
				return
			}
		}
		c.set(nil, err)
		pause := wait.NextBackOff()
		c.log.Warn("no connection to RabbitMQ", "connection", c.name, "err", err, "again_in",
			pause.Round(time.Millisecond).String())
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	c.set(nil, models.ErrClosed)
}

func orClosed(e *amqp.Error) error {
	if e == nil {
		return amqp.ErrClosed
	}
	return e
}

func (c *connection) nextNode() { c.node = (c.node + 1) % len(c.urls) }

// dialAny tries every node once.
func (c *connection) dialAny(ctx context.Context) (conn *amqp.Connection, err error) {
	var errs []error
	for range c.urls {
		if conn, err = c.dial(ctx, c.urls[c.node]); err == nil {
			return conn, nil
		}
		errs = append(errs, err)
		c.nextNode()
		if ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(errs...)
}

func (c *connection) dial(ctx context.Context, url string) (*amqp.Connection, error) {
	conn, err := amqp.DialConfig(url, amqp.Config{
		Heartbeat:       c.heartbeat,
		Dial:            amqp.DefaultDial(dialTimeout),
		TLSClientConfig: c.tls.Clone(), // the dialer sets the name of the node in it
		Properties:      amqp.Table{"connection_name": c.name, "product": "safedelivr"},
	})
	if err != nil {
		return nil, err
	}
	if err := within(ctx, func() error { return c.up(conn) }); err != nil {
		closeConn(conn)
		return nil, err
	}
	return conn, nil
}

// closeConn closes a connection. It waits a few seconds for a peer that does not
// answer.
func closeConn(conn *amqp.Connection) {
	go func() { _ = conn.CloseDeadline(time.Now().Add(2 * time.Second)) }()
	select {
	case <-conn.NotifyClose(make(chan *amqp.Error, 1)):
	case <-time.After(3 * time.Second):
	}
}

func (c *connection) set(conn *amqp.Connection, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == conn && errors.Is(c.last, err) {
		return
	}
	c.conn, c.last = conn, err
	close(c.changed)
	c.changed = make(chan struct{})
}

// now returns the connection, or the reason why there is none, and a channel that
// is closed when either changes.
//
//nolint:revive,staticcheck // the error is about the first result
func (c *connection) now() (*amqp.Connection, error, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		return nil, c.last, c.changed
	}
	return c.conn, nil, c.changed
}

// wait returns the connection as soon as there is one.
func (c *connection) wait(ctx context.Context) (*amqp.Connection, error) {
	for {
		conn, err, changed := c.now()
		if err == nil {
			return conn, nil
		}
		if errors.Is(err, models.ErrClosed) {
			return nil, models.ErrClosed
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: RabbitMQ: %w", models.ErrUnavailable, err)
		}
	}
}

func (c *connection) close() {
	c.stop()
	<-c.done
}
