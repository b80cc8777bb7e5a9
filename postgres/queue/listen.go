package queue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/safedelivr/safedelivr/models"
)

const (
	queueChannel = "_queue" // after the schema: names of queues that have new messages
	wakeChannel  = "_wake"  // after the schema: users that are woken
	maxWakes     = 100      // wakes that wait for a subscriber; later ones are dropped
	checkEvery   = 30 * time.Second
)

// newPause returns the pause between attempts. It grows while they fail.
func newPause() *backoff.ExponentialBackOff {
	p := backoff.NewExponentialBackOff()
	p.InitialInterval, p.MaxInterval = 50*time.Millisecond, 5*time.Second
	return p
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// listen keeps one connection that receives notifications, until the broker is closed. It reports to first whether
// the first one came about.
func (b *Broker) listen(first chan<- error) {
	report := func(err error) {
		select {
		case first <- err:
		default:
		}
	}
	for pause := newPause(); b.stop.Err() == nil; sleep(b.stop, pause.NextBackOff()) {
		conn, err := b.connect()
		report(err)
		if unusable(err) {
			b.mu.Lock()
			b.refused = fmt.Errorf("%w: PostgreSQL: %w", models.ErrUnavailable, err)
			b.mu.Unlock()
		}
		if err == nil {
			pause.Reset()
			b.kick(false) // notifications may have been lost
			err = b.receive(conn)
		}
		if b.stop.Err() == nil {
			b.log.Warn("no notifications from PostgreSQL; polling", "err", err)
		}
	}
}

// connect returns a connection that listens. It creates the tables, unless they exist.
func (b *Broker) connect() (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(b.stop, callWait)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, b.pool.Config().ConnConfig)
	if err != nil {
		return nil, err
	}
	if err = b.migrate(ctx, conn); err == nil {
		_, err = conn.Exec(ctx, "LISTEN "+b.config.Schema+queueChannel+"; LISTEN "+b.config.Schema+wakeChannel)
	}
	if err != nil {
		_ = conn.Close(ctx)
		return nil, err
	}
	return conn, nil
}

// receive handles notifications until the connection breaks or the broker is closed. It closes the connection.
func (b *Broker) receive(conn *pgx.Conn) error {
	ping := func() error {
		ctx, cancel := context.WithTimeout(b.stop, callWait)
		defer cancel()
		return conn.Ping(ctx)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = conn.Close(ctx)
	}()
	for {
		ctx, cancel := context.WithTimeout(b.stop, checkEvery)
		n, err := conn.WaitForNotification(ctx)
		cancel()
		if err == nil {
			b.notified(n)
			continue
		}
		if errors.Is(err, context.DeadlineExceeded) {
			err = ping()
		}
		if err != nil {
			return err
		}
	}
}

// notified handles a notification.
func (b *Broker) notified(n *pgconn.Notification) {
	head, rest, _ := strings.Cut(n.Payload, " ")
	if n.Channel == b.config.Schema+queueChannel {
		if head != b.name { // its subscriptions know already
			b.kick(false, strings.Fields(rest)...)
		}
		return
	}
	var users []string
	at, err := strconv.ParseInt(head, 10, 64)
	if err != nil || json.Unmarshal([]byte("["+rest+"]"), &users) != nil {
		return // a newer process sent it
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for c, since := range b.wakes {
		if at >= since && len(c) < cap(c) { // only this goroutine sends
			c <- slices.Clone(users)
		}
	}
}
