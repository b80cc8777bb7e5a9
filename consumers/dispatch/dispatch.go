package dispatch

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/consumers/policy"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/tracing"
)

// HandleBatch handles batch.<uuid>: a chunk through any provider. It never waits for
// a busy, limited or broken one.
func (d *Dispatcher) HandleBatch(ctx context.Context, m models.Message) models.Disposition {
	return d.dispatch(ctx, m, nil, models.Set{})
}

// HandleProvider handles <ns>.<uuid>: a chunk through this provider, whose slots and
// rates it may wait for, because it delays nobody else.
func (d *Dispatcher) HandleProvider(ctx context.Context, m models.Message) models.Disposition {
	a := d.providers.Get(m.Provider)
	if a == nil {
		return models.Park("no provider " + m.Provider + " is configured")
	}
	return d.dispatch(ctx, m, a, models.Set{})
}

// HandleLog handles log.<ns>.<uuid>: one recipient, through this provider. Others
// of its chunk that are due for the provider go along in the same call.
func (d *Dispatcher) HandleLog(ctx context.Context, m models.Message) models.Disposition {
	a := d.providers.Get(m.Provider)
	if a == nil {
		return models.Park("no provider " + m.Provider + " is configured")
	}
	only := models.SetOf(m.ID.Recipient())
	m.ID = m.ID.ChunkID()
	return d.dispatch(ctx, m, a, only)
}

// maxRounds bounds how many calls one message makes before it is passed on, so
// that one message cannot keep a worker for ever.
const maxRounds = 64

// dispatch brings a chunk forward, unless another handler of this process does
// so: that one will look once more.
func (d *Dispatcher) dispatch(
	ctx context.Context,
	m models.Message,
	mine *provider.Provider,
	only models.Set,
) models.Disposition {
	if m.Lane == models.Urgent {
		d.priority.NoteUrgent()
	}
	w := InflightKey{m.ID, m.Provider}
	t := d.Inflight.Begin(w)
	if t == nil {
		return models.Done()
	}
	defer d.Inflight.End(w, t) // a handler may die
	for {
		said, more := d.runRounds(ctx, m, mine, only)
		if said.IsDone() && !more && d.Inflight.Rerun(w, t) {
			only = models.Set{} // whatever was asked for meanwhile
			continue
		}
		if asked := d.Inflight.End(w, t); more || asked {
			next := models.Message{Kind: models.ProviderMessage, Provider: m.Provider, ID: m.ID, Retry: m.Retry, Lane: m.Lane}
			if mine == nil {
				next.Kind = models.BatchMessage
			}
			if !d.Publish(ctx, next) && said.IsDone() {
				return models.Later(time.Second)
			}
		}
		return said
	}
}

// runRounds decides, calls, and passes on what is to be done elsewhere or later,
// for so many rounds. The message only woke it; what is done follows from the
// store. It reports whether there is more to do here and now.
func (d *Dispatcher) runRounds(
	ctx context.Context,
	m models.Message,
	mine *provider.Provider,
	only models.Set,
) (said models.Disposition, more bool) {
	c, err := d.start(ctx, m)
	if err != nil {
		return d.failed(err, "load", m), false
	}
	c.Lane = m.Lane
	defer d.summaries.MarkChunk(c)
	span := tracing.Start(
		c.Id,
		"dispatch",
		time.Time{},
		"queue",
		string(m.Kind),
		"provider",
		m.Provider,
		"lane",
		string(m.Lane),
		"chunk",
		c.Id.String(),
	)
	defer span.End("")
	for range maxRounds {
		if ctx.Err() != nil {
			return models.Later(0), false // stopping: another worker goes on
		}
		steps, err := d.Plan(ctx, c, time.Now())
		if err != nil {
			return d.failed(err, "plan", m), false
		}
		if ended, err := d.appendEndings(ctx, c, steps); err != nil {
			return d.failed(err, "close", m), false
		} else if ended {
			continue
		}
		job, err := d.selectCall(ctx, c, steps, mine, only)
		if err != nil {
			return d.failed(err, "load", m), false
		}
		if job == nil {
			return c.requeuedDisposition(), false // everything left was, or waits for evidence
		}
		err = d.attempt(ctx, c, job)
		c.requeued = c.requeued.Minus(job.Who) // what follows for them is another step
		switch {
		case errors.Is(err, errBusy):
			d.requeueAll(c, steps, only, job.Provider.Name)
			return c.requeuedDisposition(), false
		case errors.Is(err, errRequeued):
			return c.requeuedDisposition(), false
		case err != nil:
			return d.failed(err, "attempt", m), false
		}
	}
	return c.requeuedDisposition(), true
}

// requeuedDisposition ends a message whose work goes on elsewhere. If that could not be
// announced, the message itself is what brings the chunk back.
func (c *Chunk) requeuedDisposition() models.Disposition {
	if c.publishFailed {
		return models.Later(time.Second)
	}
	return models.Done()
}

// Plan obeys what was ordered and decides the next steps of a chunk, by what is
// known of it now.
func (d *Dispatcher) Plan(ctx context.Context, c *Chunk, now time.Time) ([]policy.Step, error) {
	if now.Sub(c.Read) > MaxStale {
		if err := d.Reload(ctx, c); err != nil {
			return nil, err
		}
	}
	if err := d.follower.EnsureFresh(ctx, control.MaxRuleAge); err != nil {
		return nil, err
	}
	// What announces a batch may be the order that lets it go on, which is newer than the rules.
	if d.follower.Rules().Batch(c.Batch).Waits != "" {
		if err := d.follower.Sync(ctx); err != nil {
			return nil, err
		}
	}
	if err := d.applyReleases(ctx, c); err != nil {
		return nil, err
	}
	steps, err := d.Decide(ctx, c, now)
	if err != nil || !slices.ContainsFunc(steps, policy.Step.InDoubt) || now.Sub(c.Read) < justRead {
		return steps, err
	}
	// No ledger entry tells of an event that has come meanwhile.
	if err := d.Reload(ctx, c); err != nil {
		return nil, err
	}
	return d.Decide(ctx, c, now)
}

// What is known of a chunk is read again when it is older than maxStale, and before
// something is decided about mail that a provider may have, unless it was just read.
const (
	MaxStale = time.Second
	justRead = 100 * time.Millisecond
)

// Decide decides the next steps of a chunk, by what was read of it.
func (d *Dispatcher) Decide(ctx context.Context, c *Chunk, now time.Time) ([]policy.Step, error) {
	c.planned = d.snapshotRules(c)
	o, err := d.commandsFor(ctx, c)
	if err != nil {
		return nil, err
	}
	steps := d.Policy.Plan(c.View, c.Batch, &o, now)
	for i := range steps {
		st := &steps[i]
		if st.Do == policy.Call && st.MayDouble && !st.Released && !d.evidence.Answered(c, st, now) {
			*st = policy.Step{Do: policy.Wait, Who: st.Who, Until: now.Add(d.cfg.LookUpPause)}
		}
	}
	return steps, nil
}

// failed decides the fate of a message that could not be handled.
func (d *Dispatcher) failed(err error, doing string, m models.Message) models.Disposition {
	if errors.Is(err, models.ErrNotFound) {
		// The announcement of a batch that does not exist (yet): the agenda
		// will announce it again if it does.
		return models.Done()
	}
	if errors.Is(err, models.ErrInvalid) || errors.Is(err, models.ErrDamaged) {
		return models.Park(doing + ": " + err.Error())
	}
	d.log.Warn("consumer will try again", "doing", doing, "chunk", m.ID.String(), "queue", m.Key(), "err", err)
	return models.Later(2 * time.Second)
}
