package drill

import (
	"context"
	"slices"
	"time"
)

// punctualAim is how late 99 % of the scheduled mail may leave when nothing else is to be done.
const punctualAim = time.Second

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
	copies := d.copiesOf(log)
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

// judgeLateness adds the lateness of all scheduled mail to the result.
func (d *drill) judgeLateness() {
	if len(d.late) == 0 {
		return
	}
	slices.Sort(d.late)
	p99 := d.late[(len(d.late)-1)*99/100]
	if d.res.Late = round(p99); d.punctual && p99 > punctualAim {
		d.res.wrong("of %d scheduled mails 1 %% left more than %s after their time", len(d.late), p99)
	}
}
