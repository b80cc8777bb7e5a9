package dispatch

import (
	"context"
	"fmt"
	"slices"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/suppression"
)

// endSuppressed appends endings for the recipients of a job's step whose address is
// suppressed, one for each cause. It reports whether there were any.
func (d *Dispatcher) endSuppressed(ctx context.Context, c *Chunk, j *job) (ended bool, err error) {
	numbers := slices.Collect(j.Who.All())
	address := func(i int) string { return c.Recipients[numbers[i]-1].Email }
	j.found, err = d.suppressions.Suppressed(ctx, suppression.MailOf(c.Batch), len(numbers), address, rulesMaxAge)
	if err != nil || len(j.found.Suppressed) == 0 {
		return false, err
	}
	entries := j.found.Endings(func(i int) int { return numbers[i] })
	for i := range entries {
		if j.Step.Doubt != "" { // a provider may have the mail
			entries[i].Reason = j.Step.Doubt
			entries[i].Detail = models.Clip(models.Suppressed.Words() + ": " + entries[i].Detail)
		}
		err := d.appendEntry(ctx, c, entries[i])
		if conflict(err) {
			return true, d.Reload(ctx, c)
		}
		if err != nil {
			return true, err
		}
		d.observer.Ended(&entries[i])
	}
	return true, nil
}

// stillNone returns errHeldBack if a recipient of a call may be suppressed since
// endSuppressed found none of them.
func (d *Dispatcher) stillNone(ctx context.Context, c *Chunk, j *job, call *models.Call) error {
	mail := suppression.MailOf(c.Batch)
	changed, err := d.suppressions.Changed(ctx, mail, &j.found, control.MaxRuleAge)
	if err != nil || !changed {
		return err
	}
	address := func(i int) string { return call.Recipients[i].Email }
	found, err := d.suppressions.Suppressed(ctx, mail, len(call.Recipients), address, control.MaxRuleAge)
	if err == nil && len(found.Suppressed) > 0 {
		err = fmt.Errorf("%w: %d of its recipients were suppressed meanwhile", errHeldBack, len(found.Suppressed))
	}
	return err
}
