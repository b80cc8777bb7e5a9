package consumers

import (
	"context"
	"errors"
	"time"

	"github.com/safedelivr/safedelivr/consumers/policy"
	"github.com/safedelivr/safedelivr/models"
)

// spared keeps what is wrong with one batch or chunk from holding up the others:
// it is looked at again later, in case that a later version can read it.
func (d *dispatcher) spared(id models.ID, err error) (outlook, error) {
	if !errors.Is(err, models.ErrDamaged) && !errors.Is(err, models.ErrInvalid) && !isNotFound(err) {
		return outlook{}, err
	}
	d.log.Error("what is stored cannot be worked on; everything else goes on", "id", id.String(), "err", err)
	return outlook{announced: true}, nil
}

// outlook is what is still open about a chunk or a batch.
type outlook struct {
	announced bool      // something is to be sent, and was announced
	missed    bool      // or could not be
	until     time.Time // the first wait that ends; zero: none
}

func (o outlook) or(p outlook) outlook {
	o.announced, o.missed = o.announced || p.announced, o.missed || p.missed
	if o.until.IsZero() || !p.until.IsZero() && p.until.Before(o.until) {
		o.until = p.until
	}
	return o
}

// next is when to look again, given when to check on an announcement; zero:
// never.
func (o outlook) next(check time.Time) time.Time {
	if o.announced && (o.until.IsZero() || check.Before(o.until)) {
		return check
	}
	return o.until
}

// advance does for a chunk what needs no worker slot: it appends the endings
// that are due, announces what is to be sent, marks the summary, and says what
// is still open.
func (d *dispatcher) advance(ctx context.Context, id models.ID) (outlook, error) {
	for {
		c, err := d.look(ctx, id)
		if err != nil {
			return d.spared(id, err)
		}
		now := time.Now()
		steps, err := d.plan(ctx, c, now)
		if err != nil {
			return d.spared(id, err)
		}
		changed, err := d.close(ctx, c, steps)
		if err != nil {
			return outlook{}, err
		}
		if changed {
			continue // the endings may have changed what follows
		}
		d.summaries.MarkChunk(c)
		return d.announce(c, steps, now), nil
	}
}

// announce passes on every step of a chunk that is due before the agenda looks
// again.
func (d *dispatcher) announce(c *chunk, steps []policy.Step, now time.Time) outlook {
	var out outlook
	var told notices
	for i := range steps {
		st := &steps[i]
		switch st.Do {
		case policy.Wait:
			out = out.or(outlook{until: st.Until, announced: d.evidence.MayEndSoon(c, st, now)})
		case policy.Call:
			if end := c.batch.Deadline; end.After(now) {
				out = out.or(outlook{until: end})
			}
			if at := st.Earliest(); at.After(now.Add(d.cfg.Recheck)) {
				out = out.or(outlook{until: at})
				continue
			}
			if st.Retry == 0 && st.Split == 0 {
				told.add(models.Message{Kind: models.BatchMessage})
			} else {
				d.passOn(c, st, now, "", &told)
			}
			out.announced = true
		case policy.End: // not yet: evidence is being looked up
			out.announced = true
		case policy.Nothing:
		}
	}
	d.announceOf(d.hard, c, told...)
	out.missed = c.missed
	return out
}

func isNotFound(err error) bool { return errors.Is(err, models.ErrNotFound) }
