package rabbit

import (
	"fmt"
	"math"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/safedelivr/safedelivr/models"
)

// topology names and declares all queues and exchanges on RabbitMQ.
//
//	prefix.main    topic; publishers publish here, mandatory: a message without a queue is an error
//	prefix.return  topic; messages that leave a delay; its alternate exchange is
//	               prefix.unrouted, so that nothing unroutable can block a delay queue;
//	               a process that browses the parking lot moves them there
//	prefix.<group> headers; splits the messages of one consumer by lane. Groups:
//	               batch, <provider>, log.<provider>
//	prefix.delay.* one exchange and queue per tier: message TTL, dead-lettered to
//	               prefix.return under the key they came with
//	prefix.wakes.* exclusive queue of a process that wakes are for; not declared here
//	prefix.parking fanout; parked messages, by a handler or by the delivery limit
//	prefix.parked.lock
//	               exclusive queue of the connection that browses the parking lot
type topology struct {
	prefix string
	queues []models.Queue
}

// tiers are the delays. A message that must wait for another time passes several of
// them.
var tiers = []time.Duration{250 * time.Millisecond, time.Second, 5 * time.Second, 15 * time.Second, time.Minute,
	5 * time.Minute,
	15 * time.Minute, time.Hour, 4 * time.Hour}

const laneHeader = "sd-lane"

// queueLimit is the delivery limit of a queue. RabbitMQ refuses another value for a
// queue that exists, so it never changes. renew keeps messages below it.
const queueLimit = 20

func newTopology(prefix string, providers []string) topology {
	return topology{prefix: prefix, queues: models.Queues(providers)}
}

func (t topology) name(s string) string         { return t.prefix + "." + s }
func (t topology) main() string                 { return t.name("main") }
func (t topology) back() string                 { return t.name("return") }
func (t topology) unrouted() string             { return t.name("unrouted") }
func (t topology) parking() string              { return t.name("parking") }
func (t topology) parked() string               { return t.name("parked") }
func (t topology) parkedLock() string           { return t.name("parked.lock") }
func (t topology) delay(d time.Duration) string { return t.name("delay." + d.String()) }
func (t topology) queue(q models.Queue) string  { return t.name("q." + q.Name()) }

// group returns the name of the headers exchange that a queue with a lane is bound to.
func (t topology) group(q models.Queue) string {
	switch q.Kind {
	case models.BatchMessage:
		return t.name("group.batch")
	case models.LogMessage:
		return t.name("group.log." + q.Provider)
	case models.ProviderMessage, models.EventMessage:
	}
	return t.name("group." + q.Provider)
}

// tier returns the longest delay that is not longer than d, or the shortest delay.
func tier(d time.Duration) time.Duration {
	best := tiers[0]
	for _, t := range tiers {
		if t <= d {
			best = t
		}
	}
	return best
}

func (t topology) has(q models.Queue) bool { return slices.Contains(t.queues, q) }

// onto declares everything over a connection.
func (t topology) onto(conn *amqp.Connection) error {
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	if err := t.declare(ch); err != nil {
		_ = ch.Close()
		return err
	}
	return ch.Close()
}

// check returns amqp.NotFound if an exchange or a queue is missing. AMQP has no way to
// check bindings.
func (t topology) check(conn *amqp.Connection) error {
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	defer func() { _ = ch.Close() }()
	for _, name := range t.exchanges() {
		if err := ch.ExchangeDeclarePassive(name, amqp.ExchangeTopic, true, false, false, false, nil); err != nil {
			return err
		}
	}
	for _, name := range append(t.names(), t.parked()) {
		if _, err := ch.QueueDeclarePassive(name, true, false, false, false, nil); err != nil {
			return err
		}
	}
	return nil
}

