package dispatch

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// announceSteps announces something about a chunk, and notes if that failed.
func (d *Dispatcher) announce(ctx context.Context, c *Chunk, ms ...models.Message) {
	if len(ms) == 0 {
		return
	}
	for i := range ms {
		ms[i] = c.message(ms[i])
	}
	if !d.Publish(ctx, ms...) {
		c.publishFailed = true
	}
}

// Publish publishes messages, and reports whether that worked. A message that cannot
// be published costs time only: the agenda finds its chunk.
func (d *Dispatcher) Publish(ctx context.Context, ms ...models.Message) bool {
	if !d.Outage.Begin(time.Now()) {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err := d.broker.Publish(ctx, ms...)
	d.Outage.End(time.Now(), err)
	if err != nil {
		d.log.Warn(
			"announcement failed; the agenda will repeat it",
			"chunk",
			ms[0].ID.String(),
			"queue",
			ms[0].Key(),
			"err",
			err,
		)
	}
	return err == nil
}

// Outage is the time in which announcements fail. Once one has failed, only one
// try is made each second, and all others fail at once, so that nobody who has
// other work waits for a broker that is away.
type Outage struct {
	mu     sync.Mutex
	since  time.Time // of the first failure that was not made up for; zero: none
	last   time.Time // of the latest
	away   bool
	trying bool
	next   time.Time // the next try while it is away
}

// start reports whether a try may be made; its end is to be told.
func (o *Outage) Begin(now time.Time) bool {
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

// End takes in the outcome of a try. Only an error that is about the broker, not
// the message, says that it is away.
func (o *Outage) End(now time.Time, err error) {
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

// MarkUnannounced lets what was missed before be made up for.
func (o *Outage) MarkUnannounced(now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since.IsZero() {
		o.since = now
	}
}

// UnannouncedSince returns since when announcements failed that were not made up for.
func (o *Outage) UnannouncedSince() (since time.Time, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.since, !o.since.IsZero()
}

// CaughtUp notes that everything missed until then was announced.
func (o *Outage) CaughtUp(until time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.since = time.Time{}
	if o.last.After(until) {
		o.since = until
	}
}
