package queue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

// connect returns a connection that listens. Errors: models.ErrUnavailable.
func (b *Broker) connect(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, callWait)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, b.pool.Config().ConnConfig)
	if err == nil {
		_, err = conn.Exec(ctx, "LISTEN "+b.config.Schema+queueChannel+"; LISTEN "+b.config.Schema+wakeChannel)
	}
	if err == nil {
		return conn, nil
	}
	if conn != nil {
		_ = conn.Close(ctx)
	}
	return nil, fmt.Errorf("%w: PostgreSQL: %w", models.ErrUnavailable, err)
}

// listen keeps one connection that receives notifications, until the broker is closed. It begins with conn.
func (b *Broker) listen(conn *pgx.Conn) {
	for pause := newPause(); ; pause.Reset() {
		err := b.receive(conn)
		for conn = nil; conn == nil; conn, err = b.connect(b.subs.Context()) {
			if b.subs.Context().Err() != nil {
				return
			}
			b.log.Warn("no notifications from PostgreSQL; polling", "err", err)
			sleep(b.subs.Context(), pause.NextBackOff())
		}
		b.kick(false) // notifications may have been lost
	}
}

// receive handles notifications until the connection breaks or the broker is closed. It closes the connection.
func (b *Broker) receive(conn *pgx.Conn) error {
	ping := func() error {
		ctx, cancel := context.WithTimeout(b.subs.Context(), callWait)
		defer cancel()
		return conn.Ping(ctx)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = conn.Close(ctx)
	}()
	for {
		ctx, cancel := context.WithTimeout(b.subs.Context(), checkEvery)
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
	b.subs.Wake(at, users)
}
