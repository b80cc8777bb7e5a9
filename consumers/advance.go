package consumers

import (
	"context"
	"errors"
	"time"

	"github.com/safedelivr/safedelivr/consumers/policy"
	"github.com/safedelivr/safedelivr/models"
)

// skipCorrupt keeps what is wrong with one batch or chunk from holding up the others:
// it is looked at again later, in case that a later version can read it.
func (d *dispatcher) skipCorrupt(id models.ID, err error) (result, error) {
	if !errors.Is(err, models.ErrDamaged) && !errors.Is(err, models.ErrInvalid) && !errors.Is(err, models.ErrNotFound) {
		return result{}, err
	}
	d.log.Error("what is stored cannot be worked on; everything else goes on", "id", id.String(), "err", err)
	return result{announced: true}, nil
}

// result is what is still open about a chunk or a batch.
type result struct {
	announced     bool      // something is to be sent, and was announced
	publishFailed bool      // or could not be
	requeueAt     time.Time // the first wait that ends; zero: none
}

func (o result) or(p result) result {
	o.announced, o.publishFailed = o.announced || p.announced, o.publishFailed || p.publishFailed
	if o.requeueAt.IsZero() || !p.requeueAt.IsZero() && p.requeueAt.Before(o.requeueAt) {
		o.requeueAt = p.requeueAt
	}
	return o
}

// requeueAfter is when to look again, given when to check on an announcement; zero:
// never.
func (o result) requeueAfter(check time.Time) time.Time {
	if o.announced && (o.requeueAt.IsZero() || check.Before(o.requeueAt)) {
		return check
	}
	return o.requeueAt
}

// reconcile does for a chunk what needs no worker slot: it appends the endings
// that are due, announces what is to be sent, marks the summary, and says what
// is still open.
func (d *dispatcher) reconcile(ctx context.Context, id models.ID) (result, error) {
	for {
		c, err := d.load(ctx, id)
		if err != nil {
			return d.skipCorrupt(id, err)
		}
		now := time.Now()
		steps, err := d.plan(ctx, c, now)
		if err != nil {
			return d.skipCorrupt(id, err)
		}
		changed, err := d.appendEndings(ctx, c, steps)
		if err != nil {
			return result{}, err
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
func (d *dispatcher) announceSteps(c *chunk, steps []policy.Step, now time.Time) result {
	var out result
	var told outgoing
	for i := range steps {
		st := &steps[i]
		switch st.Do {
		case policy.Wait:
			out = out.or(result{requeueAt: st.Until, announced: d.evidence.MayEndSoon(c, st, now)})
		case policy.Call:
			if end := c.batch.Deadline; end.After(now) {
				out = out.or(result{requeueAt: end})
			}
			if at := st.Earliest(); at.After(now.Add(d.cfg.Recheck)) {
				out = out.or(result{requeueAt: at})
				continue
			}
			if st.Retry == 0 && st.Split == 0 {
				told.add(models.Message{Kind: models.BatchMessage})
			} else {
				d.requeue(c, st, now, "", &told)
			}
			out.announced = true
		case policy.End: // not yet: evidence is being looked up
			out.announced = true
		case policy.Nothing:
		}
	}
	d.announce(d.hard, c, told...)
	out.publishFailed = c.publishFailed
	return out
}
