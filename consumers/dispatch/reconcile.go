package dispatch

import (
	"context"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/policy"
)

// Result is the result of reconciling a chunk or a batch.
type Result struct {
	Announced     bool      // there is mail to send, and messages about it were published
	PublishFailed bool      // a message was not published
	Unsent        bool      // there is mail to send, now or after a delay
	RequeueAt     time.Time // when the first other wait ends; zero: none
	ScheduledAt   time.Time // when the first wait for a time of the batch ends, or mail expires; zero: none
}

// Or returns a result that covers both o and p.
func (o Result) Or(p Result) Result {
	o.Announced, o.PublishFailed = o.Announced || p.Announced, o.PublishFailed || p.PublishFailed
	o.Unsent = o.Unsent || p.Unsent
	o.RequeueAt, o.ScheduledAt = firstOf(o.RequeueAt, p.RequeueAt), firstOf(o.ScheduledAt, p.ScheduledAt)
	return o
}

// firstOf returns the earlier of two times that are not zero.
func firstOf(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// RequeueAfter returns when to reconcile again for another reason than a time of the batch; zero: never. check is when
// to check on messages that were published.
func (o Result) RequeueAfter(check time.Time) time.Time {
	if o.Announced && (o.RequeueAt.IsZero() || check.Before(o.RequeueAt)) {
		return check
	}
	return o.RequeueAt
}

// Reconcile does everything for a chunk that needs no provider call: it appends the
// endings that are due, publishes messages about mail to send, and marks the summary.
func (d *Dispatcher) Reconcile(ctx context.Context, id models.ID) (Result, error) {
	for {
		c, err := d.Chunks.Load(ctx, id)
		if err != nil {
			return d.Chunks.SkipCorrupt(id, err)
		}
		now := time.Now()
		steps, err := d.planner.plan(ctx, c, now)
		if err != nil {
			return d.Chunks.SkipCorrupt(id, err)
		}
		changed, err := d.planner.appendEndings(ctx, c, steps)
		if err != nil {
			return Result{}, err
		}
		if changed {
			continue // the next steps may have changed
		}
		d.Summaries.MarkChunk(c)
		return d.announceSteps(ctx, c, steps, now), nil
	}
}

// announceSteps publishes messages about every step of a chunk that is due before the
// agenda's next reconcile.
func (d *Dispatcher) announceSteps(ctx context.Context, c *Chunk, steps []policy.Step, now time.Time) Result {
	var out Result
	var outgoing messages
	for i := range steps {
		st := &steps[i]
		out = out.Or(Result{ScheduledAt: d.expiry(c, st, now), Unsent: st.Do == policy.Call && st.Repeats == 0})
		switch st.Do {
		case policy.Wait:
			wait := Result{RequeueAt: st.Until, Announced: d.Evidence.MayEndSoon(c, st, now)}
			if st.Scheduled() {
				wait.RequeueAt, wait.ScheduledAt = time.Time{}, st.Until
			}
			out = out.Or(wait)
		case policy.Call:
			if at := st.Earliest(); at.After(now.Add(d.router.recheck)) {
				out = out.Or(Result{RequeueAt: at})
				continue
			}
			if !st.ByProvider() {
				outgoing.add(models.Message{Kind: models.BatchMessage})
			} else {
				d.router.requeue(c, st, now, "", &outgoing)
			}
			out.Announced = true
		case policy.End: // not appended yet: a look-up is running
			out.Announced = true
		case policy.Nothing:
		}
	}
	d.Outbox.announce(ctx, c, outgoing...)
	out.PublishFailed = c.publishFailed
	return out
}

// expiry returns when the mail of a step expires; zero: it waits for a provider that has it, or it was released.
func (d *Dispatcher) expiry(c *Chunk, st *policy.Step, now time.Time) time.Time {
	unsent := st.Do == policy.Call && !st.Released && st.Repeats == 0 || st.Do == policy.Wait && st.Unsent()
	if end := d.commands.expiresAt(c); unsent && end.After(now) {
		return end
	}
	return time.Time{}
}
