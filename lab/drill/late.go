package drill

import (
	"context"
	"slices"
	"time"
)

// scheduledInTime posts batches that are due within seconds, a third of whose recipients have a time of their own, when
// earlier mail is delivered. Nothing breaks.
func scheduledInTime(ctx context.Context, d *drill) error {
	if err := d.settled(ctx); err != nil {
		return err
	}
	d.broken()
	d.healed()
	at := time.Now().Add(3 * time.Second).Truncate(time.Millisecond)
	own := at.Add(1700 * time.Millisecond)
	due, err := d.schedule(ctx, own, at, at.Add(time.Second))
	if err != nil {
		return err
	}
	return d.awaitLeft(ctx, due, own)
}

// noteLateness notes how long after its time the first copy of a scheduled mail was accepted.
func (d *drill) noteLateness(log string, at time.Time) {
	copies := d.sim.copiesOf(log)
	if at.IsZero() || len(copies) == 0 || d.clocksOff {
		return
	}
	first := copies[0].At
	for _, c := range copies {
		if c.At.Before(first) {
			first = c.At
		}
	}
	d.late = append(d.late, max(0, first.Sub(at)))
}

// measureLateness adds the lateness of all scheduled mail to the result. It judges nothing: the time depends on the
// machine.
func (d *drill) measureLateness() {
	if len(d.late) == 0 {
		return
	}
	slices.Sort(d.late)
	d.res.Late = round(d.late[(len(d.late)-1)*99/100])
}
