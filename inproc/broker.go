// Package inproc implements the Broker in the memory of one process. No other
// service is needed.
package inproc

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/subscribers"
)

var _ models.Broker = (*Broker)(nil)

// maxQueue bounds the messages that one queue holds in memory. Beyond it Publish
// fails, and the agenda announces them later.
const maxQueue = 2_000_000

// maxParked bounds the parked messages, because each may hold a long reason.
const maxParked = 10_000

// maxStandby bounds what a standby holds in one queue, and in all delays. It is what its handlers do in a minute or
// two, after which the agenda announces the rest again.
const maxStandby = 10_000

// Broker is a topic exchange with its queues, in memory. A crash loses all messages.
// The agenda announces the work again.
type Broker struct {
	log    *slog.Logger
	behind models.Broker // takes what handlers cannot do; nil: it is parked
	most   int           // messages in one queue
	late   int           // messages in all delays; 0: any number
	queues []*queue
	byName map[string]*queue
	delay  *delays
	subs   *subscribers.Group

	mu     sync.Mutex
	parked []models.Parked // oldest first, at most maxParked
	nextID int
}

// NewStandby returns a broker for the messages that another one cannot take for a while. It takes few, and fails beyond
// them. The other one gets what handlers cannot do, and parks it where operators see it. Errors: models.ErrInvalid.
func NewStandby(providers []string, other models.Broker, log *slog.Logger) (*Broker, error) {
	b, err := New(providers, log)
	if err == nil {
		b.behind, b.most, b.late = other, maxStandby, maxStandby
	}
	return b, err
}

// New returns a broker with the queues of the given providers. A nil logger logs
// nothing. Errors: models.ErrInvalid.
func New(providers []string, log *slog.Logger) (*Broker, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	b := &Broker{log: log, most: maxQueue, byName: map[string]*queue{}, subs: subscribers.New(context.Background())}
	for _, a := range providers {
		if !models.ValidProviderName(a) {
			return nil, fmt.Errorf("%w: provider name %q", models.ErrInvalid, a)
		}
	}
	for _, q := range models.Queues(providers) {
		if b.byName[q.Name()] == nil {
			n := newQueue(q)
			b.queues = append(b.queues, n)
			b.byName[q.Name()] = n
		}
	}
	b.delay = newDelays(b.enqueue)
	return b, nil
}

// route returns the queue that a message leads to, or nil.
func (b *Broker) route(m *models.Message) *queue {
	key := m.Key()
	for _, q := range b.queues {
		if (q.Lane == "" || q.Lane == m.Lane) && models.MatchKey(q.binding, key) {
			return q
		}
	}
	return nil
}

// Publish implements models.Broker.
func (b *Broker) Publish(ctx context.Context, ms ...models.Message) error {
	for i := range ms {
		if err := ms[i].Validate(); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: publish: %w", models.ErrUnavailable, err)
	}
	if err := b.subs.Open(); err != nil {
		return err
	}
	unroutable, now := 0, time.Now()
	for i := range ms {
		q := b.route(&ms[i])
		if q == nil {
			unroutable++
			continue
		}
		if q.len() >= b.most || b.late > 0 && !ms[i].NotBefore.IsZero() && b.delay.len() >= b.late {
			return fmt.Errorf("%w: queue %s is full", models.ErrUnavailable, q.Name())
		}
		d := &delivery{m: ms[i], q: q}
		d.m.Stamp(now)
		b.enqueue(d)
	}
	if unroutable > 0 {
		return fmt.Errorf("%w: %d of %d", models.ErrUnroutable, unroutable, len(ms))
	}
	return nil
}

// Hand gives a message to a handler that has nothing to do. Otherwise it returns false.
func (b *Broker) Hand(m models.Message) bool {
	q := b.route(&m)
	if q == nil || b.subs.Open() != nil {
		return false
	}
	d := &delivery{m: m, q: q}
	d.m.Stamp(time.Now())
	return q.handOver(d)
}

// enqueue puts a delivery into its queue, or into the delay until it is due.
func (b *Broker) enqueue(d *delivery) {
	if wait := time.Until(d.m.NotBefore); !d.m.NotBefore.IsZero() && wait > 0 {
		b.delay.add(d, d.m.NotBefore)
		return
	}
	d.q.push(d)
}

// Subscribe implements models.Broker.
func (b *Broker) Subscribe(ctx context.Context, q models.Queue, concurrency int, h models.Handler) error {
	queue := b.byName[q.Name()]
	if queue == nil || concurrency < 1 || h == nil {
		return fmt.Errorf("%w: subscription to %s with concurrency %d", models.ErrInvalid, q.Name(), concurrency)
	}
	ctx, leave, err := b.subs.Join(ctx)
	if err != nil {
		return err
	}
	defer leave()
	queue.serve(concurrency)
	stopped := sync.OnceFunc(func() { queue.serve(-concurrency) })
	defer stopped()
	defer context.AfterFunc(ctx, stopped)()
	var workers sync.WaitGroup
	for range concurrency {
		workers.Go(func() {
			for {
				d := queue.pop(ctx)
				if d == nil {
					return
				}
				b.handle(ctx, d, h)
			}
		})
	}
	workers.Wait()
	if b.behind != nil { // another process may handle the rest
		b.pass(ctx, 0, queue.all()...)
	}
	return nil
}

