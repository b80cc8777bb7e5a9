package consumers

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// announceSteps announces something about a chunk, and notes if that failed.
func (d *dispatcher) announce(ctx context.Context, c *chunk, ms ...models.Message) {
	if len(ms) == 0 {
		return
	}
	for i := range ms {
		ms[i] = c.message(ms[i])
	}
	if !d.publish(ctx, ms...) {
		c.publishFailed = true
	}
}

// publish publishes messages, and reports whether that worked. A message that cannot
// be published costs time only: the agenda finds its chunk.
func (d *dispatcher) publish(ctx context.Context, ms ...models.Message) bool {
	if !d.outage.begin(time.Now()) {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err := d.broker.Publish(ctx, ms...)
	d.outage.end(time.Now(), err)
	if err != nil {
		d.log.Warn("announcement failed; the agenda will repeat it", "chunk", ms[0].ID.String(), "queue", ms[0].Key(), "err", err)
	}
	return err == nil
}

// outage is the time in which announcements fail. Once one has failed, only one
// try is made each second, and all others fail at once, so that nobody who has
// other work waits for a broker that is away.
type outage struct {
	mu     sync.Mutex
	since  time.Time // of the first failure that was not made up for; zero: none
	last   time.Time // of the latest
	away   bool
	trying bool
	next   time.Time // the next try while it is away
}

// start reports whether a try may be made; its end is to be told.
func (o *outage) begin(now time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.away {
		return true
	}
	if o.trying || now.Before(o.next) {
		o.last = now
		return false
	}
	o.trying = true
	return true
}

// end takes in the outcome of a try. Only an error that is about the broker, not
// the message, says that it is away.
func (o *outage) end(now time.Time, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.trying = false
	if o.away = errors.Is(err, models.ErrUnavailable); !o.away {
		return
	}
	if o.since.IsZero() {
		o.since = now
	}
	o.last, o.next = now, now.Add(time.Second)
}

// markUnannounced lets what was missed before be made up for.
func (o *outage) markUnannounced(now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since.IsZero() {
		o.since = now
	}
}

// unannouncedSince returns since when announcements failed that were not made up for.
func (o *outage) unannouncedSince() (since time.Time, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.since, !o.since.IsZero()
}

// caughtUp notes that everything missed until then was announced.
func (o *outage) caughtUp(until time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.since = time.Time{}
	if o.last.After(until) {
		o.since = until
	}
}
