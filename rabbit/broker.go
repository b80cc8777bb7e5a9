// Package rabbit implements the Broker on RabbitMQ.
package rabbit

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/subscribers"
)

var _ models.Broker = (*Broker)(nil)

// Config says where RabbitMQ is and what is declared there.
type Config struct {
	URL       string       // amqp:// or amqps://; of a cluster one for each node, separated by commas
	Prefix    string       // of all names; "sd" if empty
	Providers []string     // whose queues are declared
	TLS       *tls.Config  // for amqps://; nil: the CAs of the system
	Logger    *slog.Logger // nil: no log

	heartbeat time.Duration // of the connections; 5 s
}

// Broker publishes and consumes over two connections, so that a RabbitMQ that
// blocks publishers still delivers messages. Both reconnect forever.
type Broker struct {
	log       *slog.Logger
	topology  topology
	restorer  *restorer
	publisher *publisher
	consume   *connection
	tags      atomic.Uint64
	subs      *subscribers.Group
	watching  sync.WaitGroup
	browsing  sync.Mutex // one browse of the parking lot at a time
}

// Open starts connecting and waits a few seconds for a connection. It is no error
// if RabbitMQ cannot be reached: batches are stored meanwhile and announced later.
// Errors: models.ErrInvalid.
func Open(ctx context.Context, c Config) (*Broker, error) {
	urls := strings.Split(c.URL, ",")
	for i := range urls {
		urls[i] = strings.TrimSpace(urls[i])
		if u, err := url.Parse(urls[i]); err != nil || u.Scheme != "amqp" && u.Scheme != "amqps" || u.Host == "" {
			return nil, fmt.Errorf("%w: RabbitMQ needs amqp:// or amqps:// URLs", models.ErrInvalid)
		}
	}
	for _, a := range c.Providers {
		if !models.ValidProviderName(a) {
			return nil, fmt.Errorf("%w: provider name %q", models.ErrInvalid, a)
		}
	}
	if c.Prefix == "" {
		c.Prefix = "sd"
	}
	if c.TLS == nil {
		c.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	b := &Broker{log: c.Logger, topology: newTopology(c.Prefix, c.Providers), subs: subscribers.New(ctx)}
	b.restorer = newRestorer(b.topology, c.Logger)
	n := nodes{urls: urls, tls: c.TLS, heartbeat: cmp.Or(c.heartbeat, 5*time.Second)}
	b.publisher = newPublisher(n, b.topology, b.restorer, c.Logger)
	// Either connection may be up first, so both declare.
	b.consume = connect(n, "safedelivr consume", c.Logger, b.topology.onto)
	b.watching.Go(b.watch)
	wait, cancel := context.WithTimeout(ctx, publishWait)
	defer cancel()
	for _, conn := range []*connection{b.publisher.conn, b.consume} {
		if _, err := conn.wait(wait); err != nil && ctx.Err() == nil {
			b.log.Warn("RabbitMQ cannot be reached; starting without it", "err", err)
			break
		}
	}
	return b, nil
}

// Publish implements models.Broker.
func (b *Broker) Publish(ctx context.Context, ms ...models.Message) error {
	out := make([]*outgoing, 0, len(ms))
	for i := range ms {
		if err := ms[i].Validate(); err != nil {
			return err
		}
		o, err := b.topology.outgoing(&ms[i], history{})
		if err != nil {
			return err
		}
		out = append(out, o)
	}
	if err := b.subs.Open(); err != nil {
		return err
	}
	if len(out) == 0 {
		return nil
	}
	// A delay takes every message, so whether a queue follows it is checked here.
	for i := range ms {
		if !b.routable(&ms[i]) {
			return fmt.Errorf("%w: %s", models.ErrUnroutable, ms[i].Key())
		}
	}
	return b.publisher.publish(ctx, out)
}

// routable reports whether a delayed message leads to a queue.
func (b *Broker) routable(m *models.Message) bool {
	if m.NotBefore.IsZero() {
		return true // RabbitMQ returns what it cannot route
	}
	return b.topology.has(models.Queue{Kind: m.Kind, Provider: queueProvider(m), Lane: queueLane(m)})
}

func queueProvider(m *models.Message) string {
	if m.Kind == models.ProviderMessage || m.Kind == models.LogMessage {
		return m.Provider
	}
	return ""
}

func queueLane(m *models.Message) models.Lane {
	if m.Kind == models.EventMessage {
		return ""
	}
	return m.Lane
}

// Depths implements models.Broker. RabbitMQ counts the messages that wait, not the
// ones that a handler has.
func (b *Broker) Depths(ctx context.Context) ([]models.Depth, error) {
	var out []models.Depth
	err := b.channel(ctx, func(ch *amqp.Channel) error {
		out = nil
		for _, q := range b.topology.queues {
			s, err := ch.QueueDeclarePassive(b.topology.queue(q), true, false, false, false, nil)
			if err != nil {
				return err
			}
			out = append(out, models.Depth{Queue: q, Ready: s.Messages, Unacked: -1})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Purge implements models.Broker.
func (b *Broker) Purge(ctx context.Context) error {
	_, err := b.PurgeCounted(ctx)
	return err
}

// PurgeCounted is Purge, and returns how many messages were lost, by the name of
// their queue without the prefix. Messages that a handler has are not counted.
func (b *Broker) PurgeCounted(ctx context.Context) (map[string]int, error) {
	lost := map[string]int{}
	err := b.channel(ctx, func(ch *amqp.Channel) error {
		for _, name := range b.topology.names() {
			n, err := ch.QueuePurge(name, false)
			if err != nil {
				return err
			}
			if n > 0 {
				lost[strings.TrimPrefix(name, b.topology.name(""))] += n
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return lost, nil
}

// Remove deletes every queue and exchange of this prefix. It is for tests and
// drills that use a prefix of their own.
func (b *Broker) Remove(ctx context.Context) error {
	return b.channel(ctx, func(ch *amqp.Channel) error {
		for _, name := range append(b.topology.names(), b.topology.parked()) {
			if _, err := ch.QueueDelete(name, false, false, false); err != nil {
				return err
			}
		}
		for _, name := range b.topology.exchanges() {
			if err := ch.ExchangeDelete(name, false, false); err != nil {
				return err
			}
		}
		return nil
	})
}

// Ping implements models.Broker.
func (b *Broker) Ping(ctx context.Context) error {
	if err := b.subs.Open(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if _, err := b.publisher.session(ctx); err != nil {
		return err
	}
	return b.restorer.whole(ctx, b.publisher.conn)
}

// Close implements models.Broker.
func (b *Broker) Close() error {
	if b.subs.Close() {
		b.watching.Wait()
		b.publisher.conn.close()
		b.consume.close()
	}
	return nil
}