// declare creates what does not exist yet. It is idempotent. RabbitMQ refuses it if
// something else has one of the names.
func (t topology) declare(ch *amqp.Channel) error {
	d := declarer{ch: ch}
	d.exchange(t.unrouted(), amqp.ExchangeFanout, nil)
	// Without a limit of its own RabbitMQ 4 removes a message that was returned 20 times.
	d.queue(t.unrouted(), amqp.Table{"x-queue-type": "quorum", "x-max-length": int32(100_000),
		"x-delivery-limit": int32(math.MaxInt32)})
	d.bind(t.unrouted(), "", t.unrouted(), nil)
	d.exchange(t.parking(), amqp.ExchangeFanout, nil)
	// It is a quorum queue because a classic one goes down with its node and cannot be
	// declared elsewhere then. Browsing counts as a delivery, so the delivery limit,
	// which is 20 by default, is out of reach.
	d.queue(t.parked(), amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int32(math.MaxInt32)})
	d.bind(t.parked(), "", t.parking(), nil)
	d.exchange(t.main(), amqp.ExchangeTopic, nil)
	d.exchange(t.back(), amqp.ExchangeTopic, amqp.Table{"alternate-exchange": t.unrouted()})
	for _, q := range t.queues {
		t.declareQueue(&d, q)
	}
	for _, ttl := range tiers {
		name := t.delay(ttl)
		d.exchange(name, amqp.ExchangeFanout, nil) // a fanout keeps the routing key
		d.queue(name, amqp.Table{"x-queue-type": "quorum", "x-message-ttl": ttl.Milliseconds(),
			"x-dead-letter-exchange": t.back()})
		d.bind(name, "", name, nil)
	}
	return d.err
}

func (t topology) declareQueue(d *declarer, q models.Queue) {
	d.queue(t.queue(q), amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int32(queueLimit),
		"x-dead-letter-exchange": t.parking()})
	if q.Lane == "" {
		d.bind(t.queue(q), q.Binding(), t.main(), nil)
		d.bind(t.queue(q), q.Binding(), t.back(), nil)
		return
	}
	group := t.group(q)
	d.exchange(group, amqp.ExchangeHeaders, nil)
	d.bindExchange(group, q.Binding(), t.main())
	d.bindExchange(group, q.Binding(), t.back())
	d.bind(t.queue(q), "", group, amqp.Table{"x-match": "all", laneHeader: string(q.Lane)})
}

// names lists the queues that Purge empties. Queues that feed others come first.
func (t topology) names() []string {
	var out []string
	for _, ttl := range slices.Backward(tiers) {
		out = append(out, t.delay(ttl))
	}
	for _, q := range t.queues {
		out = append(out, t.queue(q))
	}
	return append(out, t.unrouted())
}

// exchanges lists all exchanges.
func (t topology) exchanges() []string {
	out := []string{t.main(), t.back(), t.unrouted(), t.parking()}
	for _, ttl := range tiers {
		out = append(out, t.delay(ttl))
	}
	for _, q := range t.queues {
		if q.Lane != "" {
			out = append(out, t.group(q))
		}
	}
	return out
}

// declarer declares until the first error.
type declarer struct {
	ch  *amqp.Channel
	err error
}

func (d *declarer) do(what string, f func() error) {
	if d.err != nil {
		return
	}
	if err := f(); err != nil {
		d.err = fmt.Errorf("declare %s: %w", what, err)
	}
}

func (d *declarer) exchange(name, kind string, args amqp.Table) {
	d.do("exchange "+name, func() error { return d.ch.ExchangeDeclare(name, kind, true, false, false, false, args) })
}

func (d *declarer) queue(name string, args amqp.Table) {
	d.do("queue "+name, func() error {
		_, err := d.ch.QueueDeclare(name, true, false, false, false, args)
		return err
	})
}

func (d *declarer) bind(queue, key, exchange string, args amqp.Table) {
	d.do("binding of "+queue, func() error { return d.ch.QueueBind(queue, key, exchange, false, args) })
}

func (d *declarer) bindExchange(to, key, from string) {
	d.do("binding of "+to, func() error { return d.ch.ExchangeBind(to, key, from, false, nil) })
}
