// Package queue implements the Broker on PostgreSQL.
//
// All messages are rows of one table. A subscription takes messages by a short transaction that sets a lease, and no
// transaction stays open while a handler runs. The process renews its leases. When a process dies, its leases end by
// the server's clock, and other processes take its messages.
//
// Processes notify each other of new messages. A lost notification costs at most a second, because idle subscriptions
// poll. All statements work through PgBouncer in transaction mode, but notifications do not pass it: messages then wait
// for a poll, and wakes get lost.
package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/subscribers"
)

var _ models.Broker = (*Broker)(nil)

const (
	callWait  = 5 * time.Second // bounds a call whose caller set no deadline, and each internal one
	purgeWait = time.Minute
)

// Config says where PostgreSQL is and which tables are used there.
type Config struct {
	URL       string       // postgres://…, as pgx reads it
	Schema    string       // the PostgreSQL schema of the tables; "safedelivr" if empty
	Providers []string     // the providers that have queues
	MaxConns  int          // 0: as the URL says, or pgx's default
	Logger    *slog.Logger // nil: no log

	lease time.Duration // how long a process owns a message that it took; 30 s
	poll  time.Duration // how often an idle subscription looks for messages; 1 s
}

// Broker keeps messages in a table of PostgreSQL. It reconnects forever.
type Broker struct {
	log     *slog.Logger
	config  Config
	name    string // of this process, in leases and notifications
	queues  []models.Queue
	known   []string // names of queues
	pool    *pgxpool.Pool
	subs    *subscribers.Group
	workers sync.WaitGroup
	drain   chan struct{} // closed when no subscription is left
	pending chan struct{} // holds a token while there is something to flush

	mu      sync.Mutex
	number  int // of subscriptions so far
	running map[*subscription]bool
	held    map[lease]*subscription
	results []*delivery
	kicks   map[string]bool // queues that other processes must hear of
}

