package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/safedelivr/safedelivr/models"
)

const (
	maxAhead   = 256                       // messages that wait in a process for its handlers, at most
	lookAhead  = 20 * time.Millisecond     // how much work waits there
	stuckAfter = time.Second               // when messages that wait there go back
	maxLost    = 10 * models.MaxDeliveries // leases that ended without a result, after which a message is parked
	newerPause = 5 * time.Second           // how long a message of a newer version waits for a newer process
)

// subscription is one call of Subscribe. It fetches messages into ready, from where the handlers take them.
type subscription struct {
	b           *Broker
	queue, name string
	handler     models.Handler
	concurrency int
	ready       chan *delivery
	wake        chan struct{} // holds a token if there is a reason to fetch

	mu      sync.Mutex
	taken   int           // messages in ready and with handlers
	pace    time.Duration // of handlers; 0: unknown
	started time.Time     // when a handler last got a message
	full    bool          // a handler that ends is a reason to fetch
}

// Subscribe implements models.Broker.
func (b *Broker) Subscribe(ctx context.Context, q models.Queue, concurrency int, h models.Handler) error {
	if !slices.Contains(b.known, q.Name()) || concurrency < 1 || h == nil {
		return fmt.Errorf("%w: subscription to %s with concurrency %d", models.ErrInvalid, q.Name(), concurrency)
	}
	ctx, leave, err := b.subs.Join(ctx)
	if err != nil {
		return err
	}
	defer leave()
	s := &subscription{b: b, queue: q.Name(), handler: h, concurrency: concurrency,
		ready: make(chan *delivery, concurrency+maxAhead), wake: make(chan struct{}, 1)}
	b.mu.Lock()
	b.number++
	s.name = b.name + "/" + strconv.Itoa(b.number)
	b.running[s] = true
	b.mu.Unlock()
	var handlers sync.WaitGroup
	for range concurrency {
		handlers.Go(func() {
			for d := range s.ready {
				s.handle(ctx, d)
			}
		})
	}
	s.fetch(ctx)
	s.giveBack()
	close(s.ready)
	handlers.Wait()
	b.mu.Lock()
	delete(b.running, s)
	b.mu.Unlock()
	return nil
}

// signal makes the subscription fetch.
func (s *subscription) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// fetch fetches messages until ctx ends.
func (s *subscription) fetch(ctx context.Context) {
	for pause := newPause(); ctx.Err() == nil; {
		if s.stuck() {
			s.giveBack() // others may take them
		}
		wait := s.b.config.poll + rand.N(s.b.config.poll/5) //nolint:gosec // jitter
		if n := s.room(); n > 0 {
			got, next, err := s.take(n)
			if err != nil {
				s.b.log.Warn("messages cannot be fetched", "queue", s.queue, "err", err)
				sleep(ctx, pause.NextBackOff())
				continue
			}
			pause.Reset()
			if got == n {
				continue
			}
			wait = min(wait, next)
		}
		select {
		case <-s.wake:
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// stuck reports whether messages wait behind hanging handlers.
func (s *subscription) stuck() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ready) == 0 || time.Since(s.started) < stuckAfter {
		return false
	}
	s.pace = max(s.pace, stuckAfter)
	return true
}

// room returns how many messages to fetch. It fetches ahead only for fast handlers.
func (s *subscription) room() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	ahead := 0
	if s.pace > 0 {
		ahead = int(min(maxAhead, time.Duration(s.concurrency)*lookAhead/s.pace))
	}
	n := max(0, s.concurrency+ahead-s.taken)
	if s.taken >= s.concurrency && len(s.ready) > ahead/2 {
		n = 0
	}
	s.full = n == 0
	return n
}

