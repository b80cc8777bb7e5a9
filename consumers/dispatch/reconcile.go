package dispatch

import (
	"context"
	"errors"
	"time"

	"github.com/safedelivr/safedelivr/consumers/policy"
	"github.com/safedelivr/safedelivr/models"
)

// SkipCorrupt keeps what is wrong with one batch or chunk from holding up the others:
// it is looked at again later, in case that a later version can read it.
func (d *Dispatcher) SkipCorrupt(id models.ID, err error) (Result, error) {
	if !errors.Is(err, models.ErrDamaged) && !errors.Is(err, models.ErrInvalid) && !errors.Is(err, models.ErrNotFound) {
		return Result{}, err
	}
	d.log.Error("what is stored cannot be worked on; everything else goes on", "id", id.String(), "err", err)
	return Result{Announced: true}, nil
}

// Result is what is still open about a chunk or a batch.
type Result struct {
	Announced     bool      // something is to be sent, and was announced
	PublishFailed bool      // or could not be
	RequeueAt     time.Time // the first wait that ends; zero: none
}

func (o Result) Or(p Result) Result {
	o.Announced, o.PublishFailed = o.Announced || p.Announced, o.PublishFailed || p.PublishFailed
	if o.RequeueAt.IsZero() || !p.RequeueAt.IsZero() && p.RequeueAt.Before(o.RequeueAt) {
		o.RequeueAt = p.RequeueAt
	}
	return o
}

// RequeueAfter is when to look again, given when to check on an announcement; zero:
// never.
func (o Result) RequeueAfter(check time.Time) time.Time {
	if o.Announced && (o.RequeueAt.IsZero() || check.Before(o.RequeueAt)) {
		return check
	}
	return o.RequeueAt
}

// Reconcile does for a chunk what needs no worker slot: it appends the endings
// that are due, announces what is to be sent, marks the summary, and says what
// is still open.
func (d *Dispatcher) Reconcile(ctx context.Context, id models.ID) (Result, error) {
	for {
		c, err := d.Load(ctx, id)
		if err != nil {
			return d.SkipCorrupt(id, err)
		}
		now := time.Now()
		steps, err := d.Plan(ctx, c, now)
		if err != nil {
			return d.SkipCorrupt(id, err)
		}
		changed, err := d.appendEndings(ctx, c, steps)
		if err != nil {
			return Result{}, err
		}
		if changed {
			continue // the endings may have changed what follows
		}
		d.summaries.MarkChunk(c)
		return d.announceSteps(c, steps, now), nil
	}
}

// announceSteps passes on every step of a chunk that is due before the agenda looks
// again.
func (d *Dispatcher) announceSteps(c *Chunk, steps []policy.Step, now time.Time) Result {
	var out Result
	var told Outgoing
	for i := range steps {
		st := &steps[i]
		switch st.Do {
		case policy.Wait:
			out = out.Or(Result{RequeueAt: st.Until, Announced: d.evidence.MayEndSoon(c, st, now)})
		case policy.Call:
			if end := c.Batch.Deadline; end.After(now) {
				out = out.Or(Result{RequeueAt: end})
			}
			if at := st.Earliest(); at.After(now.Add(d.cfg.Recheck)) {
				out = out.Or(Result{RequeueAt: at})
				continue
			}
			if st.Retry == 0 && st.Split == 0 {
				told.add(models.Message{Kind: models.BatchMessage})
			} else {
				d.Requeue(c, st, now, "", &told)
			}
			out.Announced = true
		case policy.End: // not yet: evidence is being looked up
			out.Announced = true
		case policy.Nothing:
		}
	}
	d.announce(d.hard, c, told...)
	out.PublishFailed = c.publishFailed
	return out
}