// handle runs the handler for a delivery and does what it decided.
func (b *Broker) handle(ctx context.Context, d *delivery, h models.Handler) {
	disposition, panicked := h.Run(ctx, d.m)
	d.q.ended()
	if panicked != "" {
		d.panics++
		b.log.Error("handler panicked", "queue", d.q.Name(), "err", panicked)
		if b.pass(ctx, 0, d) {
			return
		}
		if d.panics >= models.MaxDeliveries {
			b.park(d.m, "its handler panicked "+strconv.Itoa(d.panics)+" times: "+panicked)
			return
		}
		b.later(d, min(time.Duration(d.panics)*100*time.Millisecond, time.Second))
		return
	}
	d.panics = 0
	if why, ok := disposition.IsPark(); ok {
		if !b.pass(ctx, 0, d) {
			b.park(d.m, why)
		}
		return
	}
	if wait, ok := disposition.IsLater(); ok && (ctx.Err() == nil || !b.pass(ctx, wait, d)) {
		b.later(d, wait)
	}
}

// passTime is how long the other broker may take for messages.
const passTime = 5 * time.Second

// pass gives deliveries to the other broker, if there is one and it takes them. They are due after a wait.
func (b *Broker) pass(ctx context.Context, wait time.Duration, ds ...*delivery) bool {
	if b.behind == nil || len(ds) == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), passTime)
	defer cancel()
	ms := make([]models.Message, len(ds))
	for i, d := range ds {
		ms[i] = d.m
		ms[i].NotBefore, ms[i].At = time.Time{}, time.Time{}
		if wait > 0 {
			ms[i].NotBefore = time.Now().Add(wait)
		}
	}
	return b.behind.Publish(ctx, ms...) == nil
}

// later puts a delivery at the end of its queue after a wait.
func (b *Broker) later(d *delivery, wait time.Duration) {
	d.m.At = time.Now().Add(wait).UTC().Round(0)
	if wait <= 0 {
		d.q.push(d)
		return
	}
	b.delay.add(d, d.m.At)
}

// park moves a message to the parking lot.
func (b *Broker) park(m models.Message, why string) {
	why = models.ParkedWhy(why)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.nextID++
	b.keepParked(&models.Parked{
		ID:      strconv.Itoa(b.nextID),
		Message: m,
		Key:     m.Key(),
		Why:     why,
		At:      time.Now().UTC(),
	})
	b.log.Warn("message parked", "queue", m.Key(), "err", why)
}

// keepParked inserts a parked message by its time and drops the oldest if there are
// too many. Nothing is lost: the agenda knows the work. b.mu is held.
func (b *Broker) keepParked(p *models.Parked) {
	at := len(b.parked)
	for at > 0 && b.parked[at-1].At.After(p.At) {
		at--
	}
	b.parked = slices.Insert(b.parked, at, *p)
	if over := len(b.parked) - maxParked; over > 0 {
		b.log.Warn("too many parked messages: the oldest was dropped", "queue", b.parked[0].Key, "err", b.parked[0].Why)
		b.parked = slices.Delete(b.parked, 0, over)
	}
}

// Depths implements models.Broker.
func (b *Broker) Depths(context.Context) ([]models.Depth, error) {
	out := make([]models.Depth, 0, len(b.queues))
	for _, q := range b.queues {
		ready, unacked := q.depth()
		out = append(out, models.Depth{Queue: q.Queue, Ready: ready, Unacked: unacked})
	}
	return out, b.subs.Open()
}

// Parked implements models.Broker.
func (b *Broker) Parked(_ context.Context, limit int) ([]models.Parked, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.subs.Open(); err != nil {
		return nil, err
	}
	return append([]models.Parked(nil), b.parked[:min(max(limit, 0), len(b.parked))]...), nil
}

// takeParked removes a parked message and returns it. Errors: models.ErrNotFound.
func (b *Broker) takeParked(id string) (models.Parked, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.subs.Open(); err != nil {
		return models.Parked{}, err
	}
	for i, p := range b.parked {
		if p.ID == id {
			b.parked = slices.Delete(b.parked, i, i+1)
			return p, nil
		}
	}
	return models.Parked{}, fmt.Errorf("%w: parked message %s", models.ErrNotFound, id)
}

// Unpark implements models.Broker.
func (b *Broker) Unpark(ctx context.Context, id string) error {
	p, err := b.takeParked(id)
	if err != nil {
		return err
	}
	m := p.Message
	m.NotBefore, m.At = time.Time{}, time.Time{}
	if err := b.Publish(ctx, m); err != nil {
		b.mu.Lock()
		b.keepParked(&p)
		b.mu.Unlock()
		return err
	}
	return nil
}

// Discard implements models.Broker.
func (b *Broker) Discard(_ context.Context, id string) error {
	_, err := b.takeParked(id)
	return err
}

// Purge implements models.Broker.
func (b *Broker) Purge(context.Context) error {
	if err := b.subs.Open(); err != nil {
		return err
	}
	b.delay.clear()
	for _, q := range b.queues {
		q.clear()
	}
	return nil
}

// Ping implements models.Broker.
func (b *Broker) Ping(context.Context) error { return b.subs.Open() }

// Close implements models.Broker.
func (b *Broker) Close() error {
	if b.subs.Close() {
		b.delay.close()
	}
	return nil
}
