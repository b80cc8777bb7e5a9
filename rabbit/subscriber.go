package rabbit

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/safedelivr/safedelivr/models"
)

// subscription is one call of Subscribe. It outlives its sessions, one per channel,
// which share its slots. A handler that still runs after its connection was lost
// keeps its slot, and the others go on.
type subscription struct {
	b       *Broker
	queue   models.Queue
	handler models.Handler
	free    chan struct{}  // holds a token for each slot that no session has
	ending  sync.WaitGroup // sessions that are over and whose handlers are not
	pause   *backoff.ExponentialBackOff
}

// Subscribe implements models.Broker.
func (b *Broker) Subscribe(ctx context.Context, q models.Queue, concurrency int, h models.Handler) error {
	if concurrency < 1 || h == nil || !b.topology.has(q) {
		return fmt.Errorf("%w: subscription to %s with concurrency %d", models.ErrInvalid, q.Name(), concurrency)
	}
	ctx, leave, err := b.subs.Join(ctx)
	if err != nil {
		return err
	}
	defer leave()
	s := &subscription{
		b:       b,
		queue:   q,
		handler: h,
		free:    make(chan struct{}, concurrency),
		pause:   newPause(),
	}
	for range concurrency {
		s.free <- struct{}{}
	}
	defer s.ending.Wait()
	b.sessions(ctx, q.Name(), s.pause, s.session)
	return nil
}

// newPause returns the pause between the sessions of a subscription. It grows while they fail
// before they consume.
func newPause() *backoff.ExponentialBackOff {
	p := backoff.NewExponentialBackOff()
	p.InitialInterval, p.MaxInterval = 200*time.Millisecond, 5*time.Second
	return p
}

// sessions starts one session after the other until ctx ends.
func (b *Broker) sessions(
	ctx context.Context, queue string, pause *backoff.ExponentialBackOff,
	session func(context.Context, *amqp.Connection) error,
) {
	for ctx.Err() == nil {
		conn, err := b.consume.wait(ctx)
		if err != nil {
			continue // ctx ended, or closed
		}
		if err = session(ctx, conn); err == nil || ctx.Err() != nil {
			continue
		}
		b.log.Warn("subscription interrupted", "queue", queue, "err", err)
		if !conn.IsClosed() { // its queue may have been removed; a new connection declares it
			_ = b.restorer.restore(ctx, b.consume) // tried again with the next session
		}
		select {
		case <-time.After(pause.NextBackOff()):
		case <-ctx.Done():
		}
	}
}

// session is a subscription on one channel.
type session struct {
	*subscription
	ch    *amqp.Channel
	in    chan amqp.Delivery // deliveries of all its consumers
	idle  chan struct{}      // holds a token for each of its slots without a handler
	slots int
	tags  []string      // of its consumers
	ended chan struct{} // holds a token when a consumer has ended
	over  chan struct{} // closed with the session
}

// session consumes over one channel until it breaks or ctx ends. It prefetches as many
// messages as slots are free, so that no message waits here while another process
// could take it. Slots that handlers of earlier sessions give back get a consumer of
// their own.
func (s *subscription) session(ctx context.Context, conn *amqp.Connection) error {
	ch, err := openChannel(ctx, conn)
	if err != nil {
		return err
	}
	on := &session{
		subscription: s,
		ch:           ch,
		in:           make(chan amqp.Delivery),
		idle:         make(chan struct{}, cap(s.free)),
		ended:        make(chan struct{}, 1),
		over:         make(chan struct{}),
	}
	defer on.release()
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	for {
		select {
		case <-s.free:
			if err := on.consume(ctx); err != nil {
				return err
			}
			s.pause.Reset()
		case d := <-on.in:
			on.begin(ctx, &d)
		case <-on.ended:
			select {
			case e := <-closed:
				return orClosed(e)
			default:
				return errors.New("the broker ended the subscription")
			}
		case e := <-closed:
			return orClosed(e)
		case <-ctx.Done():
			on.cancel()
			return nil
		}
	}
}

// consume takes the slot that became free and all other free slots, and starts a
// consumer for as many messages.
func (s *session) consume(ctx context.Context) error {
	n := 1
	for more := true; more; {
		select {
		case <-s.free:
			n++
		default:
			more = false
		}
	}
	s.slots += n
	for range n {
		s.idle <- struct{}{}
	}
	tag := "sd-" + strconv.FormatUint(s.b.tags.Add(1), 36)
	s.tags = append(s.tags, tag)
	return within(ctx, func() error {
		if err := s.ch.Qos(n, 0, false); err != nil { // applies to each consumer that begins from now on
			return err
		}
		deliveries, err := s.ch.Consume(s.b.topology.queue(s.queue), tag, false, false, false, false, nil)
		if err != nil {
			return err
		}
		go s.collect(deliveries)
		return nil
	})
}

// collect forwards the deliveries of a consumer. What arrives after the session goes
// back to its queue when the channel closes.
func (s *session) collect(deliveries <-chan amqp.Delivery) {
	for d := range deliveries {
		select {
		case s.in <- d:
		case <-s.over:
		}
	}
	select {
	case s.ended <- struct{}{}:
	default:
	}
}

// begin starts the handler of a delivery. There are as many slots as deliveries, so it
// waits at most for the end of a handler that has already acknowledged.
func (s *session) begin(ctx context.Context, d *amqp.Delivery) {
	<-s.idle
	if ctx.Err() != nil {
		s.idle <- struct{}{}
		return
	}
	go func() {
		defer func() { s.idle <- struct{}{} }()
		s.b.handle(ctx, d, s.handler)
	}()
}

// endWait bounds the last commands to a RabbitMQ that may not answer.
const endWait = 2 * time.Second

// cancel ends the consumers.
func (s *session) cancel() {
	ctx, done := context.WithTimeout(context.Background(), endWait)
	defer done()
	_ = within(ctx, func() error {
		for _, tag := range s.tags {
			_ = s.ch.Cancel(tag, false)
		}
		return nil
	})
}

// release gives the slots back as their handlers end, and closes the channel after the
// last one, which acknowledges over it. Messages that were prefetched and not begun go back
// to their queue.
func (s *session) release() {
	close(s.over)
	s.ending.Go(func() {
		for range s.slots {
			s.free <- <-s.idle
		}
		ctx, done := context.WithTimeout(context.Background(), endWait)
		defer done()
		_ = within(ctx, s.ch.Close) // an error says that it is closed already
	})
}
