package rabbit

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/safedelivr/safedelivr/models"
)

const (
	publishWait   = 5 * time.Second // where the caller set no deadline
	returnsBuffer = 4096
)

// publisher publishes with confirms over one channel of its own connection. One
// goroutine writes, so that a broker that stops reading can hold nobody but it.
type publisher struct {
	topology topology
	log      *slog.Logger
	conn     *connection
	now      atomic.Pointer[publishing]
	ids      atomic.Uint64
}

// publishing is the publisher on one connection.
type publishing struct {
	ch      *amqp.Channel
	in      chan *writing
	over    chan struct{} // closed when the channel is
	blocked atomic.Bool

	mu       sync.Mutex
	returns  chan amqp.Return
	returned map[string]bool
}

// outgoing is one message to publish. Nobody changes it: what is tried again may
// still be written by the try before.
type outgoing struct {
	exchange, key string
	msg           amqp.Publishing
}

// writing is one try to publish a message. It has a copy and a channel of its own,
// since it may hang in the socket long after its caller gave up.
type writing struct {
	outgoing
	confirm chan *amqp.DeferredConfirmation // nil when it could not be written
}

func (p *publisher) writing(o *outgoing) *writing {
	w := &writing{outgoing: *o, confirm: make(chan *amqp.DeferredConfirmation, 1)}
	w.msg.DeliveryMode = amqp.Persistent
	w.msg.MessageId = strconv.FormatUint(p.ids.Add(1), 36) + "-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	return w
}

func newPublisher(urls []string, t topology, log *slog.Logger) *publisher {
	p := &publisher{topology: t, log: log}
	p.conn = connect(urls, "safedelivr publish", log, p.up)
	return p
}

// up prepares a new connection: topology, confirms, returns.
func (p *publisher) up(conn *amqp.Connection) error {
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	if err := p.topology.declare(ch); err != nil {
		return err
	}
	if err := ch.Confirm(false); err != nil {
		return err
	}
	s := &publishing{ch: ch, in: make(chan *writing), over: make(chan struct{}), returned: map[string]bool{},
		returns: ch.NotifyReturn(make(chan amqp.Return, returnsBuffer))}
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	blocked := conn.NotifyBlocked(make(chan amqp.Blocking, 8))
	p.now.Store(s)
	go s.write()
	go func() {
		drain := time.NewTicker(50 * time.Millisecond)
		defer drain.Stop()
		for {
			select {
			case b, ok := <-blocked:
				if !ok {
					blocked = nil
					continue
				}
				s.blocked.Store(b.Active)
				p.log.Warn("RabbitMQ blocks publishing", "active", b.Active, "err", b.Reason)
			case <-drain.C:
				s.wasReturned("")
			case <-closed:
				p.now.CompareAndSwap(s, nil)
				close(s.over)
				if !conn.IsClosed() { // the channel alone was closed: start over
					go closeConn(conn)
				}
				return
			}
		}
	}()
	return nil
}

// write publishes what comes, in order. It may hang in the socket while the
// broker does not read; the connection then ends by its heartbeat.
func (s *publishing) write() {
	for {
		select {
		case w := <-s.in:
			d, err := s.ch.PublishWithDeferredConfirm(w.exchange, w.key, true, false, w.msg)
			if err != nil {
				d = nil
			}
			w.confirm <- d
		case <-s.over:
			return
		}
	}
}

// wasReturned takes in what the broker returned so far, and reports whether the
// message is among it. The library hands over a return before the confirm of the
// same message.
func (s *publishing) wasReturned(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		select {
		case r, ok := <-s.returns:
			if !ok {
				s.returns = nil // a nil channel is never ready
				continue
			}
			s.returned[r.MessageId] = true
			continue
		default:
		}
		break
	}
	if s.returned[id] {
		delete(s.returned, id)
		return true
	}
	return false
}

// session waits for a usable connection.
func (p *publisher) session(ctx context.Context) (*publishing, error) {
	for {
		if _, err := p.conn.wait(ctx); err != nil {
			return nil, err
		}
		if s := p.now.Load(); s != nil {
			if s.blocked.Load() {
				return nil, fmt.Errorf("%w: RabbitMQ blocks publishers (memory or disk alarm)", models.ErrUnavailable)
			}
			return s, nil
		}
		select { // between the loss of a channel and of its connection
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: RabbitMQ: %w", models.ErrUnavailable, ctx.Err())
		}
	}
}

// publish writes messages and waits until the broker has all of them.
func (p *publisher) publish(ctx context.Context, out []*outgoing) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, publishWait)
		defer cancel()
	}
	s, err := p.session(ctx)
	if err != nil {
		return err
	}
	confirms := make([]*amqp.DeferredConfirmation, len(out))
	ids := make([]string, len(out))
	for i, o := range out {
		w := p.writing(o)
		ids[i] = w.msg.MessageId
		select {
		case s.in <- w:
		case <-s.over:
			return fmt.Errorf("%w: RabbitMQ went away while publishing", models.ErrUnavailable)
		case <-ctx.Done():
			return fmt.Errorf("%w: RabbitMQ does not take messages: %w", models.ErrUnavailable, ctx.Err())
		}
		select {
		case confirms[i] = <-w.confirm:
		case <-ctx.Done():
			return fmt.Errorf("%w: RabbitMQ does not take messages: %w", models.ErrUnavailable, ctx.Err())
		}
		if confirms[i] == nil {
			return fmt.Errorf("%w: RabbitMQ went away while publishing", models.ErrUnavailable)
		}
	}
	unroutable := 0
	for i, c := range confirms {
		acked, err := c.WaitContext(ctx)
		if err != nil {
			return fmt.Errorf("%w: RabbitMQ confirmed nothing: %w", models.ErrUnavailable, err)
		}
		if !acked {
			return fmt.Errorf("%w: RabbitMQ refused a message or went away", models.ErrUnavailable)
		}
		if s.wasReturned(ids[i]) {
			unroutable++
		}
	}
	if unroutable > 0 {
		return fmt.Errorf("%w: %d of %d", models.ErrUnroutable, unroutable, len(out))
	}
	return nil
}
