package dispatch

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/suppression"
)

// unwanted ends the mail to recipients who must not get it any more: they were suppressed or erased.
type unwanted struct {
	chunks       *Chunks
	suppressions *suppression.Lists
	observer     Observer
}

// endSuppressed appends endings for the recipients of a job's step whose address is
// suppressed, one for each cause. It reports whether there were any.
func (u *unwanted) endSuppressed(ctx context.Context, c *Chunk, j *job) (ended bool, err error) {
	numbers := slices.Collect(j.Who.All())
	address := func(i int) string { return c.Recipients[numbers[i]-1].Email }
	j.found, err = u.suppressions.Suppressed(ctx, suppression.MailOf(c.Batch), len(numbers), address, rulesMaxAge)
	if err != nil || len(j.found.Suppressed) == 0 {
		return false, err
	}
	entries := j.found.Endings(func(i int) int { return numbers[i] })
	for i := range entries {
		if j.Step.Doubt != "" { // a provider may have the mail
			entries[i].Reason = j.Step.Doubt
			entries[i].Detail = models.Clip(models.Suppressed.Words() + ": " + entries[i].Detail)
		}
		if appended, err := u.chunks.appendEntry(ctx, c, entries[i]); !appended {
			return true, err
		}
		u.observer.Ended(&entries[i])
	}
	return true, nil
}

// stillNone returns errHeldBack if a recipient of a call may be suppressed since
// endSuppressed found none of them.
func (u *unwanted) stillNone(ctx context.Context, c *Chunk, j *job, call *models.Call) error {
	mail := suppression.MailOf(c.Batch)
	changed, err := u.suppressions.Changed(ctx, mail, &j.found, control.MaxRuleAge)
	if err != nil || !changed {
		return err
	}
	address := func(i int) string { return call.Recipients[i].Email }
	found, err := u.suppressions.Suppressed(ctx, mail, len(call.Recipients), address, control.MaxRuleAge)
	if err == nil && len(found.Suppressed) > 0 {
		err = fmt.Errorf("%w: %d of its recipients were suppressed meanwhile", errHeldBack, len(found.Suppressed))
	}
	return err
}

// end appends endings for recipients of a job's step that were erased or suppressed, or gives up a repeat that
// has any. It reports whether there were any.
func (u *unwanted) end(ctx context.Context, c *Chunk, j *job) (bool, error) {
	if j.Step.Repeats > 0 {
		return u.giveUpRepeat(ctx, c, j)
	}
	if ended, err := u.endErased(ctx, c, j); ended || err != nil {
		return ended, err
	}
	return u.endSuppressed(ctx, c, j)
}

// endErased appends an ending for the recipients of a job's step whose address was erased, or the
// values of their mail, which in an envelope went with the first address. It reports whether there
// were any.
func (u *unwanted) endErased(ctx context.Context, c *Chunk, j *job) (bool, error) {
	gone := models.ErasedRecipients(c.Recipients).And(j.Step.Recipients)
	whole := j.Step.Together && j.Step.Recipients.Has(1)
	if c.Batch.Envelope != nil && !whole && c.Recipients[0].Erased() {
		gone = j.Step.Recipients
	}
	if gone.Empty() {
		return false, nil
	}
	entry := models.Entry{Kind: models.Ending, At: time.Now().UTC(), Recipients: gone, Reason: models.Erased}
	if j.Step.Doubt != "" { // a provider may have the mail
		entry.Reason, entry.Detail = j.Step.Doubt, models.Erased.Words()
	}
	appended, err := u.chunks.appendEntry(ctx, c, entry)
	if appended {
		u.observer.Ended(&entry)
	}
	return true, err
}
