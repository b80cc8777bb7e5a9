package rabbit

import (
	"context"
	"errors"
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
	publishWait   = 5 * time.Second // if the caller set no deadline
	returnsBuffer = 4096
)

// publisher publishes with confirms over one channel of its own connection. Only one
// goroutine writes, so that a peer that stops reading blocks no caller.
type publisher struct {
	topology topology
	restorer *restorer
	log      *slog.Logger
	conn     *connection
	now      atomic.Pointer[publishing]
	ids      atomic.Uint64
}

// publishing is the state of a publisher on one connection.
type publishing struct {
	ch      *amqp.Channel
	in      chan *writing
	over    chan struct{} // closed when the channel is
	why     *amqp.Error   // why the channel was closed; set before over is closed
	blocked atomic.Bool

	mu       sync.Mutex
	returns  chan amqp.Return
	returned map[string]bool
}

// outgoing is one message to publish. It is never changed, because an earlier try may
// still be writing it.
type outgoing struct {
	exchange, key string
	msg           amqp.Publishing
	ours          bool // it leads to a queue that this process declares
	transient     bool // it may be lost, and lead to no queue
}

// writing is one try to publish a message. It has its own copy and its own channel,
// because it may hang in the socket long after its caller gave up.
type writing struct {
	outgoing
	confirm chan *amqp.DeferredConfirmation // nil when it could not be written
}

func (p *publisher) writing(o *outgoing) *writing {
	w := &writing{outgoing: *o, confirm: make(chan *amqp.DeferredConfirmation, 1)}
	if !o.transient {
		w.msg.DeliveryMode = amqp.Persistent
	}
	w.msg.MessageId = strconv.FormatUint(p.ids.Add(1), 36) + "-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	return w
}

func newPublisher(n nodes, t topology, r *restorer, log *slog.Logger) *publisher {
	p := &publisher{topology: t, restorer: r, log: log}
	p.conn = connect(n, "safedelivr publish", log, p.up)
	return p
}

// up prepares a new connection: it declares the topology and asks for confirms and
// returns.
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
	s := &publishing{
		ch:       ch,
		in:       make(chan *writing),
		over:     make(chan struct{}),
		returned: map[string]bool{},
		returns:  ch.NotifyReturn(make(chan amqp.Return, returnsBuffer)),
	}
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
			case s.why = <-closed:
				p.now.CompareAndSwap(s, nil)
				close(s.over)
				if !conn.IsClosed() { // only the channel was closed: start over
					go closeConn(conn)
				}
				return
			}
		}
	}()
	return nil
}

// write publishes messages in order. It may hang in the socket while RabbitMQ does not
// read. The heartbeat then ends the connection.
func (s *publishing) write() {
	for {
		select {
		case w := <-s.in:
			d, err := s.ch.PublishWithDeferredConfirm(w.exchange, w.key, !w.transient, false, w.msg)
			if err != nil {
				d = nil
			}
			w.confirm <- d
		case <-s.over:
			return
		}
	}
}

// wasReturned collects what RabbitMQ has returned and reports whether a message is
// among it. The library delivers a return before the confirm of the same message.
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

// publish writes messages and waits until RabbitMQ has confirmed all of them. If some
// were unroutable because a queue or an exchange was removed, it declares everything
// again and tries those once more.
func (p *publisher) publish(ctx context.Context, out []*outgoing) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, publishWait)
		defer cancel()
	}
	left, err := p.try(ctx, out)
	if len(left) == 0 {
		return err
	}
	p.log.Warn("messages were unroutable; declaring queues and exchanges again", "err", err)
	if errors.Is(err, models.ErrUnroutable) { // else a new connection declares it
		if failed := p.restorer.restore(ctx, p.conn); failed != nil {
			return fmt.Errorf("%w; declaring it again failed: %w", err, failed)
		}
	}
	_, err = p.try(ctx, left)
	return err
}

// try publishes once. With an error it returns the messages that were unroutable
// although this process declares their queue.
func (p *publisher) try(ctx context.Context, out []*outgoing) (left []*outgoing, err error) {
	s, err := p.session(ctx)
	if err != nil {
		return nil, err
	}
	confirms := make([]*amqp.DeferredConfirmation, 0, len(out))
	ids := make([]string, 0, len(out))
	for _, o := range out {
		w := p.writing(o)
		select {
		case s.in <- w:
		case <-s.over:
			return s.unsure(ctx, out, confirms), fmt.Errorf("%w: RabbitMQ went away while publishing", models.ErrUnavailable)
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: RabbitMQ does not take messages: %w", models.ErrUnavailable, ctx.Err())
		}
		select {
		case c := <-w.confirm:
			if c == nil {
				return s.unsure(ctx, out, confirms), fmt.Errorf("%w: RabbitMQ went away while publishing", models.ErrUnavailable)
			}
			confirms, ids = append(confirms, c), append(ids, w.msg.MessageId)
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: RabbitMQ does not take messages: %w", models.ErrUnavailable, ctx.Err())
		}
	}
	ours := false
	for i, c := range confirms {
		acked, err := c.WaitContext(ctx)
		if err != nil {
			return nil, fmt.Errorf("%w: RabbitMQ confirmed nothing: %w", models.ErrUnavailable, err)
		}
		if !acked {
			return s.unsure(ctx, out, confirms), fmt.Errorf("%w: RabbitMQ refused a message or went away", models.ErrUnavailable)
		}
		if s.wasReturned(ids[i]) {
			left, ours = append(left, out[i]), ours || out[i].ours
		}
	}
	if len(left) == 0 {
		return nil, nil
	}
	err = fmt.Errorf("%w: %d of %d", models.ErrUnroutable, len(left), len(out))
	if !ours {
		left = nil
	}
	return left, err
}

// unsure returns the messages that RabbitMQ may not have taken, if it closed the
// channel because an exchange is missing. Otherwise it returns none.
func (s *publishing) unsure(
	ctx context.Context, out []*outgoing, confirms []*amqp.DeferredConfirmation,
) (left []*outgoing) {
	if !s.ch.IsClosed() {
		return nil
	}
	select {
	case <-s.over:
	case <-ctx.Done():
		return nil
	}
	if s.why == nil || s.why.Code != amqp.NotFound {
		return nil
	}
	for i, o := range out {
		if i >= len(confirms) || !confirms[i].Acked() {
			left = append(left, o)
		}
	}
	return left
}
