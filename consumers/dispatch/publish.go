package dispatch

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// Outbox publishes messages about chunks. Its methods may be called concurrently.
type Outbox struct {
	Outage  Outage
	broker  Publisher
	standby Publisher
	log     *slog.Logger
}

// NewOutbox returns an Outbox that publishes to a broker. standby takes messages while the broker does not; nil: there
// is none.
func NewOutbox(broker, standby Publisher, log *slog.Logger) *Outbox {
	return &Outbox{broker: broker, standby: standby, log: log}
}

// announce publishes messages about a chunk, and notes in c if that failed.
func (o *Outbox) announce(ctx context.Context, c *Chunk, ms ...models.Message) {
	if len(ms) == 0 {
		return
	}
	for i := range ms {
		ms[i] = c.message(ms[i])
	}
	if !o.Publish(ctx, ms...) {
		c.publishFailed = true
	}
}

// Publish publishes messages and reports whether it succeeded. While the broker takes none, handlers of this process
// get them from the standby. What that refuses only costs time: the agenda finds the chunk.
func (o *Outbox) Publish(ctx context.Context, ms ...models.Message) bool {
	if !o.Outage.Begin(time.Now()) {
		o.handOver(ctx, ms)
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err := o.broker.Publish(ctx, ms...)
	o.Outage.End(time.Now(), err)
	if err != nil {
		o.log.Warn("message not published; the agenda will repeat it",
			"chunk", ms[0].ID.String(), "queue", ms[0].Key(), "err", err)
	}
	if errors.Is(err, models.ErrUnavailable) {
		o.handOver(ctx, ms)
	}
	return err == nil
}

// handOver gives messages to the standby. The broker may have them, too, which is as if it delivered them twice.
func (o *Outbox) handOver(ctx context.Context, ms []models.Message) {
	if o.standby == nil {
		return
	}
	for i := range ms {
		_ = o.standby.Publish(ctx, ms[i]) // it is full: see Publish
	}
}

// Outage tracks the time in which messages cannot be published. Once publishing has
// failed, one try is made each second and all others fail at once, so that handlers do
// not wait for a broker that is down.
type Outage struct {
	mu     sync.Mutex
	since  time.Time // first failure that CaughtUp has not cleared; zero: none
	last   time.Time // latest failure
	down   bool
	from   time.Time // first failure after the latest success, while the broker is down
	why    error     // the latest failure
	trying bool
	next   time.Time // next try while the broker is down
}

// Begin reports whether a try may be made. If so, End must be called.
func (o *Outage) Begin(now time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.down {
		return true
	}
	if o.trying || now.Before(o.next) {
		o.last = now
		return false
	}
	o.trying = true
	return true
}

// End records the result of a try. Only models.ErrUnavailable means that the broker is
// down; other errors are about the message.
func (o *Outage) End(now time.Time, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.trying = false
	before := o.down
	if o.down = errors.Is(err, models.ErrUnavailable); !o.down {
		return
	}
	if o.why = err; !before {
		o.from = now
	}
	if o.since.IsZero() {
		o.since = now
	}
	o.last, o.next = now, now.Add(time.Second)
}

// refusalCounts is how long a failure shows that the broker is down, if nothing was to be published after it.
const refusalCounts = time.Minute

// Refusing returns since when the broker takes no messages, and the latest error. The time is zero if it takes them.
func (o *Outage) Refusing(now time.Time) (since time.Time, why error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.down || now.Sub(o.last) > refusalCounts {
		return time.Time{}, nil
	}
	return o.from, o.why
}

// MarkUnannounced marks messages from now on as unannounced, so that the agenda
// publishes the backlog.
func (o *Outage) MarkUnannounced(now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since.IsZero() {
		o.since = now
	}
}

// UnannouncedSince returns when the first failure occurred that CaughtUp has not cleared.
func (o *Outage) UnannouncedSince() (since time.Time, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.since, !o.since.IsZero()
}

// CaughtUp records that every message that failed before until was announced.
func (o *Outage) CaughtUp(until time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.since = time.Time{}
	if o.last.After(until) {
		o.since = until
	}
}