// take takes up to n messages and returns when the next one is due. It does not end with the subscription, because
// the server may have carried out what was given up. Messages that a subscription took without knowing are those
// that it does not hold: it takes them again.
func (s *subscription) take(n int) (got int, next time.Duration, err error) {
	held := []int64{}
	s.b.mu.Lock()
	for l, by := range s.b.held {
		if by == s {
			held = append(held, l.ID)
		}
	}
	s.b.mu.Unlock()
	var ds []*delivery
	us := time.Hour.Microseconds()
	err = s.b.send(func(batch *pgx.Batch) {
		batch.Queue(s.b.in(`UPDATE $.queue_message SET taken_until = now() + $5::bigint * interval '1 microsecond',
				taken_by = $3, deliveries = deliveries + 1, lost = lost + (taken_by IS NOT NULL)::integer
			WHERE id = ANY(ARRAY(SELECT id FROM $.queue_message
				WHERE queue = $1 AND parked_at IS NULL AND due <= now()
					AND (taken_until IS NULL OR taken_until <= now() OR taken_by = $3 AND id <> ALL($4::bigint[]))
				ORDER BY due, id LIMIT $2 FOR UPDATE SKIP LOCKED))
			RETURNING id, deliveries, due, queued_at, panics, lost, body`),
			s.queue, n, s.name, held, micros(s.b.config.lease)).Query(func(rows pgx.Rows) error {
			ds, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (*delivery, error) {
				d := &delivery{queue: s.queue}
				return d, row.Scan(&d.ID, &d.Number, &d.due, &d.queued, &d.Panics, &d.Lost, &d.body)
			})
			return err
		})
		batch.Queue(s.b.in(`SELECT coalesce((extract(epoch FROM min(due) - now()) * 1000000)::bigint, $2)
			FROM $.queue_message WHERE queue = $1 AND parked_at IS NULL AND due > now()`), s.queue, us).
			QueryRow(func(row pgx.Row) error { return row.Scan(&us) })
	})
	if err != nil {
		return 0, 0, err
	}
	slices.SortFunc(ds, func(a, b *delivery) int { return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.ID, b.ID)) })
	s.b.mu.Lock()
	for _, d := range ds {
		s.b.held[d.lease] = s
	}
	s.b.mu.Unlock()
	s.mu.Lock()
	s.taken += len(ds)
	s.started = time.Now()
	s.mu.Unlock()
	for _, d := range ds {
		s.ready <- d
	}
	return len(ds), time.Duration(us) * time.Microsecond, nil
}

// giveBack gives back all messages that no handler has got.
func (s *subscription) giveBack() {
	for {
		select {
		case d := <-s.ready:
			s.end(d, 0)
		default:
			return
		}
	}
}

// handle runs the handler for a message and does what it decided.
func (s *subscription) handle(ctx context.Context, d *delivery) {
	if ctx.Err() != nil {
		s.end(d, 0)
		return
	}
	began := time.Now()
	s.mu.Lock()
	s.started = began
	s.mu.Unlock()
	m, err := decode(d.body)
	switch {
	case errors.Is(err, models.ErrNewer):
		d.later(newerPause)
	case err != nil:
		d.park(err.Error())
	case d.Lost >= maxLost:
		d.park(fmt.Sprintf("taken %d times without a result: workers crashed or lost their connection", d.Lost))
	default:
		if d.queued != nil {
			m.At = d.queued.UTC()
		}
		if m.NotBefore.After(began) { // its publisher's clock is ahead of this one
			m.NotBefore = began
		}
		disposition, panicked := s.handler.Run(ctx, m)
		s.decide(d, disposition, panicked)
	}
	if d.Why != nil {
		s.b.log.Warn("message parked", "queue", s.queue, "err", *d.Why)
	}
	s.end(d, max(time.Since(began), time.Microsecond))
}

// decide sets the result of a delivery whose handler has returned or panicked.
func (s *subscription) decide(d *delivery, disposition models.Disposition, panicked string) {
	d.Lost = 0
	if panicked != "" {
		s.b.log.Error("handler panicked", "queue", s.queue, "err", panicked)
		if d.Panics++; d.Panics >= models.MaxDeliveries {
			d.park(fmt.Sprintf("its handler panicked %d times: %s", d.Panics, panicked))
			return
		}
		d.later(min(time.Duration(d.Panics)*100*time.Millisecond, time.Second))
		return
	}
	d.Panics, d.Done = 0, disposition.IsDone()
	if why, ok := disposition.IsPark(); ok {
		d.park(why)
	}
	if wait, ok := disposition.IsLater(); ok {
		d.later(wait)
	}
}

// end hands over a delivery with its result. took is how long its handler ran, or 0 if none did. The pace follows
// slow handlers at once and fast ones gradually.
func (s *subscription) end(d *delivery, took time.Duration) {
	s.mu.Lock()
	s.taken--
	if took >= s.pace {
		s.pace = took
	} else if took > 0 {
		s.pace = max(time.Microsecond, s.pace+(took-s.pace)/8)
	}
	if s.full {
		s.signal()
	}
	s.mu.Unlock()
	s.b.mu.Lock()
	s.b.results = append(s.b.results, d)
	s.b.mu.Unlock()
	s.b.flushSoon()
}
