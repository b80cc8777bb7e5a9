package dispatch

import (
	"context"
	"errors"
	"time"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/tracing"
)

// HandleBatch handles batch.<uuid>: it sends a chunk through any provider. It never
// waits for one that is busy, rate limited or unhealthy.
func (d *Dispatcher) HandleBatch(ctx context.Context, m models.Message) models.Disposition {
	return d.dispatch(ctx, m, nil, models.Set{})
}

// HandleProvider handles <ns>.<uuid>: it sends a chunk through this provider. It may
// wait for the provider's slots and rates, because it delays no other provider.
func (d *Dispatcher) HandleProvider(ctx context.Context, m models.Message) models.Disposition {
	a := d.Providers.Get(m.Provider)
	if a == nil {
		return models.Park("no provider " + m.Provider + " is configured")
	}
	return d.dispatch(ctx, m, a, models.Set{})
}

// HandleLog handles log.<ns>.<uuid>: it sends to one recipient through this provider.
// Recipients of the chunk that are due for the same provider join the call.
func (d *Dispatcher) HandleLog(ctx context.Context, m models.Message) models.Disposition {
	a := d.Providers.Get(m.Provider)
	if a == nil {
		return models.Park("no provider " + m.Provider + " is configured")
	}
	only := models.SetOf(m.ID.Recipient())
	m.ID = m.ID.ChunkID()
	return d.dispatch(ctx, m, a, only)
}

// maxRounds bounds how many calls one message makes before it is requeued, so that one
// message cannot occupy a handler for ever.
const maxRounds = 64

// dispatch advances a chunk. If another handler of this process is doing so, dispatch
// returns at once and that handler makes one more pass.
func (d *Dispatcher) dispatch(
	ctx context.Context, m models.Message, own *provider.Provider, only models.Set,
) models.Disposition {
	if m.Lane == models.Urgent {
		d.cfg.Priority.NoteUrgent()
	}
	key := inflightKey{m.ID, m.Provider}
	run := d.inflight.begin(key)
	if run == nil {
		return models.Done()
	}
	defer d.inflight.end(key, run) // a handler may panic
	for {
		disposition, more := d.runRounds(ctx, m, own, only)
		if disposition.IsDone() && !more && d.inflight.rerun(key, run) {
			only = models.Set{} // the other message may be about other recipients
			continue
		}
		if requested := d.inflight.end(key, run); more || requested {
			next := models.Message{Kind: models.ProviderMessage, Provider: m.Provider, ID: m.ID, Retry: m.Retry, Lane: m.Lane}
			if own == nil {
				next.Kind = models.BatchMessage
			}
			if !d.Outbox.Publish(ctx, next) && disposition.IsDone() {
				return models.Later(time.Second)
			}
		}
		return disposition
	}
}

// runRounds plans, calls and requeues, for maxRounds rounds at most. The message only
// names the chunk; the store says what there is to do. It reports whether there is
// more to do here and now.
func (d *Dispatcher) runRounds(
	ctx context.Context, m models.Message, own *provider.Provider, only models.Set,
) (disposition models.Disposition, more bool) {
	c, err := d.Chunks.start(ctx, m)
	if err != nil {
		return d.failed(err, "load", m), false
	}
	c.Lane = m.Lane
	defer d.Summaries.MarkChunk(c)
	span := tracing.Start(c.ID, "dispatch", time.Time{},
		"queue", string(m.Kind),
		"provider", m.Provider,
		"lane", string(m.Lane),
		"chunk", c.ID.String(),
	)
	defer span.End("")
	for range maxRounds {
		if ctx.Err() != nil {
			return models.Later(0), false // stopping: another worker resumes
		}
		steps, err := d.planner.plan(ctx, c, time.Now())
		if err != nil {
			return d.failed(err, "plan", m), false
		}
		if ended, err := d.planner.appendEndings(ctx, c, steps); err != nil {
			return d.failed(err, "close", m), false
		} else if ended {
			continue
		}
		job, err := d.router.selectCall(ctx, c, steps, own, only)
		if err != nil {
			return d.failed(err, "load", m), false
		}
		if job == nil {
			return c.requeuedDisposition(), false // all that is left was requeued or waits for evidence
		}
		err = d.caller.attempt(ctx, c, job)
		c.requeued = c.requeued.Minus(job.Who) // their next step is a new one
		switch {
		case errors.Is(err, errBusy):
			d.router.requeueAll(ctx, c, steps, only, job.Provider.Name)
			return c.requeuedDisposition(), false
		case errors.Is(err, errRequeued):
			return c.requeuedDisposition(), false
		case err != nil:
			return d.failed(err, "attempt", m), false
		}
	}
	return c.requeuedDisposition(), true
}

// requeuedDisposition returns the disposition of a message whose steps were requeued.
// If that could not be published, the message itself is redelivered.
func (c *Chunk) requeuedDisposition() models.Disposition {
	if c.publishFailed {
		return models.Later(time.Second)
	}
	return models.Done()
}

// failed returns the disposition of a message whose handling failed with err.
func (d *Dispatcher) failed(err error, doing string, m models.Message) models.Disposition {
	if errors.Is(err, models.ErrNotFound) {
		// The batch does not exist, or not yet. In the latter case the agenda
		// announces it again.
		return models.Done()
	}
	if errors.Is(err, models.ErrInvalid) || errors.Is(err, models.ErrDamaged) {
		return models.Park(doing + ": " + err.Error())
	}
	d.cfg.Logger.Warn("message not handled; will retry",
		"doing", doing, "chunk", m.ID.String(), "queue", m.Key(), "err", err)
	return models.Later(2 * time.Second)
}