var schemaName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,47}$`)

// Open connects and creates the tables, unless they exist. Errors: models.ErrInvalid, models.ErrNewer (a newer version
// of the program made the tables), models.ErrUnavailable.
func Open(ctx context.Context, c Config) (*Broker, error) {
	c.Schema = cmp.Or(c.Schema, "safedelivr")
	c.lease, c.poll = cmp.Or(c.lease, 30*time.Second), cmp.Or(c.poll, time.Second)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	c.Providers = slices.Compact(slices.Sorted(slices.Values(c.Providers)))
	if !schemaName.MatchString(c.Schema) {
		return nil, fmt.Errorf("%w: PostgreSQL schema %q", models.ErrInvalid, c.Schema)
	}
	for _, p := range c.Providers {
		if !models.ValidProviderName(p) {
			return nil, fmt.Errorf("%w: provider name %q", models.ErrInvalid, p)
		}
	}
	pool, err := pgxpool.ParseConfig(c.URL)
	if err != nil {
		return nil, fmt.Errorf("%w: PostgreSQL URL: %w", models.ErrInvalid, err)
	}
	if c.MaxConns > 0 {
		pool.MaxConns = int32(min(c.MaxConns, 10_000))
	}
	// The size of the table changes faster than its statistics, so the server must not keep plans.
	pool.ConnConfig.DefaultQueryExecMode = max(pool.ConnConfig.DefaultQueryExecMode, pgx.QueryExecModeCacheDescribe)
	b := &Broker{log: c.Logger, config: c, name: models.NewUserID(), queues: models.Queues(c.Providers),
		drain: make(chan struct{}), pending: make(chan struct{}, 1), running: map[*subscription]bool{},
		held: map[lease]*subscription{}, kicks: map[string]bool{}, subs: subscribers.New(ctx)}
	for _, q := range b.queues {
		b.known = append(b.known, q.Name())
	}
	if b.pool, err = pgxpool.NewWithConfig(b.subs.Context(), pool); err != nil {
		return nil, fmt.Errorf("%w: PostgreSQL: %w", models.ErrInvalid, err)
	}
	var conn *pgx.Conn
	if err = b.migrate(ctx); err == nil {
		conn, err = b.connect(ctx)
	}
	if err != nil {
		b.subs.Close()
		b.pool.Close()
		return nil, fmt.Errorf("open the queue: %w", err)
	}
	b.workers.Go(func() { b.listen(conn) })
	b.workers.Go(b.settle)
	return b, nil
}

// call runs f until ctx or the broker ends. If f fails and may be repeated, call repeats it once over a new connection,
// because the server may have closed the idle ones.
func (b *Broker) call(ctx context.Context, what string, repeat bool, f func(context.Context) error) error {
	if err := b.subs.Open(); err != nil {
		return err
	}
	cancel := func() {}
	if _, ok := ctx.Deadline(); !ok {
		ctx, cancel = context.WithTimeout(ctx, callWait)
	}
	defer cancel()
	ctx, end := context.WithCancel(ctx)
	defer end()
	defer context.AfterFunc(b.subs.Context(), end)()
	err := f(ctx)
	if err != nil && repeat && ctx.Err() == nil {
		b.pool.Reset()
		err = f(ctx)
	}
	if err == nil || errors.Is(err, models.ErrNotFound) {
		return err
	}
	if closed := b.subs.Open(); closed != nil {
		return closed
	}
	return fmt.Errorf("%w: PostgreSQL: %s: %w", models.ErrUnavailable, what, err)
}

// exec runs a statement that may be repeated.
func (b *Broker) exec(ctx context.Context, what, sql string, args ...any) error {
	return b.call(ctx, what, true, func(ctx context.Context) error {
		_, err := b.pool.Exec(ctx, b.in(sql), args...)
		return err
	})
}

// Purge implements models.Broker. It keeps the messages that a handler has.
func (b *Broker) Purge(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, purgeWait)
	defer cancel()
	return b.exec(ctx, "purge", `DELETE FROM $.queue_message
		WHERE parked_at IS NULL AND (taken_until IS NULL OR taken_until <= now())`)
}

// Ping implements models.Broker.
func (b *Broker) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return b.call(ctx, "ping", true, func(ctx context.Context) error {
		writable := false
		err := b.pool.QueryRow(ctx, b.in(`SELECT current_setting('transaction_read_only') = 'off' FROM $.queue_schema`)).
			Scan(&writable)
		if err == nil && !writable {
			return errors.New("the server takes no writes")
		}
		return err
	})
}

// Depths implements models.Broker.
func (b *Broker) Depths(ctx context.Context) ([]models.Depth, error) {
	found := map[string]models.Depth{}
	err := b.call(ctx, "depths", true, func(ctx context.Context) error {
		// ForEachRow returns the error.
		rows, _ := b.pool.Query(ctx, b.in(`SELECT queue,
				count(*) FILTER (WHERE due <= now() AND (taken_until IS NULL OR taken_until <= now())),
				count(*) FILTER (WHERE taken_until > now())
			FROM $.queue_message WHERE parked_at IS NULL GROUP BY queue`))
		var queue string
		var d models.Depth
		_, err := pgx.ForEachRow(rows, []any{&queue, &d.Ready, &d.Unacked}, func() error {
			found[queue] = d
			return nil
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	out := make([]models.Depth, 0, len(b.queues))
	for i, name := range b.known {
		d := found[name]
		d.Queue = b.queues[i]
		out = append(out, d)
	}
	return out, nil
}

// Parked implements models.Broker.
func (b *Broker) Parked(ctx context.Context, limit int) ([]models.Parked, error) {
	var out []models.Parked
	err := b.call(ctx, "parked", true, func(ctx context.Context) (err error) {
		// CollectRows returns the error.
		rows, _ := b.pool.Query(ctx, b.in(`SELECT id, queue, body, coalesce(parked_why, ''), parked_at
			FROM $.queue_message
			WHERE parked_at IS NOT NULL ORDER BY parked_at, id LIMIT $1`), max(0, limit))
		out, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (p models.Parked, err error) {
			var id int64
			var body string
			err = row.Scan(&id, &p.Key, &body, &p.Why, &p.At)
			p.ID, p.At = strconv.FormatInt(id, 10), p.At.UTC()
			if m, err := decode(body); err == nil {
				p.Message, p.Key = m, m.Key()
			} else {
				p.Raw = []byte(body)
			}
			return p, err
		})
		return err
	})
	return out, err
}

// Unpark implements models.Broker. It finds only messages of queues that this broker has.
func (b *Broker) Unpark(ctx context.Context, id string) error {
	err := b.parked(ctx, "unpark", id, `UPDATE $.queue_message SET parked_at = NULL, parked_why = NULL, due = now(),
		queued_at = now(), panics = 0, lost = 0 WHERE id = $1 AND parked_at IS NOT NULL AND queue = ANY($2::text[])`, b.known)
	if err == nil {
		b.kick(true, b.known...)
	}
	return err
}

// Discard implements models.Broker.
func (b *Broker) Discard(ctx context.Context, id string) error {
	return b.parked(ctx, "discard", id, `DELETE FROM $.queue_message WHERE id = $1 AND parked_at IS NOT NULL`)
}

// parked runs a statement on one parked message. A repeat could not distinguish its own success from that of others, so
// there is none. Errors: models.ErrNotFound.
func (b *Broker) parked(ctx context.Context, what, id, sql string, args ...any) error {
	return b.call(ctx, what, false, func(ctx context.Context) error {
		n, err := strconv.ParseInt(id, 10, 64)
		if err == nil {
			tag, err := b.pool.Exec(ctx, b.in(sql), append([]any{n}, args...)...)
			if err != nil || tag.RowsAffected() > 0 {
				return err
			}
		}
		return fmt.Errorf("%w: parked message %s", models.ErrNotFound, id)
	})
}

// Close implements models.Broker. It gives back messages that no handler has got.
func (b *Broker) Close() error {
	if !b.subs.Close() {
		return nil
	}
	close(b.drain)
	b.workers.Wait()
	b.pool.Close()
	return nil
}
